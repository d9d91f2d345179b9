"""Rows that run on the matrix engines: linear layers and attention, written with tl.dot.

Weights stay as checkpoints store them, [N, K]: the vendor's operators take the same memory. No tile
is masked and every product has a whole tile (`kernels/whole_linear.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from ...ir.dim import Dim, as_dim, cdiv
from ...ir.dtype import BF16, F16, F32, DType
from ...ir.graph import Node, Value
from ...ir.ops.attention import PagedAttention
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ...passes.choose_tiles import TileChoice
from ..lowering import Lowering, Operand, TokenRange, i32
from ..rows.cache import attention_operands
from ..rows.generic import element_bytes
from ..rows.linear import row_count, row_ranges
from ..rows.token import next_power_of_two
from ..table import OperatorRow
from .capabilities import Chip
from .facts import PADDED_ROWS, KunlunTarget
from .tiling import Attention, Gemm, choose_attention, choose_gemm, is_power_of_two

NO_TILES = "the tiles of this generation's matrix engine are not published: row kernels only"
NARROW = 16
"""Least outputs of a product: weights of fewer are stored with rows of zeros below them."""
FEW = 16
"""Queries from which a sequence gets tiles of queries; below, one query and a group's heads."""
NOMINAL_QUERIES, NOMINAL_KEYS = 512, 2048
"""What the attention tile is chosen for: a chunk of a long prompt. One tile serves every bucket, as
the block of keys is part of the result."""


def chip_of(target: Target) -> Chip:
    assert isinstance(target, KunlunTarget)
    return target.chip


# Linear layers --------------------------------------------------------------------------------


def accepts_linear(node: Node, target: Target) -> str:
    """Why the SDNN row cannot run a linear node, or ""."""
    x, w = node.inputs[0].type, node.inputs[1].type
    if not chip_of(target).has_sdnn_tiles:
        return NO_TILES
    assert isinstance(node.op, Linear | GatedLinear)
    if x.dtype != F32 or node.op.has_side:
        return f"expected x of f32, got {x.dtype}"
    if not all(isinstance(d, int) for d in w.shape):
        return f"the weight has symbolic sizes {w}"
    if w.dtype not in (F32, BF16, F16):
        return f"no kernel for {w.dtype}"
    n, k = w.concrete({})
    halves = 2 if isinstance(node.op, GatedLinear) else 1
    if k % 16 or (halves == 2 and n // halves < NARROW):
        return f"expected K of a multiple of 16, and {NARROW} gated outputs or more, got {w}"
    return ""


def rows_max(reach: TokenRange) -> int:
    """Rows that every call of a range has memory for."""
    return max(PADDED_ROWS, reach.low)


def emit_linear(node: Node, ctx: Lowering) -> None:
    """Linear with optional bias, activation and residual; very wide ones in several launches."""
    op = node.op
    assert isinstance(op, Linear)
    x, w, *rest = node.inputs
    n, k = w.type.concrete({})
    bias = rest.pop(0) if op.has_bias else None
    gemm = Gemm(0, k, max(n, NARROW), w.type.dtype.name, has_bias=op.has_bias)
    layout = "row" if n >= NARROW else "row16"
    residual = rest.pop(0) if op.has_residual else None
    for start, width in n_parts(chip_of(ctx.target), gemm):
        part = replace(gemm, n=width)
        wide = element_bytes(w.type.dtype)
        arguments: dict[str, Operand | None] = {
            "x": ctx.memory(x),
            "w": ctx.weight(w, layout, w.type.dtype.name, start * k * wide),
            "bias": _bias(ctx, bias, start),
            "residual": ctx.memory(residual, 4 * start) if residual else None,
            "y": ctx.memory(node.outputs[0], 4 * start),
        }
        constants = {"ACT": op.activation or "none", "STRIDE": n}
        _launch(ctx, "whole_linear.linear", row_count(x), part, arguments, constants)


def _bias(ctx: Lowering, bias: Value | None, start: int) -> Operand | None:
    if bias is None:
        return None
    return ctx.weight(bias, "row", bias.type.dtype.name, start * element_bytes(bias.type.dtype))


def n_parts(chip: Chip, gemm: Gemm) -> list[tuple[int, int]]:
    """First output and width of each launch: fp16 products of many outputs are split.

    >>> from .capabilities import chip
    >>> n_parts(chip("xpu3"), Gemm(1, 4096, 248_320, "f16"))
    [(0, 124160), (124160, 124160)]
    """
    most = chip.fp16_linear_n_max
    if gemm.weight != "f16" or gemm.n <= most:
        return [(0, gemm.n)]
    count = -(-gemm.n // most)
    width = -(-gemm.n // count // 64) * 64
    return [(at, min(width, gemm.n - at)) for at in range(0, gemm.n, width)]


def emit_gated(node: Node, ctx: Lowering) -> None:
    """The first half of a gated MLP: both products and the activation in one kernel."""
    op = node.op
    assert isinstance(op, GatedLinear)
    x, w = node.inputs[:2]
    n, k = w.type.concrete({})
    arguments: dict[str, Operand | None] = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, "row", w.type.dtype.name),
        "y": ctx.memory(node.outputs[0]),
    }
    gemm = Gemm(0, k, n // 2, w.type.dtype.name, halves=2)
    constants = {"ACT": op.activation}
    _launch(ctx, "whole_linear.gated_linear", row_count(x), gemm, arguments, constants)


def _launch(
    ctx: Lowering,
    function: str,
    rows: Dim,
    gemm: Gemm,
    arguments: dict[str, Operand | None],
    constants: Mapping[str, object],
) -> None:
    """One launch for each range of row counts that the bucket has to serve."""
    for reach, guard in row_ranges(ctx, rows):
        tile = choose_gemm(chip_of(ctx.target), replace(gemm, rows=reach.nominal), rows_max(reach))
        block_m, block_n = tile.tile["BLOCK_M"], tile.tile["BLOCK_N"]
        grid = (as_dim(sympy.sympify(cdiv(rows, block_m)) * guard), -(-gemm.n // block_n), 1)
        sizes = {"K": gemm.k, "N": gemm.n, "HALF": gemm.weight == "f16"}
        own = {**constants, **sizes, **tile.tile}
        ctx.launch(function, grid, {**arguments, "rows": i32(rows)}, own, tile)


# Attention ------------------------------------------------------------------------------------


def accepts_attention(node: Node, target: Target) -> str:
    """Why the SDNN row cannot run an attention node, or ""."""
    op, chip = node.op, chip_of(target)
    assert isinstance(op, PagedAttention)
    q, state = node.inputs[0].type, node.inputs[1].type
    if not chip.has_sdnn_tiles:
        return NO_TILES
    if op.page_size != target.page_size:
        return f"expected pages of {target.page_size}, got {op.page_size}"
    if q.dtype != F32 or state.dtype not in (F32, BF16, F16):
        return f"expected f32 queries and a float cache, got {q} and {state}"
    head_dim = int(state.shape[4])
    if not is_power_of_two(head_dim) and head_dim not in chip.head_sizes:
        return f"expected a head_dim of {chip.head_sizes} or a power of two, got {head_dim}"
    return f"expected a head_dim of 16 or more, got {head_dim}" if head_dim < 16 else ""


def attention_tile(chip: Chip, heads: int, head_dim: int, cache: DType) -> TileChoice:
    wide = next_power_of_two(head_dim)
    problem = Attention(NOMINAL_QUERIES, NOMINAL_KEYS, heads, wide, cache.name)
    return choose_attention(chip, problem, chip.page_size)


def emit_attention(node: Node, ctx: Lowering) -> None:
    """Up to two launches: sequences of few queries, and those of many."""
    op = node.op
    assert isinstance(op, PagedAttention)
    q, state, _, _, page_table, *_ = node.inputs
    tokens, heads, head_dim = q.type.shape
    kv_heads = int(state.type.shape[3])
    seqs, _ = page_table.type.shape
    tile = attention_tile(chip_of(ctx.target), int(heads), int(head_dim), state.type.dtype)
    arguments = attention_operands(node, ctx)
    group = int(heads) // kv_heads
    constants = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "D": head_dim,
        "PAGE": ctx.target.page_size,
        "WINDOW": op.window or 0,
        "SOFTCAP": op.softcap or 0.0,
        "HALF": state.type.dtype == F16,
        "FEW": FEW,
        "BLOCK_N": tile.tile["BLOCK_N"],
        "BLOCK_D": next_power_of_two(int(head_dim)),
    }
    few = {**constants, "BLOCK_M": max(FEW, next_power_of_two(group))}
    ctx.launch("row_attention.few", (kv_heads, seqs, 1), arguments, few)
    if ctx.bucket.high is None or ctx.bucket.high >= FEW:
        tiles = as_dim(sympy.sympify(cdiv_floor(tokens, tile.tile["BLOCK_M"])) + seqs)
        many = {**constants, **tile.tile}
        ctx.launch("row_attention.many", (heads, tiles, 1), arguments, many, tile)


def cdiv_floor(tokens: Dim, block: int) -> Dim:
    """tokens // block"""
    return as_dim(sympy.floor(sympy.sympify(tokens) / block))


ROWS = (
    OperatorRow("linear", "sdnn-linear", "triton", 10, accepts_linear, emit_linear),
    OperatorRow("gated_linear", "sdnn-gated-linear", "triton", 10, accepts_linear, emit_gated),
    OperatorRow(
        "paged_attention", "sdnn-attention", "triton", 10, accepts_attention, emit_attention
    ),
)
