"""Normalizations with the whole row in registers, for GPUs; and their rows as fp8.

Layouts: x, residual, sum, y [rows, HIDDEN] contiguous, of any float type (bf16 is meant); w, b
[HIDDEN].
Grid: (rows, 1, 1), one program per row. Limits: BLOCK = next power of two of HIDDEN, at most 16384.
num_warps: 16 bytes per thread and load, so BLOCK / 256 warps, 1 to 16 (`warps_for`).
Numerics: f32 inside, every result rounds once; a row's sum has one order, whatever its company. In
`add_rmsnorm` the norm is of the sum as it is stored. OFFSET is added to the weight (1.0 where a
model stores weight - 1, else 0.0).
fp8 (e4m3, sm_89 and later): y is fp8, and scales f32 [rows, HIDDEN / GROUP] are such that y * scale
is the value; GROUP = 0 gives one per row. A scale is the largest magnitude / 448, 1 for rows of
zeros. The value is rounded to x's type first, as it would be between two kernels.
PDL: the next kernel may start at once: it takes room on the chip while the few programs here work.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LARGEST = tl.constexpr(448.0)  # of fp8 e4m3


def warps_for(block: int) -> int:
    """Warps for a row of BLOCK elements of 2 bytes.

    >>> [warps_for(block) for block in (128, 1024, 4096, 16384)]
    [1, 4, 16, 16]
    """
    return max(1, min(16, block // 256))


@triton.jit
def load_row(p, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if HIDDEN == BLOCK:
        row = tl.load(p + i)
    else:
        row = tl.load(p + i, mask=i < HIDDEN, other=0.0)
    return row.to(tl.float32)


@triton.jit
def store_row(p, row, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if HIDDEN == BLOCK:
        tl.store(p + i, row.to(p.dtype.element_ty))
    else:
        tl.store(p + i, row.to(p.dtype.element_ty), mask=i < HIDDEN)


@triton.jit
def load_weights(w, HIDDEN: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr):
    """w + OFFSET, which no kernel of a step writes: loaded while the one before still runs."""
    weights = 1.0
    if w is not None:
        weights = load_row(w, HIDDEN, BLOCK) + OFFSET
    return weights


@triton.jit
def normed(row, weights, eps, HIDDEN: tl.constexpr):
    """row / sqrt(mean(row^2) + eps) * weights."""
    scale = 1.0 / tl.sqrt(tl.sum(row * row, 0) / HIDDEN + eps)
    return row * scale * weights


@triton.jit
def store_fp8(
    y, scales, row, HIDDEN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One row as fp8 with its scales; elements beyond HIDDEN are 0."""
    if GROUP == 0:
        largest = tl.max(tl.abs(row), 0)
        scale = tl.where(largest > 0.0, largest / LARGEST, 1.0)
        tl.store(scales, scale)
        row = row / scale
    else:
        tl.static_assert(HIDDEN % GROUP == 0)
        groups = row.reshape(BLOCK // GROUP, GROUP)
        largest = tl.max(tl.abs(groups), 1)
        scale = tl.where(largest > 0.0, largest / LARGEST, 1.0)
        g = tl.arange(0, BLOCK // GROUP)
        tl.store(scales + g, scale, mask=g < HIDDEN // GROUP)
        row = (groups / scale[:, None]).reshape(BLOCK)
    store_row(y, tl.minimum(tl.maximum(row, -LARGEST), LARGEST), HIDDEN, BLOCK)


@triton.jit
def rmsnorm(
    x, w, y, eps,
    HIDDEN: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = x / sqrt(mean(x^2) + eps) * (w + OFFSET)."""
    weights = load_weights(w, HIDDEN, OFFSET, BLOCK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0).to(tl.int64) * HIDDEN
    row = load_row(x + at, HIDDEN, BLOCK)
    store_row(y + at, normed(row, weights, eps, HIDDEN), HIDDEN, BLOCK)


@triton.jit
def add_rmsnorm(
    x, residual, w, sum, y, eps,
    HIDDEN: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """sum = x + residual; y = rmsnorm(sum). sum may be x or residual itself."""
    weights = load_weights(w, HIDDEN, OFFSET, BLOCK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0).to(tl.int64) * HIDDEN
    row = load_row(x + at, HIDDEN, BLOCK) + load_row(residual + at, HIDDEN, BLOCK)
    row = row.to(sum.dtype.element_ty)
    store_row(sum + at, row, HIDDEN, BLOCK)
    row = normed(row.to(tl.float32), weights, eps, HIDDEN)
    store_row(y + at, row, HIDDEN, BLOCK)


@triton.jit
def rmsnorm_fp8(
    x, w, y, scales, eps,
    HIDDEN: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y, scales = fp8 of rmsnorm(x)."""
    weights = load_weights(w, HIDDEN, OFFSET, BLOCK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    value = load_row(x + row * HIDDEN, HIDDEN, BLOCK)
    value = normed(value, weights, eps, HIDDEN).to(x.dtype.element_ty).to(tl.float32)
    SCALES: tl.constexpr = 1 if GROUP == 0 else HIDDEN // GROUP
    store_fp8(y + row * HIDDEN, scales + row * SCALES, value, HIDDEN, GROUP, BLOCK)


@triton.jit
def add_rmsnorm_fp8(
    x, residual, w, sum, y, scales, eps,
    HIDDEN: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """sum = x + residual; y, scales = fp8 of rmsnorm(sum)."""
    weights = load_weights(w, HIDDEN, OFFSET, BLOCK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    at = row * HIDDEN
    value = load_row(x + at, HIDDEN, BLOCK) + load_row(residual + at, HIDDEN, BLOCK)
    value = value.to(sum.dtype.element_ty)
    store_row(sum + at, value, HIDDEN, BLOCK)
    value = normed(value.to(tl.float32), weights, eps, HIDDEN)
    value = value.to(sum.dtype.element_ty).to(tl.float32)
    SCALES: tl.constexpr = 1 if GROUP == 0 else HIDDEN // GROUP
    store_fp8(y + at, scales + row * SCALES, value, HIDDEN, GROUP, BLOCK)


@triton.jit
def quantize_rows(
    x, y, scales, HIDDEN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """y, scales = fp8 of x."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    value = load_row(x + row * HIDDEN, HIDDEN, BLOCK)
    SCALES: tl.constexpr = 1 if GROUP == 0 else HIDDEN // GROUP
    store_fp8(y + row * HIDDEN, scales + row * SCALES, value, HIDDEN, GROUP, BLOCK)


@triton.jit
def layernorm(
    x, w, b, y, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """y = (x - mean) / sqrt(var + eps) * w + b, var the biased one; w and b may be None."""
    weights = load_weights(w, HIDDEN, 0.0, BLOCK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0).to(tl.int64) * HIDDEN
    row = load_row(x + at, HIDDEN, BLOCK)
    row = row - tl.sum(row, 0) / HIDDEN
    if HIDDEN != BLOCK:
        row = tl.where(tl.arange(0, BLOCK) < HIDDEN, row, 0.0)
    row = row * (1.0 / tl.sqrt(tl.sum(row * row, 0) / HIDDEN + eps))
    row = row * weights
    if b is not None:
        row = row + load_row(b, HIDDEN, BLOCK)
    store_row(y + at, row, HIDDEN, BLOCK)
