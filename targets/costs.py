"""Work of each kernel call of a program, from the costs of the ops, for the report.

A node may become several calls (its row quantizes, then multiplies): its cost belongs to all of
them together. Nodes of equal cost that became the same kernels form one group.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

from ..ir.dim import Dim, dim_text, symbols_of
from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import TensorType
from .artifact.program import Call, Program
from .lowering import Lowering

Types: TypeAlias = tuple[TensorType, ...]


def cost_records(lowering: Lowering, program: Program) -> dict[str, Any]:
    """``groups`` of equal work, and per bucket the group of each call, in order."""
    groups: dict[tuple[str, str, str, str, tuple[str, ...]], int] = {}
    buckets = []
    for bucket, emitted in zip(program.buckets, lowering.emitted, strict=True):
        calls, numbers = iter(bucket.calls), []
        for node, count in emitted:
            made = [next(calls) for _ in range(count)]
            key = _group(node, made, lowering, program.symbols)
            numbers += [groups.setdefault(key, len(groups))] * count if count else []
        buckets.append({"tokens_max": bucket.tokens_max, "calls": numbers})
    names = ("op", "row", "flops", "bytes", "kernels")
    return {"groups": [dict(zip(names, key, strict=True)) for key in groups], "buckets": buckets}


def _group(
    node: Node, calls: list[Call], lowering: Lowering, symbols: tuple[str, ...]
) -> tuple[str, str, str, str, tuple[str, ...]]:
    inputs, outputs = (tuple(v.type for v in values) for values in (node.inputs, node.outputs))
    flops, moved = _work(node.op, inputs, outputs, symbols)
    row = lowering.selection.chosen[node]
    kernels = tuple(call.kernel for call in calls)
    return node.op.name, row.name, flops, moved, kernels


@functools.lru_cache(maxsize=4096)
def _work(
    op: Op,
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    symbols: tuple[str, ...],
) -> tuple[str, str]:
    """Equal for each bucket and for equal layers."""
    cost = op.cost(inputs, outputs)
    return _text(cost.flops, symbols), _text(cost.bytes, symbols)


def _text(size: Dim, symbols: tuple[str, ...]) -> str:
    """Empty when a step's sizes do not give it, such as the whole of a state."""
    return dim_text(size) if symbols_of(size) <= set(symbols) else ""
