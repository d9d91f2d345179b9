"""Converters of mathematical functions, rounding, tests of floats, and logic on bits."""

from __future__ import annotations

from ..ir.dtype import BOOL, F32
from ..ir.graph import Value
from ..ir.op import Op
from ..ir.ops import elementwise as ops
from ..ir.ops import math as maths
from .fx_convert_context import Converter, Emitter, Operand, converts

_FUNCTIONS: dict[str, type[Op]] = {
    "acos": maths.Acos,
    "acosh": maths.Acosh,
    "asin": maths.Asin,
    "asinh": maths.Asinh,
    "atan": maths.Atan,
    "atanh": maths.Atanh,
    "cosh": maths.Cosh,
    "sinh": maths.Sinh,
    "tan": maths.Tan,
    "expm1": maths.Expm1,
    "log1p": maths.Log1p,
    "log2": maths.Log2,
    "log10": maths.Log10,
}
_ROUNDINGS: dict[str, type[Op]] = {"ceil": maths.Ceil, "trunc": maths.Trunc, "fix": maths.Trunc}
_TESTS: dict[str, type[Op]] = {"isinf": maths.IsInf, "isnan": maths.IsNan}
_PAIRS: dict[str, type[Op]] = {"atan2": maths.Atan2, "arctan2": maths.Atan2, "fmod": maths.Fmod}
_BITS: dict[str, tuple[type[Op], type[Op]]] = {
    "and": (maths.BitAnd, ops.And),
    "or": (maths.BitOr, ops.Or),
    "xor": (maths.BitXor, maths.Xor),
}
_SHIFTS: dict[str, type[Op]] = {"left": maths.ShiftLeft, "right": maths.ShiftRight}


def _function(op: type[Op]) -> Converter:
    return lambda e, x: e.emit(op(), e.cast(x, F32))


def _rounding(op: type[Op]) -> Converter:
    """Integers are whole already."""
    return lambda e, x: e.emit(op(), x) if x.type.dtype == F32 else x


def _test(op: type[Op]) -> Converter:
    def convert(e: Emitter, x: Value) -> Value:
        if x.type.dtype == F32:
            return e.emit(op(), x)
        return e.broadcast(e.scalar(False, BOOL), e.shape)

    return convert


def _pair(op: type[Op]) -> Converter:
    def convert(e: Emitter, a: Operand, b: Operand) -> Value:
        dtype = e.result.dtype
        return e.emit(op(), e.operand(a, dtype), e.operand(b, dtype))

    return convert


def _bitwise(on_bits: type[Op], on_bools: type[Op]) -> Converter:
    def convert(e: Emitter, a: Operand, b: Operand) -> Value:
        """``logical_and`` of numbers, which has bools as results, asks whether they are not 0."""
        dtype = e.result.dtype
        op = on_bools() if dtype == BOOL else on_bits()
        return e.emit(op, e.operand(a, dtype), e.operand(b, dtype))

    return convert


for _name, _op in _FUNCTIONS.items():
    converts(_name)(_function(_op))
for _name, _op in _ROUNDINGS.items():
    converts(_name)(_rounding(_op))
for _name, _op in _TESTS.items():
    converts(_name)(_test(_op))
for _name, _op in _PAIRS.items():
    converts(_name)(_pair(_op))
for _name, _ops in _BITS.items():
    converts(f"bitwise_{_name}", f"logical_{_name}", f"__{_name}__")(_bitwise(*_ops))
for _name, _op in _SHIFTS.items():
    converts(f"bitwise_{_name}_shift", f"__{_name[0]}shift__")(_pair(_op))


@converts("logical_not")
def logical_not(e: Emitter, x: Value) -> Value:
    return e.emit(ops.Not(), e.cast(x, BOOL))


@converts("bitwise_not")
def bitwise_not(e: Emitter, x: Value) -> Value:
    return e.emit(ops.Not() if x.type.dtype == BOOL else maths.BitNot(), x)


@converts("round")
def round_(e: Emitter, x: Value, *, decimals: int = 0) -> Value:
    if x.type.dtype != F32:
        return x
    if not decimals:
        return e.emit(maths.Round(), x)
    scale = e.scalar(10.0 ** abs(decimals), F32)
    up, down = (ops.Mul(), ops.Div()) if decimals > 0 else (ops.Div(), ops.Mul())
    return e.emit(down, e.emit(maths.Round(), e.emit(up, x, scale)), scale)


@converts("sign", "sgn")
def sign(e: Emitter, x: Value) -> Value:
    return x if x.type.dtype == BOOL else e.emit(maths.Sign(), x)


@converts("elu")
def elu(e: Emitter, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    """scale x where x > 0, else scale alpha (e^(input_scale x) - 1)"""
    x = e.cast(x, F32)
    inner = x if input_scale == 1 else e.emit(ops.Mul(), x, e.scalar(input_scale, F32))
    curve = e.emit(ops.Mul(), e.emit(maths.Expm1(), inner), e.scalar(alpha * scale, F32))
    line = x if scale == 1 else e.emit(ops.Mul(), x, e.scalar(scale, F32))
    return e.emit(ops.Where(), e.emit(ops.Gt(), x, e.scalar(0, F32)), line, curve)
