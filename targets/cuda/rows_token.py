"""Rows for the work around the products: embedding, norms, rotary tables, views."""

from __future__ import annotations

import sympy

from ...ir.dim import Dim, as_dim, prod
from ...ir.dtype import BF16, F32
from ...ir.graph import Node, Value
from ...ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from ...ir.ops.rope import Rope
from ...ir.target import Target
from ..lowering import Lowering, Operand, f32
from ..rows.linear import row_count, row_ranges, vector
from ..rows.token import emit_nothing, next_power_of_two, rope_table_operands, width
from ..table import OperatorRow, always
from .dependent import launch_options
from .fp8_rows import fp8_parts, warps_for
from .rows_linear import is_done_by_readers, multiplies_fp8

MAX_ROW = 16384
"""Elements of a row that a norm keeps in registers."""
GATHER_BLOCK = 1024
HEADS_PER_PROGRAM = 8


def head_parts(*counts: int) -> int:
    """Programs per token for heads of several kinds."""
    return sum(-(-count // HEADS_PER_PROGRAM) for count in counts)


# Embedding ------------------------------------------------------------------------------------


def accepts_embedding(node: Node, target: Target) -> str:
    table = node.inputs[0].type
    good = table.dtype in (F32, BF16) and all(isinstance(d, int) for d in table.shape)
    return "" if good else f"no kernel for {table}"


def emit_embedding(node: Node, ctx: Lowering) -> None:
    """The table lies row-major as products want it, so that a tied head shares it."""
    table, ids = node.inputs
    weight = ctx.weight(table, "row", table.type.dtype.name)
    _gather(ctx, weight, node, ids.type.size, width(table))


def emit_gather_rows(node: Node, ctx: Lowering) -> None:
    x, rows = node.inputs
    plain = ctx.weight(x, "row", x.type.dtype.name) if ctx.is_static(x) else ctx.memory(x)
    _gather(ctx, plain, node, rows.type.size, int(prod(x.type.shape[1:])))


def _gather(ctx: Lowering, table: Operand, node: Node, rows: object, k: int) -> None:
    arguments = {
        "table": table,
        "ids": ctx.memory(node.inputs[1]),
        "y": ctx.memory(node.outputs[0]),
        "scale": f32(1.0),
    }
    pdl, options = launch_options(ctx.target)
    constants = {"K": k, "BLOCK": min(GATHER_BLOCK, next_power_of_two(k)), **pdl}
    grid = (as_dim(rows), 1, 1)
    ctx.launch("row_tables.gather_rows", grid, arguments, constants, None, options)


# Norms ----------------------------------------------------------------------------------------


def accepts_norm(node: Node, target: Target) -> str:
    hidden = node.inputs[0].type.shape[-1]
    if not isinstance(hidden, int) or hidden > MAX_ROW:
        return f"expected rows of at most {MAX_ROW} elements, got {hidden}"
    return ""


def emit_rmsnorm(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, RmsNorm)
    x, w = node.inputs
    arguments = {"x": ctx.memory(x), "w": vector(ctx, w), "y": ctx.memory(node.outputs[0])}
    ranges = row_ranges(ctx, row_count(x))
    if multiplies_fp8(node.outputs[0], ctx, ranges[0][0]):
        arguments |= _fp8(node.outputs[0], ctx)
        _norm(node, ctx, "rmsnorm_fp8", arguments, node.op.eps, {"OFFSET": 0.0, "GROUP": 0})
        return
    needed = [guard for reach, guard in ranges if not is_done_by_readers(node, ctx, reach)]
    if len(needed) == len(ranges):
        _norm(node, ctx, "rmsnorm", arguments, node.op.eps, {"OFFSET": 0.0})
    elif needed:
        is_needed = as_dim(sum(sympy.sympify(guard) for guard in needed))
        _norm(node, ctx, "rmsnorm", arguments, node.op.eps, {"OFFSET": 0.0}, is_needed)


def emit_add_rmsnorm(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, AddRmsNorm)
    x, residual, w = node.inputs
    arguments = {
        "x": ctx.memory(x),
        "residual": ctx.memory(residual),
        "w": vector(ctx, w),
        "sum": ctx.memory(node.outputs[0]),
        "y": ctx.memory(node.outputs[1]),
    }
    if multiplies_fp8(node.outputs[1], ctx, row_ranges(ctx, row_count(x))[0][0]):
        arguments |= _fp8(node.outputs[1], ctx)
        _norm(node, ctx, "add_rmsnorm_fp8", arguments, node.op.eps, {"OFFSET": 0.0, "GROUP": 0})
    else:
        _norm(node, ctx, "add_rmsnorm", arguments, node.op.eps, {"OFFSET": 0.0})


def _fp8(y: Value, ctx: Lowering) -> dict[str, Operand]:
    """The result of a norm as fp8 rows, in its own memory."""
    parts = fp8_parts(y, ctx.memory(y))
    return {"y": parts["x"], "scales": parts["x_scale"]}


def emit_layernorm(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, LayerNorm)
    x, w, b = node.inputs
    arguments = {
        "x": ctx.memory(x),
        "w": vector(ctx, w),
        "b": vector(ctx, b),
        "y": ctx.memory(node.outputs[0]),
    }
    _norm(node, ctx, "layernorm", arguments, node.op.eps, {})


def _norm(
    node: Node,
    ctx: Lowering,
    name: str,
    arguments: dict[str, Operand],
    eps: float,
    constants: dict[str, object],
    is_needed: Dim = 1,
) -> None:
    """``is_needed``: 0 in steps that do without."""
    x = node.inputs[0]
    block = next_power_of_two(width(x))
    pdl, options = launch_options(ctx.target)
    every = {**constants, "HIDDEN": width(x), "BLOCK": block, **pdl}
    options["num_warps"] = warps_for(block)
    given = {**arguments, "eps": f32(eps)}
    rows = as_dim(sympy.sympify(row_count(x)) * is_needed)
    ctx.launch(f"row_norm.{name}", (rows, 1, 1), given, every, None, options)


# Rotary embedding -----------------------------------------------------------------------------


def emit_rope_table(node: Node, ctx: Lowering) -> None:
    positions, inv_freq = node.inputs
    half = width(inv_freq)
    pdl, options = launch_options(ctx.target)
    constants = {"HALF": half, "BLOCK_HALF": next_power_of_two(half), **pdl}
    grid = (positions.type.size, 1, 1)
    ctx.launch(
        "row_tables.rope_table", grid, rope_table_operands(node, ctx), constants, None, options
    )


def emit_rope(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, Rope)
    x, cos, sin = node.inputs
    tokens, heads, head_dim = x.type.shape
    arguments = {
        "x": ctx.memory(x),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "y": ctx.memory(node.outputs[0]),
    }
    pdl, options = launch_options(ctx.target)
    constants = {
        "HEADS": heads,
        "D": head_dim,
        "HALF": width(cos),
        "INTERLEAVED": node.op.interleaved,
        "BLOCK_H": HEADS_PER_PROGRAM,
        "BLOCK_HALF": next_power_of_two(width(cos)),
        "BLOCK_D": next_power_of_two(int(head_dim)),
        **pdl,
    }
    grid = (tokens, head_parts(int(heads)), 1)
    ctx.launch("rope_pages.rope", grid, arguments, constants, None, options)


ROWS = (
    OperatorRow("embedding", "triton-gather", "triton", 10, accepts_embedding, emit_embedding),
    OperatorRow("gather_rows", "triton-gather-rows", "triton", 10, always, emit_gather_rows),
    OperatorRow("rmsnorm", "triton-row-norm", "triton", 20, accepts_norm, emit_rmsnorm),
    OperatorRow("add_rmsnorm", "triton-add-row-norm", "triton", 20, accepts_norm, emit_add_rmsnorm),
    OperatorRow("layernorm", "triton-row-layernorm", "triton", 20, accepts_norm, emit_layernorm),
    OperatorRow("rope_table", "triton-rope-table", "triton", 10, always, emit_rope_table),
    OperatorRow("rope", "triton-rope-pages", "triton", 20, always, emit_rope),
    OperatorRow("reshape", "view", "view", 10, always, emit_nothing),
)
