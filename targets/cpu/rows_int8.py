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
from ..lowering import Lowering, i32
from ..rows.linear import row_count
from ..table import OperatorRow
from .rows_native import (
    DEPTH,
    OFF,
    TILE_LAYOUT,
    accepts_integers,
    optional_operands,
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
    """Why the kernel here cannot run a product, or ""."""
    assert isinstance(node.op, Linear | GatedLinear)
    if node.op.rounded_from:
        return "expected integers for any number of rows"
    return accepts_integers_of(node, target)


def accepts_integers_of(node: Node, target: Target) -> str:
    """The same for few rows: all readers of integers agree on their order."""
    if reason := accepts_integers(node, target):
        return reason
    producer = node.inputs[0].producer
    assert producer is not None
    return accepts_quantize(producer, target)


def emit_product(node: Node, ctx: Lowering) -> None:
    launch(node, ctx, row_count(node.inputs[0]))


def launch(node: Node, ctx: Lowering, rows: Dim) -> None:
    """One call of the kernel for ``rows`` rows."""
    x, w, scales = node.inputs[:3]
    (y,) = node.outputs
    arguments = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, TILE_LAYOUT, "u8"),
        "y": ctx.memory(y),
        "rows": i32(rows),
        **optional_operands(node, ctx),
        "scales": ctx.memory(scales),
    }
    constants = product_constants(node)
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
    launch_quantize(node, ctx, row_count(node.inputs[0]))


def launch_quantize(node: Node, ctx: Lowering, rows: Dim) -> None:
    (x,), (integers, scales) = node.inputs, node.outputs
    arguments = {
        "x": ctx.memory(x),
        "integers": ctx.memory(integers),
        "scales": ctx.memory(scales),
    }
    k = int(x.type.shape[-1])
    ctx.launch_native("quantize_rows", (rows, 1, 1), arguments, {"K": k})


ROWS = (
    OperatorRow("linear", "c++-linear-int8", "c++", 20, accepts_product, emit_product),
    OperatorRow("gated_linear", "c++-gated-linear-int8", "c++", 20, accepts_product, emit_product),
    OperatorRow("quantize_rows", "c++-quantize-rows", "c++", 20, accepts_quantize, emit_quantize),
)
