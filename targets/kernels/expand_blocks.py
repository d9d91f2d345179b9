"""Blocks of a model file, as stored, to bf16: what a device runs once for each weight it loads.

Layouts
  blocks  u8 [count, bytes of a block], ggml's own structs (ir/blocks.py has their fields)
  weight  bf16 [count, ELEMENTS]
Types: `packing.BLOCK_TYPES[name].constants`, of which GROUP says nothing new here.
Grid: (cdiv(count, BLOCK), 1, 1). Limits: BLOCK a power of two; count an i32; scales finite.
Numerics: the exact f32 value of `BlockArray.dequantize`, rounded once. A scale times an integer has
  at most 24 bits, so contracting product and sum changes nothing.
"""

import triton
import triton.language as tl


@triton.jit
def load_half(p, inside):
    """A finite f16 at any byte, as f32: its exponent and fraction, raised by 127 - 15."""
    low = tl.load(p, mask=inside, other=0).to(tl.int32)
    high = tl.load(p + 1, mask=inside, other=0).to(tl.int32)
    size = ((low | ((high & 127) << 8)) << 13).to(tl.float32, bitcast=True) * 5.192296858534828e33
    return tl.where(high > 127, -size, size)


@triton.jit
def load_byte(p, at, inside):
    return tl.load(p[:, None] + at[None, :], mask=inside[:, None], other=0).to(tl.int32)


@triton.jit
def small_block(p, k, inside, BITS: tl.constexpr, HAS_MIN: tl.constexpr):
    """(q, scale, minimum) of blocks of 32: d, [m], [bits 4 of all], low bits."""
    scale = load_half(p, inside)[:, None]
    minimum = load_half(p + 2, inside)[:, None] if HAS_MIN else scale
    rest: tl.constexpr = 4 if HAS_MIN else 2
    if BITS == 8:
        q = load_byte(p + rest, k, inside).to(tl.int8).to(tl.int32)
    else:
        low: tl.constexpr = rest + (4 if BITS == 5 else 0)
        q = (load_byte(p + low, k % 16, inside) >> (k // 16 * 4)[None, :]) & 15
        if BITS == 5:
            bit = (load_byte(p + rest, k // 8, inside) >> (k % 8)[None, :]) & 1
            q = q | (bit << 4)
    return q, scale, minimum


@triton.jit
def large_block(p, k, inside, BITS: tl.constexpr):
    """(q, scale, minimum) of q4_k and q5_k: d, dmin, 12 bytes of scales, [top bits], low bits."""
    g = k // 32
    low: tl.constexpr = 16 + (32 if BITS == 5 else 0)
    q = (load_byte(p + low, g // 2 * 32 + k % 32, inside) >> (g % 2 * 4)[None, :]) & 15
    if BITS == 5:
        q = q | (((load_byte(p + 16, k % 32, inside) >> g[None, :]) & 1) << 4)
    first = load_byte(p + 4, g % 4, inside)
    middle = load_byte(p + 8, g % 4, inside)
    last = load_byte(p + 12, g % 4, inside)
    is_low = (g < 4)[None, :]
    sub = tl.where(is_low, first & 63, (last & 15) | ((first >> 2) & 48))
    mn = tl.where(is_low, middle & 63, (last >> 4) | ((middle >> 2) & 48))
    scale = load_half(p, inside)[:, None] * sub.to(tl.float32)
    minimum = -(load_half(p + 2, inside)[:, None] * mn.to(tl.float32))
    return q, scale, minimum


@triton.jit
def six_bit_block(p, k, inside):
    """(q, scale) of q6_k: low 4 bits, top 2 bits, 16 signed scales, d."""
    half, j = k // 128, k % 128
    q = (load_byte(p, half * 64 + j % 64, inside) >> (j // 64 * 4)[None, :]) & 15
    top = (load_byte(p + 128, half * 32 + j % 32, inside) >> (j // 32 * 2)[None, :]) & 3
    sub = load_byte(p + 192, k // 16, inside).to(tl.int8).to(tl.float32)
    return q | (top << 4), load_half(p + 208, inside)[:, None] * sub


@triton.jit
def expand_blocks(
    blocks, weight, count,
    BITS: tl.constexpr, GROUP: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr,
    SUPER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    ELEMENTS: tl.constexpr = 256 if SUPER else 32
    HEAD: tl.constexpr = 4 if HAS_MIN else 2
    SMALL: tl.constexpr = HEAD + 4 * BITS if BITS < 8 else 34
    LARGE: tl.constexpr = 210 if BITS == 6 else 16 + 32 * BITS
    BYTES: tl.constexpr = LARGE if SUPER else SMALL
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, ELEMENTS)
    inside = i < count
    p = blocks + i * BYTES
    if not SUPER:
        q, scale, minimum = small_block(p, k, inside, BITS, HAS_MIN)
    elif BITS == 6:
        q, scale = six_bit_block(p, k, inside)
        minimum = scale
    else:
        q, scale, minimum = large_block(p, k, inside, BITS)
    value = scale * (q - ZERO).to(tl.float32)
    if HAS_MIN:
        value += minimum
    at = weight + i[:, None] * ELEMENTS + k[None, :]
    tl.store(at, value.to(weight.dtype.element_ty), mask=inside[:, None])
