"""Rows for the KV cache and attention: a cache of one row per key, keys split up for decoding.

K and V of a layer are [num_pages, kv_heads, page, head_dim] each. In a step of one token per
sequence, attention also does the rotary embedding and the write of the keys before it.
"""

from __future__ import annotations

import sympy

from ...ir.dim import Dim, as_dim, dim_min
from ...ir.dtype import BF16
from ...ir.graph import Node
from ...ir.ops.attention import PagedAttention, RopeWriteKv, WriteKv
from ...ir.target import Target
from ..lowering import Lowering, Operand, f32, i32
from ..rows.cache import cache_operands
from ..rows.linear import vector
from ..rows.token import next_power_of_two, width
from ..table import OperatorRow
from .attention_tiles import (
    DECODE_KEYS,
    DECODE_STAGES,
    DECODE_WARPS,
    MERGED_AT_ONCE,
    decode_tile,
    has_decode,
    is_decode,
    least_blocks,
    prompt_tile,
    prompt_tiles,
    splits,
)
from .dependent import launch_options
from .rows_token import HEADS_PER_PROGRAM, head_parts

ROPE_READS = (
    "k_cache", "v_cache", "seq_lens", "page_table", "sinks", "y", "partials", "pages", "splits",
    "scale",
)  # fmt: skip
"""What attention that rotates too takes of other decoding attention."""


def accepts_kv(node: Node, target: Target) -> str:
    state = next(v.type for v in node.inputs if v.type.rank == 5)
    if state.dtype != BF16:
        return f"no kernel for a {state.dtype} cache"
    return "" if isinstance(state.shape[4], int) else "expected a head_dim of known size"


def accepts_attention(node: Node, target: Target) -> str:
    op = node.op
    assert isinstance(op, PagedAttention)
    if op.page_size != target.page_size:
        return f"expected pages of {target.page_size}, got {op.page_size}"
    if op.scale <= 0:
        return f"expected a scale above 0, got {op.scale}"
    return accepts_kv(node, target)


# Cache ----------------------------------------------------------------------------------------


def emit_write_kv(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, WriteKv)
    state, k, v, slots = node.inputs
    kv_heads, head_dim = (int(d) for d in state.type.shape[3:])
    arguments = {
        "k": ctx.memory(k),
        "v": ctx.memory(v),
        "slots": ctx.memory(slots),
        **cache_operands(ctx, state, node.op.layer),
    }
    pdl, options = launch_options(ctx.target)
    constants = {
        "KV_HEADS": kv_heads,
        "D": head_dim,
        "PAGE": ctx.target.page_size,
        "BLOCK_H": HEADS_PER_PROGRAM,
        "BLOCK_D": next_power_of_two(head_dim),
        **pdl,
    }
    grid = (slots.type.size, 2 * head_parts(kv_heads), 1)
    ctx.launch("rope_pages.write_kv", grid, arguments, constants, None, options)


def emit_rope_write_kv(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, RopeWriteKv)
    qkv, cos, sin, state, slots, *norms = node.inputs
    kv_heads, head_dim = (int(d) for d in state.type.shape[3:])
    arguments: dict[str, Operand | None] = {
        "qkv": ctx.memory(qkv),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "q_norm": vector(ctx, norms[0]) if norms else None,
        "k_norm": vector(ctx, norms[1]) if norms else None,
        "slots": ctx.memory(slots),
        "q": ctx.memory(node.outputs[0]),
        "eps": f32(op.eps or 0.0),
        **cache_operands(ctx, state, op.layer),
    }
    pdl, options = launch_options(ctx.target)
    constants = {
        "HEADS": op.heads,
        "KV_HEADS": kv_heads,
        "D": head_dim,
        "HALF": width(cos),
        "INTERLEAVED": op.interleaved,
        "PAGE": ctx.target.page_size,
        "BLOCK_H": HEADS_PER_PROGRAM,
        "BLOCK_HALF": next_power_of_two(width(cos)),
        "BLOCK_D": next_power_of_two(head_dim),
        **pdl,
    }
    tokens = slots.type.size
    attention = reader_in_decode(node, ctx)
    if attention is not None:
        is_other = 1 - sympy.sympify(is_decode(tokens, attention.inputs[4].type.shape[0]))
        tokens = as_dim(tokens * is_other)
    grid = (tokens, head_parts(op.heads, kv_heads, kv_heads), 1)
    ctx.launch("rope_pages.rope_write_kv", grid, arguments, constants, None, options)


def reader_in_decode(rope: Node, ctx: Lowering) -> Node | None:
    """The attention that does this node's work in decode steps, if one does.

    Not for one sequence: its few programs find no room beside those of a GEMV, which takes up the
    chip with the layer's product, and start late (an 8B model's step: 4.12 ms, else 3.80).
    """
    op, (q, state) = rope.op, rope.outputs
    assert isinstance(op, RopeWriteKv)
    if ctx.bucket.high == 1:
        return None
    head_dim = int(state.type.shape[4])
    is_whole = 2 * width(rope.inputs[1]) == head_dim == next_power_of_two(head_dim)
    if op.interleaved or not is_whole or len(q.uses) != 1 or q in ctx.graph.outputs:
        return None
    (reader,) = q.uses
    is_same = isinstance(reader.op, PagedAttention) and reader.op.layer == op.layer
    is_same = is_same and reader.inputs[0] is q and reader.inputs[1] is state
    return reader if is_same and ctx.is_chosen(reader, ROWS) else None


def rope_in_decode(attention: Node, ctx: Lowering) -> Node | None:
    """The node whose work this attention does in decode steps, if any."""
    rope = attention.inputs[0].producer
    if rope is None or not isinstance(rope.op, RopeWriteKv) or not ctx.is_chosen(rope, ROWS):
        return None
    return rope if reader_in_decode(rope, ctx) is attention else None


# Attention ------------------------------------------------------------------------------------


def emit_paged_attention(node: Node, ctx: Lowering) -> None:
    """Sequences with one query by one kernel, those with more by another: a step may mix both.

    A step of as many tokens as sequences has no prompt (the device pads no other step to that), so
    it launches no program of the second; a step of several tokens of one sequence has nothing for
    the first.
    """
    op = node.op
    assert isinstance(op, PagedAttention)
    q, state, query_start, seq_lens, page_table, *sinks = node.inputs
    shared: dict[str, Operand | None] = {
        "query_start": ctx.memory(query_start),
        "seq_lens": ctx.memory(seq_lens),
        "y": ctx.memory(node.outputs[0]),
        "scale": f32(op.scale),
    }
    reading: dict[str, Operand | None] = {
        "q": ctx.memory(q),
        **cache_operands(ctx, state, op.layer),
        "page_table": ctx.memory(page_table),
        "sinks": vector(ctx, sinks[0]) if sinks else None,
        "seqs": i32(page_table.type.shape[0]),
        "pages": i32(page_table.type.shape[1]),
    }
    _decode(node, op, ctx, shared, reading)
    if ctx.bucket.high != 1:
        _prompts(node, op, ctx, shared | reading)


def _head_constants(node: Node, op: PagedAttention, ctx: Lowering) -> dict[str, object]:
    kv_heads, head_dim = (int(d) for d in node.inputs[1].type.shape[3:])
    return {
        "KV_HEADS": kv_heads,
        "GROUP": int(node.inputs[0].type.shape[1]) // kv_heads,
        "D": head_dim,
        "PAGE": ctx.target.page_size,
        "WINDOW": op.window or 0,
        "SOFTCAP": op.softcap or 0.0,
        "BLOCK_D": next_power_of_two(head_dim),
    }


def _decode(
    node: Node,
    op: PagedAttention,
    ctx: Lowering,
    shared: dict[str, Operand | None],
    reading: dict[str, Operand | None],
) -> None:
    """Keys of a sequence in parts; where there are several, a second kernel merges them."""
    heads, page_table = int(node.inputs[0].type.shape[1]), node.inputs[4]
    tokens, (seqs, pages) = node.inputs[0].type.shape[0], page_table.type.shape
    constants = _head_constants(node, op, ctx)
    kv_heads, head_dim = int(str(constants["KV_HEADS"])), int(str(constants["D"]))
    target = ctx.target
    parts = splits(target.programs, target.page_size, kv_heads, seqs, pages)
    size = as_dim(sympy.sympify(seqs) * parts * heads * (head_dim + 4))
    common = {**shared, "partials": ctx.scratch(size, "partials"), "splits": i32(parts)}
    pdl, options = launch_options(target)
    least = least_blocks(target, ctx.bucket.high, kv_heads)
    tile = {"BLOCK_M": max(16, next_power_of_two(heads // kv_heads)), "LEAST": least, **pdl}
    options |= {"num_warps": DECODE_WARPS, "num_stages": DECODE_STAGES}
    pdl |= {"BLOCK_N": DECODE_KEYS, "BLOCK_S": MERGED_AT_ONCE, "SPLIT": 0, "LEAST": least}
    is_needed = is_left = sympy.sympify(has_decode(tokens, seqs))
    rope = rope_in_decode(node, ctx)
    if rope is not None:
        is_pure = sympy.sympify(is_decode(tokens, seqs))
        grid = (kv_heads, seqs, as_dim(parts * is_pure))
        own = decode_tile(target, ctx.bucket.high, kv_heads, head_dim)
        fixed = {**constants, **tile, "AHEAD": own.ahead}
        _rope_decode(rope, ctx, grid, {**common, **reading}, fixed, options | own.options())
        is_left = is_needed * (1 - is_pure)
    ctx.launch(
        "decode_attention.decode_attention",
        (kv_heads, seqs, as_dim(parts * is_left)),
        {**common, **reading, "counters": None},
        {**constants, **pdl, "BLOCK_M": tile["BLOCK_M"], "MERGE": "combine"},
        None,
        options,
    )
    kept = {name: constants[name] for name in ("D", "WINDOW", "SOFTCAP", "BLOCK_D")}
    is_cut = sympy.sympify(dim_min(1, as_dim(parts - 1)))
    ctx.launch(
        "decode_attention.combine_attention",
        (heads, seqs, as_dim(is_cut * is_needed)),
        common,
        {**kept, **pdl, "HEADS": heads},
        None,
        options | {"num_warps": 4, "num_stages": 1},
    )


def _rope_decode(
    rope: Node,
    ctx: Lowering,
    grid: tuple[Dim, Dim, Dim],
    given: dict[str, Operand | None],
    constants: dict[str, object],
    options: dict[str, object],
) -> None:
    """A step of one token per sequence: from the layer's product, in one launch."""
    assert isinstance(rope.op, RopeWriteKv)
    qkv, cos, sin, _, slots, *norms = rope.inputs
    arguments = {name: given[name] for name in ROPE_READS} | {
        "qkv": ctx.memory(qkv),
        "cos": ctx.memory(cos),
        "sin": ctx.memory(sin),
        "q_norm": vector(ctx, norms[0]) if norms else None,
        "k_norm": vector(ctx, norms[1]) if norms else None,
        "slots": ctx.memory(slots),
        "eps": f32(rope.op.eps or 0.0),
    }
    kept = {name: value for name, value in constants.items() if name != "BLOCK_D"}
    ctx.launch("rope_attention.rope_attention", grid, arguments, kept, None, options)


def _prompts(
    node: Node, op: PagedAttention, ctx: Lowering, arguments: dict[str, Operand | None]
) -> None:
    constants = _head_constants(node, op, ctx)
    kv_heads, group = int(str(constants["KV_HEADS"])), int(str(constants["GROUP"]))
    tokens, seqs = (node.inputs[i].type.shape[0] for i in (0, 4))
    tile = prompt_tile(ctx.target, ctx.bucket.high, int(str(constants["D"])))
    pdl, options = launch_options(ctx.target)
    ctx.launch(
        "flash_attention.flash_attention",
        (kv_heads, prompt_tiles(tokens, seqs, group, tile.rows), 1),
        arguments,
        {
            **constants,
            **pdl,
            "BLOCK_M": tile.rows,
            "BLOCK_N": tile.keys,
            "MIN_QUERIES": 2,
            "LOADS": tile.loads,
            "AHEAD": 0,
        },
        None,
        options | tile.options(),
    )


ROWS = (
    OperatorRow("write_kv", "triton-write-rows", "triton", 20, accepts_kv, emit_write_kv),
    OperatorRow(
        "rope_write_kv", "triton-rope-write-rows", "triton", 20, accepts_kv, emit_rope_write_kv
    ),
    OperatorRow(
        "paged_attention",
        "triton-split-attention",
        "triton",
        20,
        accepts_attention,
        emit_paged_attention,
    ),
)
