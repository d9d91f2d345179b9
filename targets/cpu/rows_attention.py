"""Rows for the KV cache and attention in C++ by hand, for products of bf16.

The layout of a cache follows the rows: those of `rows.cache` keep keys along lanes, these keep
pairs, as AMX tiles take them. Whoever writes and whoever reads a state decide by `refuses_pairs`,
which looks at the state and at all its readers, so they agree.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from ...ir.dim import as_dim, cdiv
from ...ir.dtype import BF16
from ...ir.graph import Node, Value
from ...ir.ops.attention import PagedAttention, RopeWriteKv, WriteKv
from ...ir.target import Target
from ..lowering import Lowering, f32, i32
from ..rows.cache import cache_operands
from ..rows.linear import vector
from ..rows.token import width
from ..table import OperatorRow
from .facts import AVX512

PAIR_PAGE = 32
"""Keys of a page in the kernels written by hand: the depth of one AMX product."""
SPLIT = 512
"""Keys that one softmax covers in them; part of the result's definition. Longer: fewer merges.
Shorter: more to share between threads, and scores that stay in the first cache."""
PARTIAL = 32
"""Floats of a partial result beside its head_dim."""
SLICES = 256
"""Parts that a batch's attention is cut into by cost: more than any machine here has cores."""


def state_of(node: Node) -> Value:
    return next(v for v in node.inputs if v.type.rank == 5)


def readers(state: Value) -> Iterator[PagedAttention]:
    """Every attention on any version of a state."""
    while state.producer is not None:
        state = state_of(state.producer)
    versions = [state]
    for version in versions:
        for node in version.uses:
            if isinstance(node.op, PagedAttention):
                yield node.op
            versions += [v for v in node.outputs if v.type.rank == 5]


def refuses_pairs(node: Node, target: Target) -> str:
    """Why the state of a node cannot be kept in pairs, or ""."""
    state = state_of(node)
    head_dim = state.type.shape[4]
    if not target.handwritten:
        return "kernels written by hand are switched off"
    if state.type.dtype != BF16:
        return f"expected a bf16 cache, got {state.type.dtype}"
    if any(op.products != BF16 for op in readers(state)):
        return "products of attention must stay f32"
    if target.arch not in AVX512:
        return f"needs AVX-512, {target.arch} may lack it"
    if target.page_size != PAIR_PAGE or any(op.page_size != PAIR_PAGE for op in readers(state)):
        return f"expected pages of {PAIR_PAGE}"
    if not isinstance(head_dim, int) or head_dim % 32 or head_dim > 256:
        return f"expected a head_dim of 32, 64 .. 256, got {head_dim}"
    return ""


def emit_write_pairs(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, WriteKv)
    state, k, v, slots = node.inputs
    _, _, _, kv_heads, head_dim = state.type.shape
    arguments = {
        "k": ctx.memory(k),
        "v": ctx.memory(v),
        "slots": ctx.memory(slots),
        **cache_operands(ctx, state, node.op.layer),
    }
    constants = {"KV_HEADS": int(kv_heads), "D": int(head_dim), "KV_BF16": k.type.dtype == BF16}
    ctx.launch_native("write_kv", (slots.type.size, 1, 1), arguments, constants)


def emit_rope_write_pairs(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, RopeWriteKv)
    qkv, cos, sin, state, slots, *norms = node.inputs
    q = node.outputs[0]
    _, _, _, kv_heads, head_dim = state.type.shape
    arguments = {
        "qkv": ctx.memory(qkv),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "slots": ctx.memory(slots),
        "q": ctx.memory(q),
        **cache_operands(ctx, state, node.op.layer),
        "eps": f32(node.op.eps or 0.0),
        "q_norm": vector(ctx, norms[0]) if norms else None,
        "k_norm": vector(ctx, norms[1]) if norms else None,
    }
    constants = {
        "HEADS": node.op.heads,
        "KV_HEADS": int(kv_heads),
        "D": int(head_dim),
        "HALF": width(cos),
        "INTERLEAVED": node.op.interleaved,
        "NORMS": bool(norms),
        "QKV_BF16": qkv.type.dtype == BF16,
        "Q_BF16": q.type.dtype == BF16,
    }
    ctx.launch_native("rope_write_kv", (slots.type.size, 1, 1), arguments, constants)


def emit_paired_attention(node: Node, ctx: Lowering) -> None:
    """Two calls: rows or their partial results, then the partial results merged."""
    op, y = node.op, node.outputs[0]
    assert isinstance(op, PagedAttention)
    q, state, query_start, seq_lens, page_table, *sinks = node.inputs
    kv_heads, head_dim = (int(d) for d in state.type.shape[3:])
    seqs, pages = page_table.type.shape
    splits = cdiv(as_dim(sympy.sympify(pages) * PAIR_PAGE), SPLIT)
    partials = sympy.sympify(seqs) * q.type.shape[1] * splits * (head_dim + PARTIAL)
    arguments = {
        "q": ctx.memory(q),
        **cache_operands(ctx, state, op.layer),
        "query_start": ctx.memory(query_start),
        "seq_lens": ctx.memory(seq_lens),
        "page_table": ctx.memory(page_table),
        "partials": ctx.scratch(as_dim(partials)),
        "y": ctx.memory(y),
        "seqs": i32(seqs),
        "pages": i32(pages),
        "scale": f32(op.scale),
        "sinks": vector(ctx, sinks[0]) if sinks else None,
    }
    constants = {
        "KV_HEADS": kv_heads,
        "GROUP": int(q.type.shape[1]) // kv_heads,
        "D": head_dim,
        "WINDOW": op.window or 0,
        "SOFTCAP": op.softcap or 0.0,
        "SINKS": bool(sinks),
        "SPLIT": SPLIT,
        "Q_BF16": q.type.dtype == BF16,
        "Y_BF16": y.type.dtype == BF16,
    }
    ctx.launch_native("paged_attention", (SLICES, 1, 1), arguments, constants)
    ctx.launch_native("combine_attention", (SLICES, 1, 1), arguments, constants)


ROWS = (
    OperatorRow("write_kv", "native-write-pairs", "native", 20, refuses_pairs, emit_write_pairs),
    OperatorRow(
        "rope_write_kv",
        "native-rope-write-pairs",
        "native",
        20,
        refuses_pairs,
        emit_rope_write_pairs,
    ),
    OperatorRow(
        "paged_attention",
        "native-paired-attention",
        "native",
        20,
        refuses_pairs,
        emit_paired_attention,
    ),
)
