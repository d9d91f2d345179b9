"""Rows in Triton for products of bf16 and 8-bit activations, on the tiles of `rows_native`.

The same sums in the same order as the kernels written by hand, which they stand in for: see
`kernels/tile_linear.py`, and `docs/decisions/activations.md`.
"""

from __future__ import annotations

import sympy

from ...ir.dim import Dim, as_dim, cdiv
from ...ir.dtype import BF16, I8
from ...ir.graph import Node, Value
from ...ir.ops.activations import QuantizeRows, RoundRows
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ..kernels.packing import BLOCK_TYPES
from ..lowering import Lowering, Operand, TokenRange, i32
from ..rows.linear import row_count, row_ranges, vector
from ..table import OperatorRow
from . import rows_int8
from .rows_native import DEPTH, LANES, TILE_LAYOUT

FEW_ROWS = (1, 4, 16)
"""Rows of a program where the weights are most of the work."""
WHY = "its sums are AMX tiles of bf16 where the machine has them, its scales lie by its integers"


def accepts(node: Node, target: Target) -> str:
    """Why these rows cannot run a product, or ""."""
    x, w = node.inputs[0].type, node.inputs[1].type
    if x.dtype not in (BF16, I8):
        return f"expected x of bf16 or i8, got {x.dtype}"
    if not all(isinstance(d, int) for d in w.shape) or int(w.shape[1]) % DEPTH:
        return f"expected a weight with K a multiple of {DEPTH}, got {w}"
    if (w.dtype != BF16 or x.dtype == I8) and w.dtype.name not in BLOCK_TYPES:
        return f"no kernel for {x.dtype} and {w.dtype}"
    if x.dtype == I8 and _stored_by_hand(node, target):
        return "expected integers in order of K: their kernel by hand stores another"
    if isinstance(node.op, GatedLinear) and int(w.shape[0]) // 2 % LANES:
        return f"expected halves of a multiple of {LANES} rows, got {w}"
    assert isinstance(node.op, Linear | GatedLinear)
    if node.op.rounded_from:
        return "no kernel for weights rounded where rows are many"
    if x.dtype == BF16 != w.dtype and BLOCK_TYPES[w.dtype.name].has_min and not node.op.has_sums:
        return "expected the sums of x by group: the type has a minimum"
    return ""


def _stored_by_hand(node: Node, target: Target) -> bool:
    producer = node.inputs[0].producer
    return producer is not None and not rows_int8.accepts_quantize(producer, target)


def emit_linear(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, Linear)
    rest = list(node.inputs[2:])
    side = rest.pop(0) if op.has_side else None
    bias = rest.pop(0) if op.has_bias else None
    residual = rest.pop(0) if op.has_residual else None
    optional = {
        "bias": vector(ctx, bias) if bias else None,
        "residual": ctx.memory(residual) if residual else None,
    }
    _launch(node, ctx, side, optional, op.activation, 1)


def emit_gated(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, GatedLinear)
    _launch(node, ctx, node.inputs[2] if op.has_side else None, {}, op.activation, 2)


def _launch(
    node: Node,
    ctx: Lowering,
    side: Value | None,
    optional: dict[str, Operand | None],
    activation: str | None,
    halves: int,
) -> None:
    x, w = node.inputs[:2]
    n, k = w.type.concrete({})
    rows = row_count(x)
    arguments = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, TILE_LAYOUT, "u8"),
        "y": ctx.memory(node.outputs[0]),
        "rows": i32(rows),
        **optional,
    }
    constants: dict[str, object] = {"K": k, "N": n // halves, "ACT": activation or "none"}
    name = "tile_linear" if halves == 1 else "gated_tile_linear"
    if w.type.dtype == BF16:
        name = name.replace("tile", "dense_tile")
        constants["BLOCK_K"] = 2 * DEPTH if k % (2 * DEPTH) == 0 else DEPTH
    else:
        constants |= BLOCK_TYPES[w.type.dtype.name].constants
        has_scales = x.type.dtype == I8
        constants["WITH_SCALES"] = has_scales
        needed = has_scales or constants["HAS_MIN"]
        arguments["side"] = ctx.memory(side) if side and needed else None
    for reach, guard in row_ranges(ctx, rows):
        block_m, block_n = _tile(reach, halves, w.type.dtype == BF16)
        tiles = {"BLOCK_M": block_m, "BLOCK_N": block_n}
        grid = (_blocks(rows, block_m, guard), -(-(n // halves) // block_n), 1)
        ctx.launch(f"tile_linear.{name}", grid, arguments, {**constants, **tiles})


def _tile(reach: TokenRange, halves: int, is_dense: bool) -> tuple[int, int]:
    """Rows and outputs of a program, outputs of each half of a gated product.

    Unpacking a weight wants many rows to share it, what a group of x costs for itself (its sum,
    bf16 of integers) many outputs; and results should stay in the nearest cache.
    """
    for rows in FEW_ROWS:
        if reach.nominal <= rows:
            return rows, 64 // halves
    return (64, 32) if is_dense else (32, 64)


def _blocks(rows: Dim, block_m: int, guard: Dim) -> Dim:
    return as_dim(sympy.sympify(cdiv(rows, block_m)) * guard)


def accepts_round(node: Node, target: Target) -> str:
    assert isinstance(node.op, RoundRows)
    return "" if node.op.group == DEPTH else f"expected groups of {DEPTH}, got {node.op.group}"


def emit_round(node: Node, ctx: Lowering) -> None:
    (x,), (rounded, sums) = node.inputs, node.outputs
    arguments = {"x": ctx.memory(x), "rounded": ctx.memory(rounded), "sums": ctx.memory(sums)}
    constants = {"K": int(x.type.shape[-1])}
    ctx.launch("tile_linear.round_rows", (row_count(x), 1, 1), arguments, constants)


def accepts_quantize(node: Node, target: Target) -> str:
    assert isinstance(node.op, QuantizeRows)
    if not rows_int8.accepts_quantize(node, target):
        return "the kernel by hand stores integers in another order, which its readers expect"
    return "" if node.op.group == DEPTH else f"expected groups of {DEPTH}, got {node.op.group}"


def emit_quantize(node: Node, ctx: Lowering) -> None:
    (x,), (integers, scales) = node.inputs, node.outputs
    arguments = {
        "x": ctx.memory(x),
        "integers": ctx.memory(integers),
        "scales": ctx.memory(scales),
    }
    constants = {"K": int(x.type.shape[-1])}
    ctx.launch("tile_linear.quantize_rows", (row_count(x), 1, 1), arguments, constants)


def accepts_embedding(node: Node, target: Target) -> str:
    """A table that is the head's weight too, if the head takes it in tiles."""
    table = node.inputs[0]
    if table.type.dtype.name not in BLOCK_TYPES:
        return f"no kernel for {table.type.dtype}"
    heads = [user for user in table.uses if isinstance(user.op, Linear)]
    if not heads or any(accepts(head, target) for head in heads):
        return "no product of rounded activations has the same weight"
    return ""


def emit_embedding(node: Node, ctx: Lowering) -> None:
    table, ids = node.inputs
    arguments = {
        "table": ctx.weight(table, TILE_LAYOUT, "u8"),
        "ids": ctx.memory(ids),
        "y": ctx.memory(node.outputs[0]),
    }
    constants = {
        "K": int(table.type.shape[-1]),
        **BLOCK_TYPES[table.type.dtype.name].constants,
    }
    ctx.launch("tile_linear.gather_tiles", (ids.type.size, 1, 1), arguments, constants)


SHARES = "the head's weight is in tiles, and one copy serves both"
ROWS = (
    OperatorRow("linear", "triton-linear-tiles", "triton", 15, accepts, emit_linear, why=WHY),
    OperatorRow("gated_linear", "triton-gated-tiles", "triton", 15, accepts, emit_gated, why=WHY),
    OperatorRow("round_rows", "triton-round-rows", "triton", 10, accepts_round, emit_round),
    OperatorRow(
        "quantize_rows", "triton-quantize-rows", "triton", 10, accepts_quantize, emit_quantize
    ),
    OperatorRow(
        "embedding", "triton-gather-tiles", "triton", 15, accepts_embedding, emit_embedding,
        why=SHARES,
    ),
)  # fmt: skip
