"""Rows for the KV cache and attention in Triton.

Keys lie along lanes: K is [head_dim, page], V [page, head_dim].
"""

from __future__ import annotations

import sympy

from ...ir.dim import Dim, as_dim
from ...ir.dtype import BF16, F16, F32
from ...ir.graph import Node, Value
from ...ir.ops.attention import PagedAttention, RopeWriteKv, WriteKv
from ...ir.target import Target
from ..lowering import Lowering, Operand, f32, i32, per_layer_bytes
from ..table import OperatorRow
from .linear import vector
from .token import next_power_of_two, width


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


def write_kv_operands(node: Node, ctx: Lowering) -> dict[str, Operand]:
    assert isinstance(node.op, WriteKv)
    state, k, v, slots = node.inputs
    return {
        "k": ctx.memory(k),
        "v": ctx.memory(v),
        "slots": ctx.memory(slots),
        **cache_operands(ctx, state, node.op.layer),
    }


def emit_write_kv(node: Node, ctx: Lowering) -> None:
    state, _, _, slots = node.inputs
    _, _, _, kv_heads, head_dim = state.type.shape
    arguments = write_kv_operands(node, ctx)
    constants = {
        "KV_HEADS": kv_heads,
        "D": head_dim,
        "PAGE": ctx.target.page_size,
        "BLOCK_D": next_power_of_two(int(head_dim)),
    }
    ctx.launch("rope.write_kv", (slots.type.size, 1, 1), arguments, constants)


def rope_write_kv_operands(node: Node, ctx: Lowering) -> dict[str, Operand | None]:
    assert isinstance(node.op, RopeWriteKv)
    qkv, cos, sin, state, slots, *norms = node.inputs
    return {
        "qkv": ctx.memory(qkv),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "q_norm": vector(ctx, norms[0]) if norms else None,
        "k_norm": vector(ctx, norms[1]) if norms else None,
        "slots": ctx.memory(slots),
        "q": ctx.memory(node.outputs[0]),
        "eps": f32(node.op.eps or 0.0),
        **cache_operands(ctx, state, node.op.layer),
    }


def emit_rope_write_kv(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, RopeWriteKv)
    _, cos, _, state, slots, *_ = node.inputs
    _, _, _, kv_heads, head_dim = state.type.shape
    half = width(cos)
    arguments = rope_write_kv_operands(node, ctx)
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


def attention_operands(node: Node, ctx: Lowering) -> dict[str, Operand | None]:
    op = node.op
    assert isinstance(op, PagedAttention)
    q, state, query_start, seq_lens, page_table, *sinks = node.inputs
    seqs, pages = page_table.type.shape
    return {
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


def emit_paged_attention(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, PagedAttention)
    q, state, _, _, page_table, *_ = node.inputs
    tokens, heads, head_dim = q.type.shape
    kv_heads = int(state.type.shape[3])
    group = int(heads) // kv_heads
    seqs, _ = page_table.type.shape
    block_m = attention_rows(ctx, group)
    arguments = attention_operands(node, ctx)
    constants = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "D": head_dim,
        "PAGE": ctx.target.page_size,
        "WINDOW": op.window or 0,
        "SOFTCAP": op.softcap or 0.0,
        "BLOCK_M": block_m,
        "BLOCK_D": next_power_of_two(int(head_dim)),
        "BF16": op.products == BF16,
    }
    tiles = as_dim(_tiles_below(tokens, group, block_m) + seqs)
    ctx.launch("attention.paged_attention", (kv_heads, tiles, 1), arguments, constants)


def _tiles_below(tokens: Dim, group: int, block_m: int) -> sympy.Expr:
    """tokens * group // block_m"""
    return sympy.floor(sympy.sympify(tokens) * group / block_m)


ROWS = (
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
)
