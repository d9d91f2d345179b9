"""Rows for the work around the products: embedding, norms, rotary embedding."""

from __future__ import annotations

from ...ir.dim import prod
from ...ir.graph import Node, Value
from ...ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from ...ir.ops.rope import Rope, RopeTable
from ...ir.target import Target
from ..lowering import Lowering, Operand, f32
from ..table import OperatorRow, always
from .linear import reads, row_count, vector, weight_constants, weight_operands

ROW_BLOCK = 64
"""Elements of a row that a norm or a gather handles at a time: a divisor of most hidden sizes."""


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def width(value: Value) -> int:
    """The last dim, which must be a number."""
    return int(value.type.shape[-1])


def row_block(hidden: int) -> int:
    """The largest power of two up to 256 that divides the row, else the block that wastes least."""
    block = next(b for b in (256, 128, 64, 32, 16, 1) if hidden % b == 0)
    return block if block >= 16 else ROW_BLOCK


# Embedding ------------------------------------------------------------------------------------


def accepts_embedding(node: Node, target: Target) -> str:
    table = node.inputs[0].type
    known = reads(table.dtype)
    return (
        "" if known and all(isinstance(d, int) for d in table.shape) else f"no kernel for {table}"
    )


def emit_embedding(node: Node, ctx: Lowering) -> None:
    """Rows of the table in the head's own packed layout, so that tied weights are stored once."""
    table, ids = node.inputs
    k, dtype = width(table), table.type.dtype
    weight = weight_operands(ctx, table)
    arguments = {"ids": ctx.memory(ids), "y": ctx.memory(node.outputs[0]), "scale": f32(1.0)}
    constants: dict[str, object] = {"K": k}
    if dtype.is_block:
        constants |= weight_constants(dtype, k)
        gather = "embedding.gather_quant" if dtype.form is None else "group_linear.gather_groups"
        ctx.launch(gather, (ids.type.size, 1, 1), arguments | weight, constants)
    else:
        constants["BLOCK"] = row_block(k)
        arguments["table"] = _present(weight["w"])
        ctx.launch("embedding.gather_packed", (ids.type.size, 1, 1), arguments, constants)


def _present(operand: Operand | None) -> Operand:
    assert operand is not None
    return operand


def emit_gather_rows(node: Node, ctx: Lowering) -> None:
    x, rows = node.inputs
    k = int(prod(x.type.shape[1:]))
    plain = ctx.weight(x, "row", x.type.dtype.name) if ctx.is_static(x) else ctx.memory(x)
    arguments = {
        "table": plain,
        "ids": ctx.memory(rows),
        "y": ctx.memory(node.outputs[0]),
        "scale": f32(1.0),
    }
    constants = {"K": k, "BLOCK": row_block(k)}
    ctx.launch("embedding.gather_rows", (rows.type.size, 1, 1), arguments, constants)


# Norms ----------------------------------------------------------------------------------------


def rmsnorm_operands(node: Node, ctx: Lowering) -> dict[str, Operand]:
    assert isinstance(node.op, RmsNorm)
    x, w = node.inputs
    return {
        "x": ctx.memory(x),
        "w": vector(ctx, w),
        "y": ctx.memory(node.outputs[0]),
        "eps": f32(node.op.eps),
    }


def add_rmsnorm_operands(node: Node, ctx: Lowering) -> dict[str, Operand]:
    assert isinstance(node.op, AddRmsNorm)
    x, residual, w = node.inputs
    total, y = node.outputs
    return {
        "x": ctx.memory(x),
        "residual": ctx.memory(residual),
        "w": vector(ctx, w),
        "sum": ctx.memory(total),
        "y": ctx.memory(y),
        "eps": f32(node.op.eps),
    }


def layernorm_operands(node: Node, ctx: Lowering) -> dict[str, Operand]:
    assert isinstance(node.op, LayerNorm)
    x, w, b = node.inputs
    return {
        "x": ctx.memory(x),
        "w": vector(ctx, w),
        "b": vector(ctx, b),
        "y": ctx.memory(node.outputs[0]),
        "eps": f32(node.op.eps),
    }


def emit_rmsnorm(node: Node, ctx: Lowering) -> None:
    launch_norm(node, ctx, rmsnorm_operands(node, ctx), {"OFFSET": 0.0})


def emit_add_rmsnorm(node: Node, ctx: Lowering) -> None:
    launch_norm(node, ctx, add_rmsnorm_operands(node, ctx), {"OFFSET": 0.0})


def emit_layernorm(node: Node, ctx: Lowering) -> None:
    launch_norm(node, ctx, layernorm_operands(node, ctx), {})


def launch_norm(
    node: Node, ctx: Lowering, arguments: dict[str, Operand], constants: dict[str, object]
) -> None:
    """One program per row, on whatever memory the arguments name."""
    x = node.inputs[0]
    hidden = width(x)
    sizes = {"HIDDEN": hidden, "BLOCK": row_block(hidden), **constants}
    ctx.launch(f"norm.{node.op.name}", (row_count(x), 1, 1), arguments, sizes)


# Rotary embedding -----------------------------------------------------------------------------


def rope_table_operands(node: Node, ctx: Lowering) -> dict[str, Operand]:
    assert isinstance(node.op, RopeTable)
    positions, inv_freq = node.inputs
    cos, sin = node.outputs
    return {
        "positions": ctx.memory(positions),
        "inv_freq": vector(ctx, inv_freq),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "scale": f32(node.op.scale),
    }


def rope_operands(node: Node, ctx: Lowering) -> dict[str, Operand]:
    x, cos, sin = node.inputs
    return {
        "x": ctx.memory(x),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "y": ctx.memory(node.outputs[0]),
    }


def emit_rope_table(node: Node, ctx: Lowering) -> None:
    positions, inv_freq = node.inputs
    half = width(inv_freq)
    arguments = rope_table_operands(node, ctx)
    constants = {"HALF": half, "BLOCK_HALF": next_power_of_two(half)}
    ctx.launch("rope.rope_table", (positions.type.size, 1, 1), arguments, constants)


def emit_rope(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, Rope)
    x, cos, _ = node.inputs
    tokens, heads, head_dim = x.type.shape
    half = width(cos)
    arguments = rope_operands(node, ctx)
    constants = {
        "HEADS": heads,
        "D": head_dim,
        "HALF": half,
        "INTERLEAVED": node.op.interleaved,
        "BLOCK_HALF": next_power_of_two(half),
        "BLOCK_D": next_power_of_two(int(head_dim)),
    }
    ctx.launch("rope.rope", (tokens, 1, 1), arguments, constants)


def emit_nothing(node: Node, ctx: Lowering) -> None:
    """A view: the result shares its operand's memory."""


ROWS = (
    OperatorRow("embedding", "triton-gather", "triton", 10, accepts_embedding, emit_embedding),
    OperatorRow("gather_rows", "triton-gather-rows", "triton", 10, always, emit_gather_rows),
    OperatorRow("rmsnorm", "triton-rmsnorm", "triton", 10, always, emit_rmsnorm),
    OperatorRow("add_rmsnorm", "triton-add-rmsnorm", "triton", 10, always, emit_add_rmsnorm),
    OperatorRow("layernorm", "triton-layernorm", "triton", 10, always, emit_layernorm),
    OperatorRow("rope_table", "triton-rope-table", "triton", 10, always, emit_rope_table),
    OperatorRow("rope", "triton-rope", "triton", 10, always, emit_rope),
    OperatorRow("reshape", "view", "view", 10, always, emit_nothing),
)
