"""Ensembles of decision trees: every tree walks down at once, one level per step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .ops_ml import ML, table, transformed
from .registry import Node, Tensor, Value, op

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
MAX_DEPTH = 64


@dataclass(frozen=True, eq=False)
class Forest:
    """Nodes of all trees in one list. A leaf leads to itself."""

    feature: list[int]
    split: list[float]
    mode: list[int]
    below: list[tuple[int, int]]
    """Where a node leads when its test holds, and when not."""
    missing_holds: list[bool]
    roots: list[int]
    weights: np.ndarray
    """[nodes, targets]: what a leaf adds."""


@dataclass(frozen=True)
class Branch:
    """A node of `TreeEnsemble`: places of its children, which may be leaves."""

    feature: int
    mode: int
    split: float
    missing_holds: bool
    holds: tuple[int, bool]
    fails: tuple[int, bool]


@op("TreeEnsemble", domain=ML)
def tree_ensemble(node: Node, x: Tensor) -> Value:
    """Nodes and leaves are lists apart."""
    attrs = node.attrs
    branches = _branches(node)
    count = len(branches)
    below = [
        tuple(place + count if is_leaf else place for place, is_leaf in (b.holds, b.fails))
        for b in branches
    ]
    leaves = [int(t) for t in attrs["leaf_targetids"]]
    weights = np.zeros((count + len(leaves), int(attrs["n_targets"])))
    weights[count + np.arange(len(leaves)), leaves] = table(attrs["leaf_weights"]).tolist()
    none = [0] * len(leaves)
    forest = Forest(
        [b.feature for b in branches] + none,
        [b.split for b in branches] + [0.0] * len(leaves),
        [b.mode for b in branches] + none,
        [(t, f) for t, f in below] + [(count + i, count + i) for i in range(len(leaves))],
        [b.missing_holds for b in branches] + [False] * len(leaves),
        [int(r) for r in attrs["tree_roots"]],
        weights,
    )
    how = ("AVERAGE", "SUM", "MIN", "MAX")[int(attrs.get("aggregate_function", 1))]
    names = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    y = _scores(node, forest, x, how)
    kind = names[int(attrs.get("post_transform", 0))]
    return y if kind == "NONE" else transformed(_with(node, kind), y)


def _branches(node: Node) -> list[Branch]:
    """The nodes; one that asks for membership in a set becomes a chain of equalities."""
    attrs = node.attrs
    count = len(attrs["nodes_featureids"])
    rows = zip(
        map(int, attrs["nodes_featureids"]),
        table(attrs["nodes_modes"], torch.int64).tolist(),
        table(attrs["nodes_splits"]).tolist(),
        map(bool, attrs.get("nodes_missing_value_tracks_true") or [0] * count),
        zip(map(int, attrs["nodes_truenodeids"]), map(bool, attrs["nodes_trueleafs"]), strict=True),
        zip(
            map(int, attrs["nodes_falsenodeids"]), map(bool, attrs["nodes_falseleafs"]), strict=True
        ),
        strict=True,
    )
    found = [Branch(*row) for row in rows]
    members = _sets(attrs)
    for i in range(count):
        if found[i].mode == len(MODES):
            found = _chain(found, i, members.pop(0))
    return found


def _sets(attrs: Mapping[str, Any]) -> list[list[float]]:
    """The values that NaN separates."""
    sets: list[list[float]] = [[]]
    for value in table(attrs.get("membership_values", [])).tolist():
        sets = [*sets, []] if value != value else [*sets[:-1], [*sets[-1], value]]
    return sets


def _chain(branches: list[Branch], at: int, values: Sequence[float]) -> list[Branch]:
    equal = MODES.index("BRANCH_EQ")
    found, first = list(branches), branches[at]
    for i, value in enumerate(values):
        is_last = i == len(values) - 1
        fails = first.fails if is_last else (len(found) + (i > 0), False)
        link = dataclasses.replace(first, mode=equal, split=value, fails=fails)
        if i == 0:
            found[at] = link
        else:
            found.append(link)
    return found


def _with(node: Node, kind: str) -> Node:
    """The node with its transformation by name, as older ops have it."""
    return Node(
        node.name, node.op_type, node.domain, node.opset, {"post_transform": kind}, node.outputs
    )


@op("TreeEnsembleRegressor", domain=ML)
def tree_regressor(node: Node, x: Tensor) -> Value:
    targets = node.attrs.get("n_targets", 1)
    forest = _older(node, "target", int(targets))
    y = _scores(node, forest, x, node.attrs.get("aggregate_function", "SUM"))
    base = node.attrs.get("base_values")
    return transformed(node, y + table(base) if base else y)


@op("TreeEnsembleClassifier", domain=ML)
def tree_classifier(node: Node, x: Tensor) -> Value:
    """Labels and scores; two classes may share one score, of the second."""
    labels = node.attrs.get("classlabels_int64s")
    if not labels:
        node.refuse("expected classlabels_int64s, got labels that are texts")
    ids = sorted({int(i) for i in node.attrs["class_ids"]})
    forest = _older(node, "class", len(labels))
    y = _scores(node, forest, x, "SUM")
    base = node.attrs.get("base_values")
    y = y + table(base) if base and len(base) == len(labels) else y
    classes = table(labels, torch.int64)
    if len(labels) == 2 and len(ids) == 1:
        score = y[:, ids[0]] + (float(base[0]) if base and len(base) == 1 else 0.0)
        plain = node.attrs.get("post_transform", "NONE") == "NONE"
        chosen = (score > (0.5 if plain else 0.0)).to(torch.int64)
        both = torch.stack([1 - score if plain else -score, score], -1)
        return classes[chosen], transformed(node, both)
    return classes[y.argmax(-1)], transformed(node, y)


def _older(node: Node, side: str, targets: int) -> Forest:
    """The form before `TreeEnsemble`: nodes by tree and number, leaves among them."""
    attrs = node.attrs
    keys = list(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True))
    place = {key: i for i, key in enumerate(keys)}
    modes = list(attrs["nodes_modes"])
    strange = sorted({m for m in modes if m not in (*MODES, "LEAF")})
    if strange:
        node.refuse(f"expected nodes_modes of ONNX, got {', '.join(strange)}")
    below = []
    for i, (tree, _) in enumerate(keys):
        sides = (attrs["nodes_truenodeids"][i], attrs["nodes_falsenodeids"][i])
        leaf = modes[i] == "LEAF"
        below.append((i, i) if leaf else (place[tree, sides[0]], place[tree, sides[1]]))
    weights = np.zeros((len(keys), targets))
    for tree, number, target, weight in zip(
        attrs[f"{side}_treeids"],
        attrs[f"{side}_nodeids"],
        attrs[f"{side}_ids"],
        attrs[f"{side}_weights"],
        strict=True,
    ):
        weights[place[tree, number], target] += weight
    reached = {node for i, pair in enumerate(below) for node in pair if node != i}
    return Forest(
        [int(f) for f in attrs["nodes_featureids"]],
        [float(v) for v in attrs["nodes_values"]],
        [0 if m == "LEAF" else MODES.index(m) for m in modes],
        below,
        [bool(m) for m in attrs.get("nodes_missing_value_tracks_true") or [0] * len(keys)],
        [i for i in range(len(keys)) if i not in reached],
        weights,
    )


def _depth(below: Sequence[tuple[int, int]], roots: Sequence[int]) -> int:
    level, depth = set(roots), 0
    while any(below[i] != (i, i) for i in level):
        level = {child for i in level for child in below[i]}
        depth += 1
        if depth > len(below):
            return depth  # a circle, which the caller refuses
    return depth


def _scores(node: Node, forest: Forest, x: Tensor, how: str) -> Tensor:
    """[rows, targets]: the leaves that a row comes to, put together."""
    depth = _depth(forest.below, forest.roots)
    if depth > min(MAX_DEPTH, len(forest.below)):
        node.refuse(f"expected trees of at most {MAX_DEPTH} levels, got {depth}")
    x = x.to(torch.float32)
    feature, split = table(forest.feature, torch.int64), table(forest.split)
    ways = [table([pair[i] for pair in forest.below], torch.int64) for i in (0, 1)]
    at = table(forest.roots, torch.int64).unsqueeze(0).expand(x.shape[0], -1)
    for _ in range(depth):
        value = torch.gather(x, 1, feature[at])
        holds = _holds(forest, value, split[at], at)
        at = torch.where(holds, ways[0][at], ways[1][at])
    leaves = table(forest.weights.reshape(-1).tolist()).reshape(forest.weights.shape)[at]
    if how in ("MIN", "MAX"):
        counted = table((forest.weights != 0).reshape(-1).tolist(), torch.bool)
        counted = counted.reshape(forest.weights.shape)[at]
        end = float("inf") if how == "MIN" else float("-inf")
        seen = torch.where(counted, leaves, torch.full_like(leaves, end))
        best = seen.amin(1) if how == "MIN" else seen.amax(1)
        return torch.where(torch.isinf(best), torch.zeros_like(best), best)
    total = leaves.sum(1)
    return total / len(forest.roots) if how == "AVERAGE" else total


def _holds(forest: Forest, value: Tensor, split: Tensor, at: Tensor) -> Tensor:
    """The test of each node; a missing value goes where the node says."""
    tests: list[Any] = [
        lambda: value <= split,
        lambda: value < split,
        lambda: value >= split,
        lambda: value > split,
        lambda: value == split,
        lambda: value != split,
    ]
    used = sorted(set(forest.mode))
    holds: Tensor = tests[used[0]]()
    modes = table(forest.mode, torch.int64)[at] if len(used) > 1 else None
    for mode in used[1:]:
        assert modes is not None
        holds = torch.where(modes == mode, tests[mode](), holds)
    if any(forest.missing_holds):
        holds = holds | (torch.isnan(value) & table(forest.missing_holds, torch.bool)[at])
    return holds
