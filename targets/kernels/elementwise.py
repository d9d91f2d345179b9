"""Elementwise operators on floats, computed in f32 (and casts between float types and i32).

Grid and limits
  unary, cast, gated   contiguous, n elements (i32): grid (cdiv(n, BLOCK), 1, 1)
  binary, where, copy  y contiguous of shape [d0, d1, d2, d3] (i32; pad with 1 in front), inputs
                       given by strides in elements per dim (i32; 0 broadcasts); a0..a2 are the
                       outer strides of a, the constexpr A3 the innermost:
                       grid (cdiv(d3, BLOCK), d0 * d1 * d2, 1)
BLOCK a power of two. Outputs may alias inputs of the same strides.
unary KIND: neg abs exp log sqrt rsqrt reciprocal square sin cos erf floor ceil, and the
  activations of activation.py; not and truth of any type (1.0 or 0.0). binary KIND: add sub mul
  div maximum minimum floor_div mod pow(positive base), comparisons lt le gt ge eq ne and and or of
  any type (1.0 or 0.0).
"""

import triton
import triton.language as tl

from .activation import activate


@triton.jit
def apply_unary(x, KIND: tl.constexpr):
    if KIND == "neg":
        y = -x
    elif KIND == "abs":
        y = tl.abs(x)
    elif KIND == "exp":
        y = tl.exp(x)
    elif KIND == "log":
        y = tl.log(x)
    elif KIND == "sqrt":
        y = tl.sqrt(x)
    elif KIND == "rsqrt":
        y = 1.0 / tl.sqrt(x)
    elif KIND == "reciprocal":
        y = 1.0 / x
    elif KIND == "square":
        y = x * x
    elif KIND == "sin":
        y = tl.sin(x)
    elif KIND == "cos":
        y = tl.cos(x)
    elif KIND == "erf":
        y = tl.erf(x)
    elif KIND == "floor":
        y = tl.floor(x)
    elif KIND == "ceil":
        y = tl.ceil(x)
    elif KIND == "not":
        y = (x == 0).to(tl.float32)
    elif KIND == "truth":
        y = (x != 0).to(tl.float32)
    else:
        y = activate(x, KIND)
    return y


@triton.jit
def floor_divide(a, b):
    """Rounded down; the machine's division of integers rounds toward zero."""
    if a.dtype.is_floating():
        y = tl.floor(a / b)
    else:
        y = a // b
        y -= ((y * b != a) & ((a < 0) != (b < 0))).to(y.dtype)
    return y


@triton.jit
def apply_binary(a, b, KIND: tl.constexpr):
    if KIND == "add":
        y = a + b
    elif KIND == "sub":
        y = a - b
    elif KIND == "mul":
        y = a * b
    elif KIND == "div":
        y = a / b
    elif KIND == "maximum":
        y = tl.maximum(a, b)
    elif KIND == "minimum":
        y = tl.minimum(a, b)
    elif KIND == "pow":
        y = tl.exp(b * tl.log(a))
    elif KIND == "floor_div":
        y = floor_divide(a, b)
    elif KIND == "mod":
        y = a - floor_divide(a, b) * b
    elif KIND == "and":
        y = ((a != 0) & (b != 0)).to(tl.float32)
    elif KIND == "or":
        y = ((a != 0) | (b != 0)).to(tl.float32)
    elif KIND == "lt":
        y = (a < b).to(tl.float32)
    elif KIND == "le":
        y = (a <= b).to(tl.float32)
    elif KIND == "gt":
        y = (a > b).to(tl.float32)
    elif KIND == "ge":
        y = (a >= b).to(tl.float32)
    elif KIND == "eq":
        y = (a == b).to(tl.float32)
    else:
        tl.static_assert(KIND == "ne")
        y = (a != b).to(tl.float32)
    return y


@triton.jit
def load_number(p, mask, other):
    """Narrow floats in f32, other numbers as they are."""
    value = tl.load(p, mask=mask, other=other)
    if p.dtype.element_ty == tl.bfloat16:  # noqa: SIM114 - Triton 3.0 takes no `or` of types
        value = value.to(tl.float32)
    elif p.dtype.element_ty == tl.float16:
        value = value.to(tl.float32)
    return value


@triton.jit
def unary(x, y, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """y = KIND(x)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    result = apply_unary(load_number(x + i, i < n, 1.0), KIND)
    tl.store(y + i, result.to(y.dtype.element_ty), mask=i < n)


@triton.jit
def to_type(x, to: tl.constexpr):
    """By way of signed integers, where a type's own conversion leaves out its upper half."""
    if to == tl.uint32 and x.dtype.is_floating():
        y = x.to(tl.int64).to(to)
    elif to == tl.uint64 and x.dtype.is_floating():
        low = x.to(tl.float32)
        high = (low - 9223372036854775808.0).to(tl.int64).to(to) + 9223372036854775808
        y = tl.where(low < 9223372036854775808.0, low.to(tl.int64).to(to), high)
    elif x.dtype == tl.uint64 and to.is_floating():
        half = ((x >> 1) | (x & 1)).to(tl.int64).to(tl.float32)
        y = tl.where(x.to(tl.int64) < 0, half * 2, x.to(tl.int64).to(tl.float32)).to(to)
    else:
        y = x.to(to)
    return y


@triton.jit
def cast(x, y, n, BLOCK: tl.constexpr):
    """y = x in y's type."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, to_type(tl.load(x + i, mask=i < n, other=0), y.dtype.element_ty), mask=i < n)


@triton.jit
def gated(x, y, WIDTH: tl.constexpr, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """y[T, WIDTH] = ACT(x[:, :WIDTH]) * x[:, WIDTH:] of x [T, 2 * WIDTH].

    Grid (T, cdiv(WIDTH, BLOCK), 1). ACT = "silu" is silu_mul, "gelu_tanh" and "gelu" are gelu_mul.
    """
    row = tl.program_id(0).to(tl.int64) * WIDTH
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x += 2 * row
    y += row
    if WIDTH % BLOCK == 0:
        tl.store(y + i, activate(tl.load(x + i), ACT) * tl.load(x + WIDTH + i))
    else:
        gate = tl.load(x + i, mask=i < WIDTH, other=0.0)
        up = tl.load(x + WIDTH + i, mask=i < WIDTH, other=0.0)
        tl.store(y + i, activate(gate, ACT) * up, mask=i < WIDTH)


@triton.jit
def strided(p, s0, s1, s2, d1, d2, row):
    """Start of the innermost dim for the flat outer index `row`."""
    i2 = row % d2
    i1 = row // d2 % d1
    i0 = row // d2 // d1
    return p + (i0.to(tl.int64) * s0 + i1.to(tl.int64) * s1 + i2.to(tl.int64) * s2)


@triton.jit
def binary(
    a, b, y, d1, d2, d3, a0, a1, a2, b0, b1, b2,
    A3: tl.constexpr, B3: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = KIND(a, b) with broadcasting."""
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = load_number(strided(a, a0, a1, a2, d1, d2, row) + i * A3, i < d3, 1.0)
    right = load_number(strided(b, b0, b1, b2, d1, d2, row) + i * B3, i < d3, 1.0)
    y += row.to(tl.int64) * d3
    tl.store(y + i, apply_binary(left, right, KIND).to(y.dtype.element_ty), mask=i < d3)


@triton.jit
def where(
    c, a, b, y, d1, d2, d3, c0, c1, c2, a0, a1, a2, b0, b1, b2,
    C3: tl.constexpr, A3: tl.constexpr, B3: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = a where c != 0, else b; c of any type."""
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if C3 == 0:  # one for the row: a single element, as some chips gather no bytes
        chosen = (tl.load(strided(c, c0, c1, c2, d1, d2, row)) != 0) & (i < d3)
    else:
        chosen = tl.load(strided(c, c0, c1, c2, d1, d2, row) + i * C3, mask=i < d3, other=0) != 0
    left = tl.load(strided(a, a0, a1, a2, d1, d2, row) + i * A3, mask=i < d3, other=0)
    right = tl.load(strided(b, b0, b1, b2, d1, d2, row) + i * B3, mask=i < d3, other=0)
    y += row.to(tl.int64) * d3
    tl.store(y + i, tl.where(chosen, left, right), mask=i < d3)


@triton.jit
def copy(
    x, y, d1, d2, d3, x0, x1, x2, y0, y1, y2,
    X3: tl.constexpr, Y3: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = x, both strided: transpose, slice, concat (one call per part). Types may differ.

    Offsets of the first element go into the pointers.
    """
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(strided(x, x0, x1, x2, d1, d2, row) + i * X3, mask=i < d3, other=0)
    target = strided(y, y0, y1, y2, d1, d2, row)
    tl.store(target + i * Y3, value.to(y.dtype.element_ty), mask=i < d3)
