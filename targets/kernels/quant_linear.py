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
    K: tl.constexpr, PART: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """f32 tile [16 or 32, lanes] of q - ZERO for the PART of group g; exact."""
    k = part_of_group(PART)
    if BITS == 8:
        at = q + block * (K * LANES) + g * (32 * LANES)
        value = tl.load(at + k[:, None] * LANES + lane[None, :]).to(tl.float32)
    else:
        at = q + block * (K // 2 * LANES) + g * (16 * LANES)
        byte = tl.load(at + (k % 16)[:, None] * LANES + lane[None, :])
        if PART == 0:
            value = (byte & 15).to(tl.int32)
        elif PART == 1:
            value = (byte >> 4).to(tl.int32)
        else:
            value = (byte.to(tl.int32) >> (k // 16 * 4)[:, None]) & 15
        if BITS > 4:
            plane = h + block * (K // 8 * (BITS - 4) * LANES) + g * (4 * (BITS - 4) * LANES)
            value = value | high_bits(plane, k, lane, BITS)
        value = (value - ZERO).to(tl.float32)
    return value


@triton.jit
def part_of_group(PART: tl.constexpr):
    """Which of the 32 k of a group: PART 0 the first 16, 1 the last 16, 2 all."""
    if PART == 2:
        k = tl.arange(0, 32)
    else:
        k = PART * 16 + tl.arange(0, 16)
    return k


@triton.jit
def group_scale(
    s, d, m, block, g, lane, K: tl.constexpr, PART: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """Scale and minimum (to be added) of a PART of group g, f32, to broadcast on [k, lanes]."""
    minimum = tl.zeros((1, 1), tl.float32)
    if not SUPER:
        at = block * (K // 32 * LANES) + g * LANES
        scale = tl.load((d + at) + lane).to(tl.float32)[None, :]
        if HAS_MIN:
            minimum = tl.load((m + at) + lane).to(tl.float32)[None, :]
    else:
        at = block * (K // 256 * LANES) + g // 8 * LANES
        scale = tl.load((d + at) + lane).to(tl.float32)[None, :]
        if GROUP == 16:
            sub = s + block * (K // 16 * LANES) + g * (2 * LANES)
            half = (part_of_group(PART) // 16)[:, None]
            scale = scale * tl.load(sub + half * LANES + lane[None, :]).to(tl.float32)
        else:
            sub = s + block * (K // 256 * 12 * LANES) + g // 8 * (12 * LANES) + lane
            j = g % 8
            low = tl.load(sub + j * LANES).to(tl.int32)
            high = tl.load(sub + (8 + j // 2) * LANES).to(tl.int32) >> (j % 2 * 4)
            scale = scale * ((low & 15) | ((high & 3) << 4)).to(tl.float32)[None, :]
            mn = (low >> 4) | (((high >> 2) & 3) << 4)
            minimum = -(tl.load((m + at) + lane).to(tl.float32) * mn.to(tl.float32))[None, :]
    return scale, minimum


@triton.jit
def dequantize(
    q, h, s, d, m, block, g, lane, K: tl.constexpr, PART: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """f32 tile of W at the k of a PART of group g, of column block `block`.

    `block` is an i64: big weights pass 2^31 elements.
    """
    scale, minimum = group_scale(s, d, m, block, g, lane, K, PART, GROUP, HAS_MIN, SUPER)
    values = quants(q, h, block, g, lane, K, PART, BITS, ZERO)
    if HAS_MIN:
        # scale * q has at most 11 + 6 + 5 bits, so it is exact: one fma rounds as ggml's two steps
        w = tl.fma(scale, values, minimum)
    else:
        w = scale * values
    return w


@triton.jit
def dot_part(
    acc, x, q, h, s, d, m, block, g, rows, PART: tl.constexpr,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, LANES)
    w = dequantize(q, h, s, d, m, block, g, lane, K, PART, BITS, GROUP, HAS_MIN, ZERO, SUPER)
    k = g * 32 + part_of_group(PART)
    xs = load_x(x, tl.arange(0, BLOCK_M), k, rows, K, BLOCK_M, True)
    return tl.dot(xs, w, acc, input_precision="ieee")


@triton.jit
def dot_group(
    acc, x, q, h, s, d, m, block, g, rows,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """acc + x[:, 32g:32g+32] @ W's group g of one column block, k ascending.

    Few rows: weights live in registers, and the two halves of a byte need no shift by k. More rows:
    the dequantized tile goes through memory, and one dot over it loads the accumulator once.
    """
    if BLOCK_M <= 4:
        acc = dot_part(
            acc, x, q, h, s, d, m, block, g, rows, 0,
            K, BLOCK_M, BITS, GROUP, HAS_MIN, ZERO, SUPER,
        )  # fmt: skip
        acc = dot_part(
            acc, x, q, h, s, d, m, block, g, rows, 1,
            K, BLOCK_M, BITS, GROUP, HAS_MIN, ZERO, SUPER,
        )  # fmt: skip
    else:
        acc = dot_part(
            acc, x, q, h, s, d, m, block, g, rows, 2,
            K, BLOCK_M, BITS, GROUP, HAS_MIN, ZERO, SUPER,
        )  # fmt: skip
    return acc


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
