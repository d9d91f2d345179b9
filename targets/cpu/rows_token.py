"""Rows for the work around the products: embedding, norms, rotary embedding, cache, attention."""

from __future__ import annotations

import sympy

from ...ir.dim import Dim, as_dim
from ...ir.dtype import BF16, F16, F32
from ...ir.graph import Node, Value
from ...ir.ops.attention import PagedAttention, RopeWriteKv, WriteKv
from ...ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from ...ir.ops.rope import Rope, RopeTable
from ...ir.target import Target
from ..kernels.packing import BLOCK_TYPES
from ..lowering import Lowering, Operand, f32, i32, per_layer_bytes
from ..table import OperatorRow, always
from .rows_linear import row_count, vector, weight_operands

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
    known = table.dtype.name in BLOCK_TYPES or table.dtype in (F32, BF16, F16)
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
        constants |= BLOCK_TYPES[dtype.name].constants
        ctx.launch("embedding.gather_quant", (ids.type.size, 1, 1), arguments | weight, constants)
    else:
        constants["BLOCK"] = row_block(k)
        arguments["table"] = _present(weight["w"])
        ctx.launch("embedding.gather_packed", (ids.type.size, 1, 1), arguments, constants)


def _present(operand: Operand | None) -> Operand:
    assert operand is not None
    return operand


def emit_gather_rows(node: Node, ctx: Lowering) -> None:
    x, rows = node.inputs
    k = int(as_dim(x.type.size / x.type.shape[0]))
    arguments = {
        "table": ctx.memory(x),
        "ids": ctx.memory(rows),
        "y": ctx.memory(node.outputs[0]),
        "scale": f32(1.0),
    }
    constants = {"K": k, "BLOCK": row_block(k)}
    ctx.launch("embedding.gather_rows", (rows.type.size, 1, 1), arguments, constants)


# Norms ----------------------------------------------------------------------------------------


def emit_rmsnorm(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, RmsNorm)
    x, w = node.inputs
    arguments = {
        "x": ctx.memory(x),
        "w": vector(ctx, w),
        "y": ctx.memory(node.outputs[0]),
        "eps": f32(node.op.eps),
    }
    hidden = width(x)
    constants = {"HIDDEN": hidden, "OFFSET": 0.0, "BLOCK": row_block(hidden)}
    ctx.launch("norm.rmsnorm", (row_count(x), 1, 1), arguments, constants)


def emit_add_rmsnorm(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, AddRmsNorm)
    x, residual, w = node.inputs
    total, y = node.outputs
    arguments = {
        "x": ctx.memory(x),
        "residual": ctx.memory(residual),
        "w": vector(ctx, w),
        "sum": ctx.memory(total),
        "y": ctx.memory(y),
        "eps": f32(node.op.eps),
    }
    hidden = width(x)
    constants = {"HIDDEN": hidden, "OFFSET": 0.0, "BLOCK": row_block(hidden)}
    ctx.launch("norm.add_rmsnorm", (row_count(x), 1, 1), arguments, constants)


def emit_layernorm(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, LayerNorm)
    x, w, b = node.inputs
    arguments = {
        "x": ctx.memory(x),
        "w": vector(ctx, w),
        "b": vector(ctx, b),
        "y": ctx.memory(node.outputs[0]),
        "eps": f32(node.op.eps),
    }
    hidden = width(x)
    constants = {"HIDDEN": hidden, "BLOCK": row_block(hidden)}
    ctx.launch("norm.layernorm", (row_count(x), 1, 1), arguments, constants)


# Rotary embedding and cache -------------------------------------------------------------------


def emit_rope_table(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, RopeTable)
    positions, inv_freq = node.inputs
    cos, sin = node.outputs
    half = width(inv_freq)
    arguments = {
        "positions": ctx.memory(positions),
        "inv_freq": vector(ctx, inv_freq),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "scale": f32(node.op.scale),
    }
    constants = {"HALF": half, "BLOCK_HALF": next_power_of_two(half)}
    ctx.launch("rope.rope_table", (positions.type.size, 1, 1), arguments, constants)


def emit_rope(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, Rope)
    x, cos, sin = node.inputs
    tokens, heads, head_dim = x.type.shape
    half = width(cos)
    arguments = {
        "x": ctx.memory(x),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "y": ctx.memory(node.outputs[0]),
    }
    constants = {
        "HEADS": heads,
        "D": head_dim,
        "HALF": half,
        "INTERLEAVED": node.op.interleaved,
        "BLOCK_HALF": next_power_of_two(half),
        "BLOCK_D": next_power_of_two(int(head_dim)),
    }
    ctx.launch("rope.rope", (tokens, 1, 1), arguments, constants)


def accepts_kv(node: Node, target: Target) -> str:
    state = next(v.type for v in node.inputs if v.type.rank == 5)
    return "" if state.dtype in (F32, BF16, F16) else f"no kernel for a {state.dtype} cache"


def cache_operands(ctx: Lowering, state: Value, layer: int) -> dict[str, Operand]:
    """K [num_pages, heads, head_dim, page] and V [num_pages, heads, page, head_dim] of a layer."""
    part = sympy.sympify(per_layer_bytes(state, ctx.target.page_size))
    return {
        "k_cache": ctx.memory(state, as_dim(part * (2 * layer))),
        "v_cache": ctx.memory(state, as_dim(part * (2 * layer + 1))),
    }


def emit_write_kv(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, WriteKv)
    state, k, v, slots = node.inputs
    _, _, _, kv_heads, head_dim = state.type.shape
    arguments = {
        "k": ctx.memory(k),
        "v": ctx.memory(v),
        "slots": ctx.memory(slots),
        **cache_operands(ctx, state, node.op.layer),
    }
    constants = {
        "KV_HEADS": kv_heads,
        "D": head_dim,
        "PAGE": ctx.target.page_size,
        "BLOCK_D": next_power_of_two(int(head_dim)),
    }
    ctx.launch("rope.write_kv", (slots.type.size, 1, 1), arguments, constants)


def emit_rope_write_kv(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, RopeWriteKv)
    qkv, cos, sin, state, slots = node.inputs
    _, _, _, kv_heads, head_dim = state.type.shape
    half = width(cos)
    arguments: dict[str, Operand | None] = {
        "qkv": ctx.memory(qkv),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "q_norm": None,
        "k_norm": None,
        "slots": ctx.memory(slots),
        "q": ctx.memory(node.outputs[0]),
        "eps": f32(0.0),
        **cache_operands(ctx, state, node.op.layer),
    }
    constants = {
        "HEADS": node.op.heads,
        "KV_HEADS": kv_heads,
        "D": head_dim,
        "HALF": half,
        "INTERLEAVED": node.op.interleaved,
        "PAGE": ctx.target.page_size,
        "BLOCK_HALF": next_power_of_two(half),
        "BLOCK_D": next_power_of_two(int(head_dim)),
    }
    ctx.launch("rope.rope_write_kv", (slots.type.size, 1, 1), arguments, constants)


# Attention ------------------------------------------------------------------------------------


def accepts_attention(node: Node, target: Target) -> str:
    assert isinstance(node.op, PagedAttention)
    if node.op.page_size != target.page_size:
        return f"expected pages of {target.page_size}, got {node.op.page_size}"
    return accepts_kv(node, target)


def attention_rows(ctx: Lowering, group: int) -> int:
    """Rows (queries times heads of a group) of one tile: decode tiles hold one query."""
    if ctx.bucket.high is not None:
        return next_power_of_two(group)
    return 64


def emit_paged_attention(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, PagedAttention)
    q, state, query_start, seq_lens, page_table, *sinks = node.inputs
    tokens, heads, head_dim = q.type.shape
    kv_heads = int(state.type.shape[3])
    group = int(heads) // kv_heads
    seqs, pages = page_table.type.shape
    block_m = attention_rows(ctx, group)
    arguments: dict[str, Operand | None] = {
        "q": ctx.memory(q),
        "query_start": ctx.memory(query_start),
        "seq_lens": ctx.memory(seq_lens),
        "page_table": ctx.memory(page_table),
        "sinks": vector(ctx, sinks[0]) if sinks else None,
        "y": ctx.memory(node.outputs[0]),
        "seqs": i32(seqs),
        "pages": i32(pages),
        "scale": f32(op.scale),
        **cache_operands(ctx, state, op.layer),
    }
    constants = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "D": head_dim,
        "PAGE": ctx.target.page_size,
        "WINDOW": op.window or 0,
        "SOFTCAP": op.softcap or 0.0,
        "BLOCK_M": block_m,
        "BLOCK_D": next_power_of_two(int(head_dim)),
    }
    tiles = as_dim(_tiles_below(tokens, group, block_m) + seqs)
    ctx.launch("attention.paged_attention", (kv_heads, tiles, 1), arguments, constants)


def _tiles_below(tokens: Dim, group: int, block_m: int) -> sympy.Expr:
    """tokens * group // block_m"""
    return sympy.floor(sympy.sympify(tokens) * group / block_m)


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
    OperatorRow("write_kv", "triton-write-kv", "triton", 10, accepts_kv, emit_write_kv),
    OperatorRow(
        "rope_write_kv", "triton-rope-write-kv", "triton", 10, accepts_kv, emit_rope_write_kv
    ),
    OperatorRow(
        "paged_attention",
        "triton-paged-attention",
        "triton",
        10,
        accepts_attention,
        emit_paged_attention,
    ),
    OperatorRow("reshape", "view", "view", 10, always, emit_nothing),
)
