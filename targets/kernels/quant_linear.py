"""Linear layers on block-quantized weights: y[M, N] = epilogue(x[M, K] @ W[N, K]^T).

W stays in its block type and is dequantized tile by tile, in ggml's own order of f32 operations, so
that each weight has exactly the value `gguf.quants.dequantize` gives it.

Layouts (all made by `packing.pack_blocks`; one column block is 64 outputs, g counts groups of 32 k)
  x   f32 [M, K];  bias f32 [N] or None;  residual f32 [M, N] or None;  y f32 [M, N]
  q   BITS < 8: u8 [N/64, K/32, 16, 64], byte [., g, r, .] = low 4 bits of q[32g+r]
      | low 4 bits of q[32g+16+r] << 4;  BITS = 8: i8 [N/64, K/32, 32, 64]
  h   BITS = 5: u8 [N/64, K/32, 4, 64], bit i of byte r = bit 4 of q[32g+8r+i]
      BITS = 6: u8 [N/64, K/32, 8, 64], bits 2i, 2i+1 of byte r = q[32g+4r+i] >> 4;  else None
  s   sub-scales of super-block types (K % 256 == 0), else None
      GROUP = 32 (Q4_K, Q5_K): u8 [N/64, K/256, 12, 64], 6-bit scale and minimum of sub-block j:
      byte j = sc & 15 | (mn & 15) << 4; byte 8 + j//2, shifted right by 4 (j%2),
      = sc >> 4 | (mn >> 4) << 2.     GROUP = 16 (Q6_K): i8 [N/64, K/16, 64]
  d   f16 [N/64, K/32, 64], SUPER: [N/64, K/256, 64];  m  the minimum likewise, None if not HAS_MIN
  Arguments that are None are given as constants and are no parameters of the compiled kernel.
Types (BITS, GROUP, HAS_MIN, ZERO, SUPER), see `packing.BLOCK_TYPES[name].constants`:
  q4_0 4 32 - 8 -   d*(q-8)        q5_0 5 32 - 16 -  d*(q-16)      q8_0 8 32 - 0 -   d*q
  q4_1 4 32 m 0 -   d*q + m        q5_1 5 32 m 0 -   d*q + m       q6_k 6 16 - 32 S  (d*sc)*(q-32)
  q4_k 4 32 m 0 S   (d*sc)*q - (m*mn)                q5_k 5 32 m 0 S  the same
Grid: (cdiv(M, BLOCK_M), cdiv(N, 64), 1). Limits: BLOCK_M a power of two from 1 to 64; K % 32 == 0,
  K % 256 == 0 for SUPER; any N. rows = M is an i32.
Numerics: as `linear.py`, one fma chain over ascending k, the same bits for every BLOCK_M.
"""

import triton
import triton.language as tl

from .activation import activate
from .linear import LANES, finish, load_x, store_y


@triton.jit
def high_bits(h, k, lane, BITS: tl.constexpr):
    """What lies above the low 4 bits of q[k], as i32, already shifted to bit 4; k in 0..31."""
    if BITS == 5:
        byte = tl.load(h + (k // 8)[:, None] * LANES + lane[None, :]).to(tl.int32)
        bits = ((byte >> (k % 8)[:, None]) & 1) << 4
    else:
        byte = tl.load(h + (k // 4)[:, None] * LANES + lane[None, :]).to(tl.int32)
        bits = ((byte >> (k % 4 * 2)[:, None]) & 3) << 4
    return bits


@triton.jit
def quants(
    q, h, block, g, lane,
    K: tl.constexpr, HALF: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """f32 tile [16, lanes] of q[32g + 16*HALF + 0..15] - ZERO; exact."""
    r = tl.arange(0, 16)
    if BITS == 8:
        at = q + block * (K * LANES) + g * (32 * LANES)
        value = tl.load(at + (HALF * 16 + r)[:, None] * LANES + lane[None, :]).to(tl.float32)
    else:
        at = q + block * (K // 2 * LANES) + g * (16 * LANES)
        byte = tl.load(at + r[:, None] * LANES + lane[None, :])
        if HALF == 0:
            low = byte & 15
        else:
            low = byte >> 4
        if BITS > 4:
            plane = h + block * (K // 8 * (BITS - 4) * LANES) + g * (4 * (BITS - 4) * LANES)
            value = low.to(tl.int32) | high_bits(plane, HALF * 16 + r, lane, BITS)
        else:
            value = low.to(tl.int32)
        value = (value - ZERO).to(tl.float32)
    return value


@triton.jit
def group_scale(
    s, d, m, block, g, lane, K: tl.constexpr, HALF: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """Scale and minimum (to be added) of half a group, f32 rows [lanes]."""
    minimum = tl.zeros((1,), tl.float32)
    if not SUPER:
        at = block * (K // 32 * LANES) + g * LANES
        scale = tl.load((d + at) + lane).to(tl.float32)
        if HAS_MIN:
            minimum = tl.load((m + at) + lane).to(tl.float32)
    else:
        at = block * (K // 256 * LANES) + g // 8 * LANES
        scale = tl.load((d + at) + lane).to(tl.float32)
        if GROUP == 16:
            sub = s + block * (K // 16 * LANES) + (g * 2 + HALF) * LANES
            scale *= tl.load(sub + lane).to(tl.float32)
        else:
            sub = s + block * (K // 256 * 12 * LANES) + g // 8 * (12 * LANES) + lane
            j = g % 8
            low = tl.load(sub + j * LANES).to(tl.int32)
            high = tl.load(sub + (8 + j // 2) * LANES).to(tl.int32) >> (j % 2 * 4)
            scale *= ((low & 15) | ((high & 3) << 4)).to(tl.float32)
            mn = (low >> 4) | (((high >> 2) & 3) << 4)
            minimum = -(tl.load((m + at) + lane).to(tl.float32) * mn.to(tl.float32))
    return scale, minimum


@triton.jit
def dequantize(
    q, h, s, d, m, block, g, lane, K: tl.constexpr, HALF: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """f32 tile [16, lanes]: W at k = 32g + 16*HALF + 0..15 of column block `block`.

    `block` is an i64: big weights pass 2^31 elements.
    """
    scale, minimum = group_scale(s, d, m, block, g, lane, K, HALF, GROUP, HAS_MIN, SUPER)
    w = scale[None, :] * quants(q, h, block, g, lane, K, HALF, BITS, ZERO)
    if HAS_MIN:
        w += minimum[None, :]
    return w


@triton.jit
def dot_group(
    acc, x, q, h, s, d, m, block, g, rows,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """acc + x[:, 32g:32g+32] @ W's group g of one column block, k ascending."""
    i = tl.arange(0, BLOCK_M)
    r = tl.arange(0, 16)
    lane = tl.arange(0, LANES)
    low = dequantize(q, h, s, d, m, block, g, lane, K, 0, BITS, GROUP, HAS_MIN, ZERO, SUPER)
    xs = load_x(x, i, g * 32 + r, rows, K, BLOCK_M, True)
    acc = tl.dot(xs, low, acc, input_precision="ieee")
    high = dequantize(q, h, s, d, m, block, g, lane, K, 1, BITS, GROUP, HAS_MIN, ZERO, SUPER)
    xs = load_x(x, i, g * 32 + 16 + r, rows, K, BLOCK_M, True)
    return tl.dot(xs, high, acc, input_precision="ieee")


@triton.jit
def quant_linear(
    x, q, h, s, d, m, bias, residual, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, BLOCK_M: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, HAS_MIN: tl.constexpr,
    ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual."""
    m0 = tl.program_id(0) * BLOCK_M
    block = tl.program_id(1)
    x += m0.to(tl.int64) * K
    acc = tl.zeros((BLOCK_M, LANES), tl.float32)
    for g in range(K // 32):
        acc = dot_group(
            acc, x, q, h, s, d, m, block.to(tl.int64), g, rows - m0,
            K, BLOCK_M, BITS, GROUP, HAS_MIN, ZERO, SUPER,
        )  # fmt: skip
    n = block * LANES + tl.arange(0, LANES)
    finish(acc, bias, residual, y, m0, tl.arange(0, BLOCK_M), n, rows, N, ACT, BLOCK_M)


@triton.jit
def gated_quant_linear(
    x, q, h, s, d, m, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, BLOCK_M: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, HAS_MIN: tl.constexpr,
    ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """y[M, N] = act(x @ G^T) * (x @ U^T); each section holds G's column blocks, then U's."""
    m0 = tl.program_id(0) * BLOCK_M
    block = tl.program_id(1)
    x += m0.to(tl.int64) * K
    gate = block.to(tl.int64)
    up = gate + (N + LANES - 1) // LANES
    acc_gate = tl.zeros((BLOCK_M, LANES), tl.float32)
    acc_up = tl.zeros((BLOCK_M, LANES), tl.float32)
    for g in range(K // 32):
        acc_gate = dot_group(
            acc_gate, x, q, h, s, d, m, gate, g, rows - m0,
            K, BLOCK_M, BITS, GROUP, HAS_MIN, ZERO, SUPER,
        )  # fmt: skip
        acc_up = dot_group(
            acc_up, x, q, h, s, d, m, up, g, rows - m0,
            K, BLOCK_M, BITS, GROUP, HAS_MIN, ZERO, SUPER,
        )  # fmt: skip
    n = block * LANES + tl.arange(0, LANES)
    acc = activate(acc_gate, ACT) * acc_up
    store_y(y + m0.to(tl.int64) * N, acc, tl.arange(0, BLOCK_M), n, rows - m0, N, BLOCK_M)
