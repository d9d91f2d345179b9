"""Rows of kernels written by hand for products of 8-bit activations (``native/kernels``).

`QuantizeRows` gives integers in order of K; its kernel here stores 8 of them in the order that the
weights' tiles have (``quantize_rows.h``). Only products of these rows read them.
"""

from __future__ import annotations

from ...ir.dim import Dim
from ...ir.graph import Node
from ...ir.ops.activations import QuantizeRows
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ..lowering import Lowering, Operand, i32
from ..rows.linear import row_count, vector
from ..table import OperatorRow
from .rows_native import (
    DEPTH,
    OFF,
    TILE_LAYOUT,
    accepts_integers,
    product_constants,
    product_grid,
)

SUMS = 1 << 18
"""K times rows of a program: the sums of x over groups are kept for all, at most 64 KB."""


def rows_of_program(k: int) -> int:
    """What an unpacked weight is used for.

    >>> rows_of_program(1536), rows_of_program(9728)
    (64, 16)
    """
    return 64 if 64 * k <= SUMS else 16


def accepts_product(node: Node, target: Target) -> str:
    """Why the kernel here cannot run a product: all readers of integers agree on their order."""
    if reason := accepts_integers(node, target):
        return reason
    producer = node.inputs[0].producer
    assert producer is not None
    return accepts_quantize(producer, target)


def emit_linear(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, Linear)
    rest = list(node.inputs[3:])
    bias = rest.pop(0) if op.has_bias else None
    residual = rest.pop(0) if op.has_residual else None
    optional = {
        "bias": vector(ctx, bias) if bias else None,
        "residual": ctx.memory(residual) if residual else None,
    }
    _launch(node, ctx, optional, op.activation, halves=1)


def emit_gated(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, GatedLinear)
    _launch(node, ctx, {"bias": None, "residual": None}, op.activation, halves=2)


def _launch(
    node: Node,
    ctx: Lowering,
    optional: dict[str, Operand | None],
    activation: str | None,
    halves: int,
) -> None:
    x, w, scales = node.inputs[:3]
    (y,) = node.outputs
    rows: Dim = row_count(x)
    arguments = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, TILE_LAYOUT, "u8"),
        "y": ctx.memory(y),
        "rows": i32(rows),
        **optional,
        "scales": ctx.memory(scales),
    }
    constants = product_constants(node, optional, activation, halves)
    constants["BLOCK_M"] = rows_of_program(constants["K"])
    ctx.launch_native("linear_int8", product_grid(constants, rows), arguments, constants)


def accepts_quantize(node: Node, target: Target) -> str:
    """Only with readers that know the order."""
    op = node.op
    assert isinstance(op, QuantizeRows)
    if not target.handwritten:
        return OFF
    if op.group != DEPTH:
        return f"expected groups of {DEPTH}, got {op.group}"
    return next((r for user in node.outputs[0].uses if (r := _refuses(user, target))), "")


def _refuses(user: Node, target: Target) -> str:
    if not isinstance(user.op, Linear | GatedLinear):
        return f"expected products of its integers, got {user.op.name}"
    return accepts_integers(user, target)


def emit_quantize(node: Node, ctx: Lowering) -> None:
    (x,), (integers, scales) = node.inputs, node.outputs
    arguments = {
        "x": ctx.memory(x),
        "integers": ctx.memory(integers),
        "scales": ctx.memory(scales),
    }
    k = int(x.type.shape[-1])
    ctx.launch_native("quantize_rows", (row_count(x), 1, 1), arguments, {"K": k})


ROWS = (
    OperatorRow("linear", "c++-linear-int8", "c++", 20, accepts_product, emit_linear),
    OperatorRow("gated_linear", "c++-gated-linear-int8", "c++", 20, accepts_product, emit_gated),
    OperatorRow("quantize_rows", "c++-quantize-rows", "c++", 20, accepts_quantize, emit_quantize),
)
