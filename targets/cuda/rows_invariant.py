"""Rows for ``--batch-invariant``: one order of sums whatever is computed in the same step.

A product is one chain of matrix-unit steps over ascending k for every number of rows: K is never
split, weights are always the same operand. Attention is one kernel for prompts, chunks and single
tokens, over blocks of keys counted from a sequence's start. Everything else works row by row.
"""

from __future__ import annotations

import sympy

from ...ir.dim import Dim, as_dim, floordiv
from ...ir.graph import Node
from ...ir.ops.attention import PagedAttention
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ..lowering import Lowering, Operand, f32, i32
from ..rows.cache import cache_operands
from ..rows.linear import row_count, row_ranges, vector
from ..rows.token import next_power_of_two
from ..table import OperatorRow
from . import rows_attention, rows_linear
from .dependent import launch_options

KERNEL = "split_k.linear"
BLOCK_K = 64
FEW, MANY = (64, 6, 4), (128, 3, 8)
"""BLOCK_N, num_stages and num_warps for up to 64 rows (bound by reading weights) and for more."""
SMALLEST, LARGEST = 16, 128
"""BLOCK_M: of few rows the next power of two."""
PER_UNIT = 3
"""Programs of the few rows' kernel that fit on a multiprocessor."""
TILE_ROWS, TILE_WARPS, NARROW_STAGES, WIDE_STAGES = 64, 4, 3, 2
"""Of attention; heads above 128 leave room for two stages."""


def accepts(node: Node, target: Target) -> str:
    return rows_linear.accepts(node, target) if target.batch_invariant else "not asked for"


def accepts_attention(node: Node, target: Target) -> str:
    known = rows_attention.accepts_attention(node, target)
    return known if target.batch_invariant else "not asked for"


def emit_product(node: Node, ctx: Lowering) -> None:
    """A linear with its epilogue, or both products of a gated MLP."""
    op = node.op
    assert isinstance(op, Linear | GatedLinear)
    gated = isinstance(op, GatedLinear)
    x, w, *rest = node.inputs
    bias = rest.pop(0) if isinstance(op, Linear) and op.has_bias else None
    residual = rest.pop(0) if isinstance(op, Linear) and op.has_residual else None
    n, k = w.type.concrete({})
    n = n // 2 if gated else n
    rows = row_count(x)
    arguments: dict[str, Operand | None] = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, "row", "bf16"),
        "bias": vector(ctx, bias) if bias else None,
        "residual": ctx.memory(residual) if residual else None,
        "y": ctx.memory(node.outputs[0]),
        "partials": None,
        "locks": None,
        "rows": i32(rows),
    }
    pdl, options = launch_options(ctx.target)
    fixed = {"K": k, "N": n, "ACT": op.activation or "none", "GATED": int(gated), **pdl}
    for reach, guard in row_ranges(ctx, rows):
        tile, how = product_tile(ctx.target, reach.high, 2 * n if gated else n)
        grid = (as_dim(tile["PROGRAMS"] * sympy.sympify(guard)), 1, 1)
        ctx.launch(KERNEL, grid, arguments, {**fixed, **tile}, None, {**options, **how})


def product_tile(
    target: Target, rows: int | None, w_rows: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Constants and compiler options for up to so many rows (None: any number)."""
    is_few = rows is not None and rows <= FEW[0]
    block_n, stages, warps = FEW if is_few else MANY
    block_m = max(SMALLEST, next_power_of_two(rows)) if rows is not None and is_few else LARGEST
    columns = -(-w_rows // block_n)
    if is_few:
        programs = min(columns, PER_UNIT * target.programs)
    else:
        programs = target.programs
    tile = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": BLOCK_K,
        "GROUP_M": 0 if rows is not None and rows <= block_m else 8,
        "PROGRAMS": programs, "STREAM": 0, "SWAP": 1,
    }  # fmt: skip
    return tile, {"num_warps": warps, "num_stages": stages}


def emit_attention(node: Node, ctx: Lowering) -> None:
    """Every sequence by the kernel for prompts."""
    op = node.op
    assert isinstance(op, PagedAttention)
    q, state, query_start, seq_lens, page_table, *sinks = node.inputs
    seqs, pages = page_table.type.shape
    kv_heads, head_dim = (int(d) for d in state.type.shape[3:])
    group = int(q.type.shape[1]) // kv_heads
    arguments: dict[str, Operand | None] = {
        "q": ctx.memory(q),
        **cache_operands(ctx, state, op.layer),
        "query_start": ctx.memory(query_start),
        "seq_lens": ctx.memory(seq_lens),
        "page_table": ctx.memory(page_table),
        "sinks": vector(ctx, sinks[0]) if sinks else None,
        "y": ctx.memory(node.outputs[0]),
        "seqs": i32(seqs),
        "pages": i32(pages),
        "scale": f32(op.scale),
    }
    pdl, options = launch_options(ctx.target)
    constants = {
        "KV_HEADS": kv_heads, "GROUP": group, "D": head_dim, "PAGE": ctx.target.page_size,
        "WINDOW": op.window or 0, "SOFTCAP": op.softcap or 0.0, "BLOCK_M": TILE_ROWS,
        "BLOCK_N": ctx.target.page_size, "BLOCK_D": next_power_of_two(head_dim),
        "MIN_QUERIES": 1, "LOADS": "pointers", "AHEAD": 0, **pdl,
    }  # fmt: skip
    options |= {
        "num_warps": TILE_WARPS,
        "num_stages": NARROW_STAGES if head_dim <= 128 else WIDE_STAGES,
    }
    grid = (kv_heads, attention_tiles(q.type.shape[0], seqs, group), 1)
    ctx.launch("flash_attention.flash_attention", grid, arguments, constants, None, options)


def attention_tiles(tokens: Dim, seqs: Dim, group: int) -> Dim:
    """Tiles of rows of all sequences."""
    whole = floordiv(as_dim(sympy.sympify(tokens) * group), TILE_ROWS)
    return as_dim(sympy.sympify(whole) + seqs)


ROWS = (
    OperatorRow("linear", "triton-invariant-product", "triton", 30, accepts, emit_product),
    OperatorRow("gated_linear", "triton-invariant-gated", "triton", 30, accepts, emit_product),
    OperatorRow(
        "paged_attention", "triton-invariant-attention", "triton", 30, accepts_attention,
        emit_attention,
    ),
)  # fmt: skip
