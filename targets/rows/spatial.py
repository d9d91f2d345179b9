"""Rows for pools."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.dim import Dim, cdiv
from ...ir.graph import Node
from ...ir.ops.spatial import AvgPool, MaxPool
from ..lowering import Lowering, Operand, i32
from ..table import OperatorRow, always
from .generic import BLOCK, operand


def of_axes(name: str, values: Sequence[Dim], missing: int) -> dict[str, Operand]:
    """One argument for each of three axes; those in front may be missing."""
    full = (*(missing for _ in range(3 - len(values))), *values)
    return {f"{name}{axis}": i32(v) for axis, v in zip("dhw", full, strict=True)}


def window_arguments(node: Node, ctx: Lowering) -> dict[str, Operand]:
    """What both pools take."""
    op, x, y = node.op, node.inputs[0], node.outputs[0]
    assert isinstance(op, MaxPool | AvgPool)
    return {
        "x": operand(ctx, x),
        "y": ctx.memory(y),
        "total": i32(y.type.size),
        **of_axes("", x.type.shape[2:], 1),
        **of_axes("o", y.type.shape[2:], 1),
        **of_axes("k", op.kernel, 1),
        **of_axes("s", op.stride, 1),
        **of_axes("p", op.before, 0),
        **of_axes("e", op.dilation, 1),
    }


def emit_max_pool(node: Node, ctx: Lowering) -> None:
    arguments = {**window_arguments(node, ctx), "ids": ctx.memory(node.outputs[1])}
    grid = (cdiv(node.outputs[0].type.size, BLOCK), 1, 1)
    ctx.launch("pool.max_pool", grid, arguments, {"BLOCK": BLOCK})


def emit_avg_pool(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, AvgPool)
    arguments = {**window_arguments(node, ctx), "divisor": i32(op.divisor)}
    arguments |= of_axes("r", op.pads, 0)
    grid = (cdiv(node.outputs[0].type.size, BLOCK), 1, 1)
    constants = {"COUNT_PADDING": op.count_padding, "BLOCK": BLOCK}
    ctx.launch("pool.avg_pool", grid, arguments, constants)


ROWS = (
    OperatorRow("max_pool", "triton-max-pool", "triton", 1, always, emit_max_pool),
    OperatorRow("avg_pool", "triton-avg-pool", "triton", 1, always, emit_avg_pool),
)
