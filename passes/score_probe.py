"""What happens to attention scores between q k^T and the softmax, found by evaluating it.

Models spell masks, scales and position biases in many ways. All that matters is the function that
each score goes through, so it is evaluated on a grid of positions and compared with what the
attention op knows: scale * score + slope * distance where a key is seen, so low that it weighs
nothing where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..errors import VerifyError
from ..ir.dim import dim, symbols_of
from ..ir.graph import Node, Value
from ..ir.ops.attention import visible_keys
from ..ir.ops.elementwise import Add, Cast, Div, Maximum, Minimum, Mul, Neg, Sub, Where
from ..ir.ops.linear import MatMul
from ..ir.ops.shape import Broadcast, Reshape
from ..ir.rewrite import substitute_op

TOKENS = dim("tokens")
THROUGH = (Add, Sub, Mul, Div, Neg, Where, Maximum, Minimum, Cast, Reshape, Broadcast)
"""Ops on the way of a score: each element by itself."""
MAX_NODES = 300
MAX_ELEMENTS = 1 << 26
LEAST_POSITIONS = 48
HIDDEN = -5e3
"""A score below this has the weight 0 in f32 beside any that a model computes."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Scores:
    """``scale * (q k^T) + slopes * (key - query)`` for the keys that are seen."""

    product: Node
    scale: float
    causal: bool
    window: int | None
    slopes: np.ndarray | None
    """[heads], None: no position bias."""


def read_scores(value: Value) -> Scores | None:
    """What ``value``, a softmax's operand, is made of; None when it is anything else."""
    cone = _cone(value)
    if cone is None or cone.product is None:
        return None
    shape = cone.product.outputs[0].type.shape
    if shape[-2:] != (TOKENS, TOKENS) or len(shape) not in (3, 4):
        return None
    if not all(isinstance(d, int) for d in shape[:-2]):
        return None
    heads = int(np.prod([int(d) for d in shape[:-2]]))  # the batch is 1
    count = _positions(cone, heads)
    if count is None or value.type.size != cone.product.outputs[0].type.size:
        return None
    return _fit(cone, value, heads, count)


@dataclass
class _Cone:
    """The nodes between the product and the softmax, in order, and what they start from."""

    nodes: list[Node] = field(default_factory=list)
    product: Node | None = None
    leaves: set[Value] = field(default_factory=set)
    """Constants and the positions input."""


def _cone(root: Value) -> _Cone | None:
    """None if anything but positions, constants and one product of tokens with tokens comes in."""
    cone, done, pending = _Cone(), set(), [root]
    while pending:
        value = pending[-1]
        node = value.producer
        if value in done:
            pending.pop()
        elif node is None:
            if value.kind != "const" and value.name != "position_ids":
                return None
            cone.leaves.add(value)
            done.add(value)
        elif _is_product(node):
            if cone.product not in (None, node):
                return None
            cone.product = node
            done.add(value)
        elif missing := [v for v in node.inputs if v not in done]:
            pending += missing
        else:
            cone.nodes.append(node)
            done.update(node.outputs)
        if len(cone.nodes) > MAX_NODES or len(pending) > MAX_NODES:
            return None
    return cone


def _is_product(node: Node) -> bool:
    reads = all("tokens" in {s for d in v.type.shape for s in symbols_of(d)} for v in node.inputs)
    return isinstance(node.op, MatMul) and reads


def _positions(cone: _Cone, heads: int) -> int | None:
    """So many positions that every window shows: past twice each integer, or a table's whole."""
    data = [v.data for v in cone.leaves if v.data is not None and v.data.size]
    integers = [int(abs(x.flat[0])) for x in data if x.size == 1 and x.dtype.kind == "i"]
    wanted = max([LEAST_POSITIONS, *(2 * n + 3 for n in integers)])
    tables = [n for x in data if x.ndim > 1 for n in x.shape if n >= LEAST_POSITIONS and n != heads]
    squares = [x.shape[-1] for x in data if x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1]
    count = min([max([wanted, *squares]), *tables])
    return count if heads * count * count <= MAX_ELEMENTS else None


def _fit(cone: _Cone, root: Value, heads: int, count: int) -> Scores | None:
    assert cone.product is not None
    try:
        scores = [_evaluate(cone, root, count, s) for s in (0.0, 1.0, -3.0)]
    except (ValueError, IndexError, VerifyError):
        return None
    zero, one, other = (x.reshape(heads, count, count) for x in scores)
    seen = zero[0] >= HIDDEN
    kind = _kind(seen)
    if kind is None or any(np.any((x >= HIDDEN) != seen) for x in (zero, one, other)):
        return None
    scale = float(one[0, 0, 0] - zero[0, 0, 0])
    base = zero[:, seen]
    bent = np.abs(one[:, seen] - base - scale).max()
    bent += np.abs(other[:, seen] - base + 3 * scale).max()
    size = max(1.0, scale, float(np.abs(base).max()))
    slopes = _slopes(zero, seen)
    if slopes is None or not scale > 0 or bent > TOLERANCE * size:
        return None
    return Scores(cone.product, _short(scale), *kind, slopes if np.any(slopes) else None)


def _short(x: float) -> float:
    """The shortest decimal within a rounding of f32."""
    return float(f"{x:.7g}")


def _evaluate(cone: _Cone, root: Value, count: int, score: float) -> np.ndarray:
    """The softmax's operand for ``count`` positions when every score is ``score``."""
    assert cone.product is not None
    product = cone.product.outputs[0]
    sizes = {"tokens": count}
    known: dict[Value, np.ndarray] = {
        product: np.full(product.type.concrete(sizes), score, np.float32)
    }
    for leaf in cone.leaves:
        known[leaf] = np.arange(count, dtype=np.int32)[None] if leaf.data is None else leaf.data
    scored = {product}
    for node in cone.nodes:
        if scored & set(node.inputs):
            scored.update(node.outputs)
            if not isinstance(node.op, THROUGH):
                raise VerifyError(f"{node!r}: expected an op on each score by itself")
        with np.errstate(all="ignore"):
            result = substitute_op(node.op, sizes).reference(*(known[v] for v in node.inputs))
        results = result if isinstance(result, tuple) else (result,)
        known.update(zip(node.outputs, results, strict=True))
    return np.asarray(known[root], np.float64)


def _kind(seen: np.ndarray) -> tuple[bool, int | None] | None:
    """(causal, window) of a mask [queries, keys] that is the same for all heads."""
    count = len(seen)
    positions = np.arange(count)
    last = int(seen[-1].sum())
    windows = [None] if last == count else [last]
    for causal in (True, False):
        for window in windows:
            if np.array_equal(seen, visible_keys(positions, count, causal, window)):
                return causal, window
    return None


def _slopes(bias: np.ndarray, seen: np.ndarray) -> np.ndarray | None:
    """Per head, how a bias grows with the key; a softmax ignores what a whole row has in common."""
    count = bias.shape[-1]
    rows = np.arange(count)
    own = bias[:, rows, rows][:, :, None]
    shifted = np.where(seen[None], bias - own, 0.0)
    distance = np.where(seen, rows[None, :] - rows[:, None], 0)
    slopes = (shifted * distance).sum((1, 2)) / max(1, (distance**2).sum())
    wrong = np.abs(shifted - slopes[:, None, None] * distance).max()
    if wrong > TOLERANCE * max(1.0, np.abs(shifted).max()):
        return None
    return np.where(np.abs(slopes) < 1e-7, 0.0, slopes).astype(np.float32)
