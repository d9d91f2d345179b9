"""Rows for parts of an axis by index. Replacing them needs a machine that runs a program in order:
those rows are apart."""

from __future__ import annotations

from ...ir.dim import Dim, as_dim, cdiv, prod
from ...ir.dtype import I32
from ...ir.graph import Node
from ...ir.ops.indexing import PutAxis, TakeAxis
from ...ir.target import Target
from ..lowering import Lowering, i32
from ..table import OperatorRow
from .generic import BLOCK, operand

LONG = 16
"""Elements of a part that are worth a program of their own."""


def accepts_ids(node: Node, target: Target) -> str:
    ids = node.inputs[1].type
    return f"expected indices of i32, got {ids}" if ids.dtype != I32 else ""


def _sizes(shape: tuple[Dim, ...], axis: int) -> tuple[Dim, Dim, Dim]:
    """Outer, axis, inner."""
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def emit_take(node: Node, ctx: Lowering) -> None:
    op, (x, ids) = node.op, node.inputs
    assert isinstance(op, TakeAxis)
    outer, size, inner = _sizes(x.type.shape, op.axis)
    length = ids.type.shape[0]
    rows = as_dim(outer * length)
    total = as_dim(rows * inner)
    arguments = {
        "x": operand(ctx, x),
        "ids": operand(ctx, ids),
        "y": ctx.memory(node.outputs[0]),
        "length": i32(length),
        "inner": i32(inner),
        "size": i32(size),
    }
    constants = {"BLOCK": BLOCK}
    if isinstance(inner, int) and inner < LONG:
        arguments["total"] = i32(total)
        ctx.launch("indexing.take_axis", (cdiv(total, BLOCK), 1, 1), arguments, constants)
    else:
        grid = (rows, cdiv(inner, BLOCK), 1)
        ctx.launch("indexing.take_rows", grid, arguments, constants)


def emit_put(node: Node, ctx: Lowering) -> None:
    """A copy of x, in which parts are replaced."""
    op, (x, ids, src) = node.op, node.inputs
    assert isinstance(op, PutAxis)
    outer, size, inner = _sizes(x.type.shape, op.axis)
    y, total = ctx.memory(node.outputs[0]), x.type.size
    whole = {"x": operand(ctx, x), "y": y, "n": i32(total)}
    ctx.launch("elementwise.cast", (cdiv(total, BLOCK), 1, 1), whole, {"BLOCK": BLOCK})
    arguments = {
        "ids": operand(ctx, ids),
        "src": operand(ctx, src),
        "y": y,
        "length": i32(ids.type.shape[0]),
        "size": i32(size),
    }
    if inner == 1:
        ctx.launch("indexing.put_elements", (outer, 1, 1), arguments, {"HOW": op.how})
        return
    arguments["inner"] = i32(inner)
    grid = (outer, cdiv(inner, BLOCK), 1)
    ctx.launch("indexing.put_axis", grid, arguments, {"HOW": op.how, "BLOCK": BLOCK})


ROWS = (OperatorRow("take_axis", "triton-take-axis", "triton", 1, accepts_ids, emit_take),)
IN_ORDER = (OperatorRow("put_axis", "triton-put-axis", "triton", 1, accepts_ids, emit_put),)
