"""Normalizations of rows, f32.

Layouts: x, residual, sum, y f32 [rows, HIDDEN] contiguous; w, b [HIDDEN] of any float type.
Grid: (rows, 1, 1), one program per row.
Limits: any HIDDEN; BLOCK a power of two. A BLOCK that divides HIDDEN runs without masks.
Numerics: sums run over BLOCK partial sums in ascending chunks, then one tl.sum over BLOCK: fixed by
HIDDEN and BLOCK, so BLOCK must be the same in every program that may compute the same row.
OFFSET is added to the weight (1.0 where a model stores weight - 1, else 0.0).
"""

import triton
import triton.language as tl


@triton.jit
def load_chunk(p, at, N: tl.constexpr, BLOCK: tl.constexpr):
    """p[at .. at+BLOCK) as f32, zero beyond N."""
    i = at + tl.arange(0, BLOCK)
    if N % BLOCK == 0:
        chunk = tl.load(p + i)
    else:
        chunk = tl.load(p + i, mask=i < N, other=0.0)
    return chunk.to(tl.float32)


@triton.jit
def store_chunk(p, at, chunk, N: tl.constexpr, BLOCK: tl.constexpr):
    i = at + tl.arange(0, BLOCK)
    if N % BLOCK == 0:
        tl.store(p + i, chunk)
    else:
        tl.store(p + i, chunk, mask=i < N)


@triton.jit
def scale_row(
    x, w, y, scale, HIDDEN: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """y = x * scale * (w + OFFSET); without w: y = x * scale."""
    for at in range(0, HIDDEN, BLOCK):
        chunk = load_chunk(x, at, HIDDEN, BLOCK) * scale
        if w is not None:
            weight = load_chunk(w, at, HIDDEN, BLOCK)
            if OFFSET != 0.0:
                weight += OFFSET
            chunk *= weight
        store_chunk(y, at, chunk, HIDDEN, BLOCK)


@triton.jit
def rmsnorm(
    x, w, y, eps, HIDDEN: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """y = x / sqrt(mean(x^2) + eps) * (w + OFFSET). eps is an f32 argument; w may be None."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    squares = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, HIDDEN, BLOCK):
        chunk = load_chunk(x + row, at, HIDDEN, BLOCK)
        squares += chunk * chunk
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / HIDDEN + eps)
    scale_row(x + row, w, y + row, scale, HIDDEN, OFFSET, BLOCK)


@triton.jit
def add_rmsnorm(
    x, residual, w, sum, y, eps,
    HIDDEN: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sum = x + residual; y = rmsnorm(sum). sum may be x or residual itself."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    squares = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, HIDDEN, BLOCK):
        chunk = load_chunk(x + row, at, HIDDEN, BLOCK)
        chunk += load_chunk(residual + row, at, HIDDEN, BLOCK)
        store_chunk(sum + row, at, chunk, HIDDEN, BLOCK)
        squares += chunk * chunk
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / HIDDEN + eps)
    scale_row(sum + row, w, y + row, scale, HIDDEN, OFFSET, BLOCK)


@triton.jit
def layernorm(x, w, b, y, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """y = (x - mean) / sqrt(var + eps) * w + b, var the biased one; w and b may be None."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, HIDDEN, BLOCK):
        total += load_chunk(x + row, at, HIDDEN, BLOCK)
    mean = tl.sum(total, 0) / HIDDEN
    squares = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, HIDDEN, BLOCK):
        centred = load_chunk(x + row, at, HIDDEN, BLOCK) - mean
        if HIDDEN % BLOCK != 0:
            centred = tl.where(at + tl.arange(0, BLOCK) < HIDDEN, centred, 0.0)
        squares += centred * centred
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / HIDDEN + eps)
    for at in range(0, HIDDEN, BLOCK):
        chunk = (load_chunk(x + row, at, HIDDEN, BLOCK) - mean) * scale
        if w is not None:
            chunk *= load_chunk(w, at, HIDDEN, BLOCK)
        if b is not None:
            chunk += load_chunk(b, at, HIDDEN, BLOCK)
        store_chunk(y + row, at, chunk, HIDDEN, BLOCK)
