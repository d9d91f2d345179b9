"""In-place ops on values that nothing else sees, written without effect.

A single ``x /= total`` would send a whole program through torch's decomposition, which traces it
again: twice the time of the capture. Where the changed tensor is the fresh result of an op, and no
view of it was taken before, the op without effect on it says the same.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

FRESH = frozenset(
    f"aten::{name}"
    for name in (
        "add", "bmm", "cat", "cos", "div", "embedding", "exp", "gather", "index", "linear",
        "matmul", "mean", "mm", "mul", "neg", "pow", "rsqrt", "sigmoid", "silu", "sin", "softmax",
        "sub", "sum", "tanh", "topk", "where",
    )
)  # fmt: skip
"""Ops whose results share no memory with anything; others may hand an operand through."""
REWRITTEN = frozenset(f"aten::{name}_" for name in ("add", "sub", "mul", "div"))


def without_in_place(program: ExportedProgram) -> None:
    """Rewrite what can be in the program's own graph."""
    graph = program.graph
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        changed = node.args[0] if node.args else None
        if _schema_name(node.target) not in REWRITTEN or not isinstance(changed, fx.Node):
            continue
        if _is_plain(node) and _is_own(changed, node, order):
            _rewrite(graph, node, changed, order)


def _rewrite(graph: fx.Graph, node: fx.Node, changed: fx.Node, order: dict[fx.Node, int]) -> None:
    target: Any = node.target
    name = target._schema.name.removeprefix("aten::").removesuffix("_")
    plain = getattr(getattr(torch.ops.aten, name), target._overloadname)
    with graph.inserting_before(node):
        new = graph.call_function(plain, node.args, node.kwargs)
    new.meta = dict(node.meta)
    order[new] = order[node]
    node.replace_all_uses_with(new)
    changed.replace_all_uses_with(new, lambda user: order[user] > order[node])
    graph.erase_node(node)


def _schema_name(target: Any) -> str:
    return str(target._schema.name) if isinstance(target, torch._ops.OpOverload) else ""


def _is_plain(node: fx.Node) -> bool:
    """Operands of one float type: then the result has it too, in place or not."""
    tensors = [a.meta.get("val") for a in node.args if isinstance(a, fx.Node)]
    if not all(isinstance(value, torch.Tensor) for value in tensors):
        return False
    types = {value.dtype for value in tensors if isinstance(value, torch.Tensor)}
    return len(types) == 1 and next(iter(types)).is_floating_point


def _is_own(changed: fx.Node, node: fx.Node, order: dict[fx.Node, int]) -> bool:
    """A fresh value of which no view was taken before."""
    source = changed.args[0] if changed.target is operator.getitem else changed
    if not isinstance(source, fx.Node) or _schema_name(source.target) not in FRESH:
        return False
    earlier = [user for user in changed.users if order[user] < order[node]]
    return all(_schema_name(user.target) in FRESH for user in earlier)
