"""Mathematical functions on floats, and arithmetic and logic on integers.

Grid and limits
  unary    contiguous, n elements (i32): grid (cdiv(n, BLOCK), 1, 1)
  binary   y contiguous of shape [d0, d1, d2, d3], a and b by strides, as `elementwise.binary`
BLOCK a power of two. Floats are computed in f32; integers in their own type.
unary KIND: acos acosh asin asinh atan atanh cosh sinh tan expm1 log1p log2 log10 ceil round trunc
  (floats), sign neg abs relu (floats and integers), bit_not (integers), isinf isnan (1 or 0).
binary KIND: atan2 pow mod floor_div of floats; fmod trunc_div of both; pow of integers; xor of any
  type (1 or 0); bit_and bit_or bit_xor shift_left shift_right of integers.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from .elementwise import load_number, strided


@triton.jit
def function(x, KIND: tl.constexpr):
    """Of floats alone."""
    if KIND == "acos":
        y = libdevice.acos(x)
    elif KIND == "acosh":
        y = libdevice.acosh(x)
    elif KIND == "asin":
        y = libdevice.asin(x)
    elif KIND == "asinh":
        y = libdevice.asinh(x)
    elif KIND == "atan":
        y = libdevice.atan(x)
    elif KIND == "atanh":
        y = libdevice.atanh(x)
    elif KIND == "cosh":
        y = libdevice.cosh(x)
    elif KIND == "sinh":
        y = libdevice.sinh(x)
    elif KIND == "tan":
        y = libdevice.tan(x)
    elif KIND == "expm1":
        y = libdevice.expm1(x)
    elif KIND == "log1p":
        y = libdevice.log1p(x)
    elif KIND == "log2":
        y = tl.log2(x)
    elif KIND == "log10":
        y = libdevice.log10(x)
    elif KIND == "ceil":
        y = tl.ceil(x)
    elif KIND == "round":
        y = libdevice.rint(x)
    else:
        tl.static_assert(KIND == "trunc")
        y = libdevice.trunc(x)
    return y


@triton.jit
def apply_unary(x, KIND: tl.constexpr):
    if KIND == "sign":
        y = (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
    elif KIND == "neg":
        y = -x
    elif KIND == "abs":
        y = tl.where(x < 0, -x, x)
    elif KIND == "relu":
        y = tl.where(x < 0, 0, x)
    elif KIND == "bit_not":
        y = ~x
    elif KIND == "isinf":
        y = (tl.abs(x) == float("inf")).to(tl.int32)
    elif KIND == "isnan":
        y = (x != x).to(tl.int32)
    else:
        y = function(x, KIND)
    return y


@triton.jit
def integer_power(base, exponent):
    """By squares. Of a negative exponent what is left of the fraction: 0 unless the base is 1."""
    y = tl.full(base.shape, 1, base.dtype)
    square = base
    for bit in range(31 if base.dtype.primitive_bitwidth > 31 else base.dtype.primitive_bitwidth):
        y = tl.where((exponent >> bit) & 1 != 0, y * square, y)
        square = square * square
    if base.dtype.is_int_signed():
        odd = tl.where(exponent & 1 != 0, -1, 1)
        fraction = tl.where(base == 1, 1, tl.where(base == -1, odd, 0))
        y = tl.where(exponent < 0, fraction, y)
    return y


@triton.jit
def modulo(a, b):
    """With the sign of b; exact, as fmod is."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floats(a, b, KIND: tl.constexpr):
    if KIND == "atan2":
        y = libdevice.atan2(a, b)
    elif KIND == "pow":
        y = libdevice.pow(a, b)
    elif KIND == "fmod":
        y = libdevice.fmod(a, b)
    elif KIND == "mod":
        y = modulo(a, b)
    elif KIND == "floor_div":
        whole = (a - modulo(a, b)) / b
        near = tl.floor(whole)
        y = tl.where(b == 0, a / b, tl.where(whole - near > 0.5, near + 1, near))
    else:
        tl.static_assert(KIND == "trunc_div")
        y = libdevice.trunc(a / b)
    return y


@triton.jit
def integers(a, b, KIND: tl.constexpr):
    if KIND == "pow":
        y = integer_power(a, b)
    elif KIND == "fmod":
        y = a % tl.where(b == 0, 1, b)
    elif KIND == "trunc_div":
        y = a // tl.where(b == 0, 1, b)
    elif KIND == "bit_and":
        y = a & b
    elif KIND == "bit_or":
        y = a | b
    elif KIND == "bit_xor":
        y = a ^ b
    elif KIND == "shift_left":
        inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
        y = tl.where(inside, a << tl.where(inside, b, 0), 0)
    else:
        tl.static_assert(KIND == "shift_right")
        inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
        if a.dtype.is_int_signed():
            y = a >> tl.where(inside, b, a.dtype.primitive_bitwidth - 1)
        else:
            y = tl.where(inside, a >> tl.where(inside, b, 0), 0)
    return y


@triton.jit
def apply_binary(a, b, KIND: tl.constexpr):
    if KIND == "xor":
        y = ((a != 0) != (b != 0)).to(tl.int32)
    elif a.dtype.is_floating():
        y = floats(a, b, KIND)
    else:
        y = integers(a, b, KIND)
    return y


@triton.jit
def unary(x, y, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """y = KIND(x)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    result = apply_unary(load_number(x + i, i < n, 1), KIND)
    tl.store(y + i, result.to(y.dtype.element_ty), mask=i < n)


@triton.jit
def binary(
    a, b, y, d1, d2, d3, a0, a1, a2, b0, b1, b2,
    A3: tl.constexpr, B3: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = KIND(a, b) with broadcasting."""
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = load_number(strided(a, a0, a1, a2, d1, d2, row) + i * A3, i < d3, 1)
    right = load_number(strided(b, b0, b1, b2, d1, d2, row) + i * B3, i < d3, 1)
    y += row.to(tl.int64) * d3
    tl.store(y + i, apply_binary(left, right, KIND).to(y.dtype.element_ty), mask=i < d3)
