"""Parts of an axis, taken or replaced by index.

Layouts: x [outer, size, inner] and y [outer, length, inner] (put_axis: src so, y as x), contiguous,
of any plain type; ids i32 [length]. An index out of range takes the nearest: no memory outside x or
y is touched.
Grids: take_axis (cdiv(outer * length * inner, BLOCK), 1, 1); take_rows (outer * length,
cdiv(inner, BLOCK), 1); put_axis (outer, cdiv(inner, BLOCK), 1), where x was copied to y before.
Limits: BLOCK a power of two; put_axis is for machines that run a program in order.
"""

import triton
import triton.language as tl


@triton.jit
def clamped(ids, at, size, inside):
    return tl.minimum(tl.maximum(tl.load(ids + at, mask=inside, other=0), 0), size - 1)


@triton.jit
def take_axis(x, ids, y, total, length, inner, size, BLOCK: tl.constexpr):
    """y[o, l, i] = x[o, ids[l], i], for small parts: one lane for an element."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < total
    row = lane // inner
    outer = row // length
    part = clamped(ids, row - outer * length, size, inside)
    source = (outer.to(tl.int64) * size + part) * inner + (lane - row * inner)
    tl.store(y + lane, tl.load(x + source, mask=inside, other=0), mask=inside)


@triton.jit
def take_rows(x, ids, y, length, inner, size, BLOCK: tl.constexpr):
    """The same for parts of many elements: one program for a row of them."""
    row = tl.program_id(0)
    outer = row // length
    part = tl.minimum(tl.maximum(tl.load(ids + row - outer * length), 0), size - 1)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = (outer.to(tl.int64) * size + part) * inner
    value = tl.load(x + source + i, mask=i < inner, other=0)
    tl.store(y + row.to(tl.int64) * inner + i, value, mask=i < inner)


@triton.jit
def combine(old, new, HOW: tl.constexpr):
    if HOW == "put":
        y = new
    elif HOW == "add":
        y = old + new
    elif HOW == "mul":
        y = old * new
    elif HOW == "min":
        y = tl.where((new < old) | (new != new), new, old)
    else:
        tl.static_assert(HOW == "max")
        y = tl.where((new > old) | (new != new), new, old)
    return y


@triton.jit
def put_axis(ids, src, y, length, inner, size, HOW: tl.constexpr, BLOCK: tl.constexpr):
    """y[o, ids[l], i] = HOW(y[o, ids[l], i], src[o, l, i]) for l in ascending order."""
    outer = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y += outer * size * inner
    src += outer * length * inner
    for part in range(length):
        row = tl.minimum(tl.maximum(tl.load(ids + part), 0), size - 1).to(tl.int64)
        new = tl.load(src + part.to(tl.int64) * inner + i, mask=i < inner, other=0)
        old = tl.load(y + row * inner + i, mask=i < inner, other=0)
        tl.store(y + row * inner + i, combine(old, new, HOW), mask=i < inner)


@triton.jit
def put_elements(ids, src, y, length, size, HOW: tl.constexpr):
    """`put_axis` where a part is one element. Grid: (outer, 1, 1)."""
    outer = tl.program_id(0).to(tl.int64)
    y += outer * size
    src += outer * length
    for part in range(length):
        row = tl.minimum(tl.maximum(tl.load(ids + part), 0), size - 1)
        tl.store(y + row, combine(tl.load(y + row), tl.load(src + part), HOW))
