"""Weights made on the device from a seed; the numbers are those of targets/artifact/fill.py.

Layouts: weight [count], bf16, f16 or f32; count i64; seed, step and mean i32: 32 bits of the seed
and of the two floats.
Grid: (cdiv(count, BLOCK), 1, 1). Limits: BLOCK a power of two.
The definition rounds the product before it adds the mean. A compiler that contracts the two would
round once: the product's bits go through an addition of 0 that it cannot see through.
"""

import triton
import triton.language as tl


@triton.jit
def fill(weight, count, seed, step, mean, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = i.to(tl.uint32) * 0x9E3779B1 + (i >> 32).to(tl.uint32) * 0x85EBCA77
    h += seed.to(tl.uint32, bitcast=True)
    h ^= h >> 16
    h *= 0x21F0AAAD
    h ^= h >> 15
    h *= 0x735A2D97
    h ^= h >> 15
    steps = (h >> 8).to(tl.int32) - 8388608
    product = steps.to(tl.float32) * step.to(tl.float32, bitcast=True)
    rounded = product.to(tl.int32, bitcast=True) + (count < 0).to(tl.int32)
    value = rounded.to(tl.float32, bitcast=True) + mean.to(tl.float32, bitcast=True)
    tl.store(weight + i, value.to(weight.dtype.element_ty), mask=i < count)
