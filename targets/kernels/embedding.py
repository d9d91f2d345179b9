"""Rows of a table by index.

Layouts: ids i32 [T]; y f32 [T, K]. The table is one of
  gather_rows          [N, K] rows contiguous, f32, bf16 or f16 (also: rows of hidden states)
  gather_packed        n64, [cdiv(N, 64), K, 64] (`packing.pack_dense`)
  gather_quant         the sections of a block type (see quant_linear.py, `packing.pack_blocks`)
so that a head tied to the embedding needs one copy of the weight.
Grid: (T, 1, 1), one program per row. Limits: ids in 0..N-1, not checked; gather_quant: K % 32 == 0.
Values are exact: those of the table, or of ggml's dequantization, times `scale`, an f32 argument
(models that multiply their embedding by sqrt(hidden); 1.0 changes nothing).
"""

import triton
import triton.language as tl

from .norm import store_chunk
from .quant_linear import LANES, dequantize


@triton.jit
def gather_rows(table, ids, y, scale, K: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    table += tl.load(ids + t).to(tl.int64) * K
    y += t.to(tl.int64) * K
    for at in range(0, K, BLOCK):
        k = at + tl.arange(0, BLOCK)
        if K % BLOCK == 0:
            row = tl.load(table + k)
        else:
            row = tl.load(table + k, mask=k < K, other=0.0)
        store_chunk(y, at, row.to(tl.float32) * scale, K, BLOCK)


@triton.jit
def gather_packed(table, ids, y, scale, K: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    row = tl.load(ids + t)
    table += (row // LANES).to(tl.int64) * (K * LANES) + row % LANES
    y += t.to(tl.int64) * K
    for at in range(0, K, BLOCK):
        k = at + tl.arange(0, BLOCK)
        if K % BLOCK == 0:
            values = tl.load(table + k * LANES)
        else:
            values = tl.load(table + k * LANES, mask=k < K, other=0.0)
        store_chunk(y, at, values.to(tl.float32) * scale, K, BLOCK)


@triton.jit
def gather_quant(
    q, h, s, d, m, ids, y, scale, K: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0)
    row = tl.load(ids + t)
    block = (row // LANES).to(tl.int64)
    lane = row % LANES + tl.arange(0, 1)
    y += t.to(tl.int64) * K
    k = tl.arange(0, 32)[:, None]
    for g in range(K // 32):
        w = dequantize(q, h, s, d, m, block, g, lane, K, 2, BITS, GROUP, HAS_MIN, ZERO, SUPER)
        tl.store(y + g * 32 + k, w * scale)
