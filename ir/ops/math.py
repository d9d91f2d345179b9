"""Elementwise functions beyond those that language models meet: inverse and hyperbolic ones,
rounding, tests of floats, and logic on the bits of integers."""

from __future__ import annotations

import numpy as np

from ..dtype import BOOL
from .elementwise import Binary, Unary


class Acos(Unary, op="acos", function=np.arccos, on="float"):
    """y = arc cosine of x, in 0..pi"""


class Acosh(Unary, op="acosh", function=np.arccosh, on="float"):
    """y >= 0 with cosh y = x"""


class Asin(Unary, op="asin", function=np.arcsin, on="float"):
    """y = arc sine of x, in -pi/2..pi/2"""


class Asinh(Unary, op="asinh", function=np.arcsinh, on="float"):
    """y with sinh y = x"""


class Atan(Unary, op="atan", function=np.arctan, on="float"):
    """y = arc tangent of x, in -pi/2..pi/2"""


class Atanh(Unary, op="atanh", function=np.arctanh, on="float"):
    """y with tanh y = x"""


class Ceil(Unary, op="ceil", function=np.ceil, on="float"):
    """Smallest integer not below x."""


class Cosh(Unary, op="cosh", function=np.cosh, on="float"):
    """y = (e^x + e^-x) / 2"""


class Sinh(Unary, op="sinh", function=np.sinh, on="float"):
    """y = (e^x - e^-x) / 2"""


class Tan(Unary, op="tan", function=np.tan, on="float"):
    """y = sin x / cos x"""


class Expm1(Unary, op="expm1", function=np.expm1, on="float"):
    """y = e^x - 1, exact near 0"""


class Log1p(Unary, op="log1p", function=np.log1p, on="float"):
    """y = ln(1 + x), exact near 0"""


class Log2(Unary, op="log2", function=np.log2, on="float"):
    """y = ln x / ln 2"""


class Log10(Unary, op="log10", function=np.log10, on="float"):
    """y = ln x / ln 10"""


class Round(Unary, op="round", function=np.rint, on="float"):
    """Nearest integer, of two the even one."""


class Trunc(Unary, op="trunc", function=np.trunc, on="float"):
    """The integer part: rounded toward zero."""


class Sign(Unary, op="sign", function=np.sign):
    """-1, 0 or 1; NaN gives 0 or NaN."""


class IsInf(Unary, op="isinf", function=np.isinf, on="float", result=BOOL):
    """Whether x is infinite, of either sign."""


class IsNan(Unary, op="isnan", function=np.isnan, on="float", result=BOOL):
    """Whether x is no number."""


class BitNot(Unary, op="bit_not", function=np.invert, on="integer"):
    """All bits inverted."""


class Atan2(Binary, op="atan2", function=np.arctan2, on="float"):
    """The angle of the point (b, a), in -pi..pi"""


class Fmod(Binary, op="fmod", function=np.fmod):
    """Remainder with the sign of a."""


def _trunc_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if np.issubdtype(a.dtype, np.floating):
        return np.asarray(np.trunc(a / b))
    return np.asarray((a - np.fmod(a, b)) // b)


class TruncDiv(Binary, op="trunc_div", function=_trunc_div):
    """a / b rounded toward zero"""


class Xor(Binary, op="xor", function=np.logical_xor, on="bool"):
    """Logical exclusive or."""


class BitAnd(Binary, op="bit_and", function=np.bitwise_and, on="integer"):
    """And of the bits."""


class BitOr(Binary, op="bit_or", function=np.bitwise_or, on="integer"):
    """Or of the bits."""


class BitXor(Binary, op="bit_xor", function=np.bitwise_xor, on="integer"):
    """Exclusive or of the bits."""


def _shift_left(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < bits)
    shifted: np.ndarray = np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0)
    return shifted


def _shift_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    most = 8 * a.dtype.itemsize - 1
    inside = (b >= 0) & (b <= most)
    outside = 0 if a.dtype.kind == "u" else np.right_shift(a, most)
    shifted: np.ndarray = np.where(inside, np.right_shift(a, np.where(inside, b, 0)), outside)
    return shifted


class ShiftLeft(Binary, op="shift_left", function=_shift_left, on="integer"):
    """a * 2^b; 0 where b is not in 0..bits-1"""


class ShiftRight(Binary, op="shift_right", function=_shift_right, on="integer"):
    """floor(a / 2^b); the sign alone, 0 or -1, where b is not in 0..bits-1"""
