"""Linear layers on weights in group forms (`ir.forms`): y[M, N] = epilogue(x[M, K] @ W[N, K]^T).

W stays as its checkpoint holds it, integers or e4m3 with scales beside them, and becomes f32 tile
by tile: difference, then product, each weight the exact value of `GroupArray.dequantize`.

Layouts (all made by `group_packing.pack_groups`; one column block is 64 outputs)
  x   f32 or bf16 [M, K];  bias f32 [N] or None;  residual f32 [M, N] or None;  y f32 [M, N]
  q   BITS = 4: u8 [N/64, K/32, 16, 64], byte [., g, r, .] = q[32g+r] | q[32g+16+r] << 4
      BITS = 8: u8 [N/64, K/32, 32, 64], signed integers + 128, or e4m3
  d   f16, bf16 or f32 [N/64, cdiv(K, GROUP), 64];  z  u8 likewise, or None: all zeros are ZERO
  Arguments that are None are given as constants and are no parameters of the compiled kernel.
Constants: GROUP, columns of a scale, a multiple of 32 (K for scales of whole rows); E4M3 says that
  bytes are e4m3 without NaN.
Grid: (cdiv(M, BLOCK_M), cdiv(N, 64), 1). Limits: BLOCK_M a power of two from 1 to 64; K % 32 == 0;
  any N. rows = M is an i32.
Numerics: as `linear.py`, one fma chain over ascending k, the same bits for every BLOCK_M.
"""

import triton
import triton.language as tl

from .activation import activate
from .linear import LANES, finish, load_x, store_y
from .quant_linear import part_of_group


@triton.jit
def e4m3_values(byte):
    """The values of e4m3 bytes as f32; exact, NaN excepted. Denormals are fractions of 2^-6."""
    code = byte.to(tl.int32)
    size = code & 127
    normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
    sign = (code & 128) << 24  # by bits: older Triton negates by 0 - x, which loses minus zero
    return (value.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def integers(q, block, g, lane, K: tl.constexpr, PART: tl.constexpr, BITS: tl.constexpr):
    """The stored numbers of a PART of slice g, [16 or 32, lanes]: u8 for 8 bits, else i32."""
    k = part_of_group(PART)
    if BITS == 8:
        at = q + block * (K * LANES) + g * (32 * LANES)
        value = tl.load(at + k[:, None] * LANES + lane[None, :])
    else:
        at = q + block * (K // 2 * LANES) + g * (16 * LANES)
        byte = tl.load(at + (k % 16)[:, None] * LANES + lane[None, :])
        if PART == 0:
            value = (byte & 15).to(tl.int32)
        elif PART == 1:
            value = (byte >> 4).to(tl.int32)
        else:
            value = (byte.to(tl.int32) >> (k // 16 * 4)[:, None]) & 15
    return value


@triton.jit
def dequantize(
    q, d, z, block, g, lane, K: tl.constexpr, PART: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, ZERO: tl.constexpr, E4M3: tl.constexpr,
):  # fmt: skip
    """f32 tile of W at the k of a PART of slice g, of column block `block`, an i64."""
    at = block * ((K + GROUP - 1) // GROUP * LANES) + g * 32 // GROUP * LANES
    scale = tl.load((d + at) + lane).to(tl.float32)[None, :]
    value = integers(q, block, g, lane, K, PART, BITS)
    if E4M3:
        w = e4m3_values(value)
    elif z is not None:
        w = (value.to(tl.int32) - tl.load((z + at) + lane).to(tl.int32)[None, :]).to(tl.float32)
    else:
        w = (value.to(tl.int32) - ZERO).to(tl.float32)
    return w * scale


@triton.jit
def dot_part(
    acc, x, q, d, z, block, g, rows, PART: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, E4M3: tl.constexpr,
):  # fmt: skip
    w = dequantize(q, d, z, block, g, tl.arange(0, LANES), K, PART, BITS, GROUP, ZERO, E4M3)
    k = g * 32 + part_of_group(PART)
    xs = load_x(x, tl.arange(0, BLOCK_M), k, rows, K, BLOCK_M, True)
    return tl.dot(xs, w, acc, input_precision="ieee")


@triton.jit
def dot_slice(
    acc, x, q, d, z, block, g, rows, K: tl.constexpr, BLOCK_M: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, E4M3: tl.constexpr,
):  # fmt: skip
    """acc + x[:, 32g:32g+32] @ slice g of one column block, k ascending; see quant_linear.py on
    why few rows take it in two parts."""
    if BLOCK_M <= 4:
        acc = dot_part(acc, x, q, d, z, block, g, rows, 0, K, BLOCK_M, BITS, GROUP, ZERO, E4M3)
        acc = dot_part(acc, x, q, d, z, block, g, rows, 1, K, BLOCK_M, BITS, GROUP, ZERO, E4M3)
    else:
        acc = dot_part(acc, x, q, d, z, block, g, rows, 2, K, BLOCK_M, BITS, GROUP, ZERO, E4M3)
    return acc


@triton.jit
def group_linear(
    x, q, d, z, bias, residual, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, BLOCK_M: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, E4M3: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual."""
    m0 = tl.program_id(0) * BLOCK_M
    block = tl.program_id(1)
    x += m0.to(tl.int64) * K
    acc = tl.zeros((BLOCK_M, LANES), tl.float32)
    for g in range(K // 32):
        acc = dot_slice(
            acc, x, q, d, z, block.to(tl.int64), g, rows - m0,
            K, BLOCK_M, BITS, GROUP, ZERO, E4M3,
        )  # fmt: skip
    n = block * LANES + tl.arange(0, LANES)
    finish(acc, bias, residual, y, m0, tl.arange(0, BLOCK_M), n, rows, N, ACT, BLOCK_M)


@triton.jit
def gated_group_linear(
    x, q, d, z, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, BLOCK_M: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, E4M3: tl.constexpr,
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
        acc_gate = dot_slice(
            acc_gate, x, q, d, z, gate, g, rows - m0, K, BLOCK_M, BITS, GROUP, ZERO, E4M3
        )
        acc_up = dot_slice(
            acc_up, x, q, d, z, up, g, rows - m0, K, BLOCK_M, BITS, GROUP, ZERO, E4M3
        )
    n = block * LANES + tl.arange(0, LANES)
    acc = activate(acc_gate, ACT) * acc_up
    store_y(y + m0.to(tl.int64) * N, acc, tl.arange(0, BLOCK_M), n, rows - m0, N, BLOCK_M)


@triton.jit
def gather_groups(
    q, d, z, ids, y, scale, K: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, E4M3: tl.constexpr,
):  # fmt: skip
    """y f32 [T, K]: rows of W by ids i32 [T] in 0..N-1, times `scale`; one program per row."""
    t = tl.program_id(0)
    row = tl.load(ids + t)
    block = (row // LANES).to(tl.int64)
    lane = row % LANES + tl.arange(0, 1)
    y += t.to(tl.int64) * K
    k = tl.arange(0, 32)[:, None]
    for g in range(K // 32):
        w = dequantize(q, d, z, block, g, lane, K, 2, BITS, GROUP, ZERO, E4M3)
        tl.store(y + g * 32 + k, w * scale)
