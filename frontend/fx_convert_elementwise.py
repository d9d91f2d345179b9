"""Converters of element-by-element ATen ops, casts and constants."""

from __future__ import annotations

from typing import Any

import torch

from ..ir.dtype import BF16, BOOL, F16, F32, I32, U32, U64, DType
from ..ir.graph import Value
from ..ir.op import Op
from ..ir.ops import elementwise as ops
from ..ir.ops.math import TruncDiv
from ..ir.ops.shape import Iota
from .fx_convert_context import DTYPES, Converter, Emitter, Operand, Unsupported, converts

_UNARY: dict[str, type[Op]] = {
    "neg": ops.Neg,
    "abs": ops.Abs,
    "exp": ops.Exp,
    "log": ops.Log,
    "sqrt": ops.Sqrt,
    "rsqrt": ops.Rsqrt,
    "reciprocal": ops.Reciprocal,
    "sin": ops.Sin,
    "cos": ops.Cos,
    "tanh": ops.Tanh,
    "erf": ops.Erf,
    "sigmoid": ops.Sigmoid,
    "silu": ops.Silu,
    "relu": ops.Relu,
    "floor": ops.Floor,
}
_KEEPS_INTEGERS = ("neg", "abs", "relu")
_ARITHMETIC: dict[str, type[Op]] = {
    "mul": ops.Mul,
    "floor_divide": ops.FloorDiv,
    "remainder": ops.Mod,
    "maximum": ops.Maximum,
    "minimum": ops.Minimum,
}
_COMPARISON: dict[str, type[Op]] = {
    "eq": ops.Eq,
    "ne": ops.Ne,
    "lt": ops.Lt,
    "le": ops.Le,
    "gt": ops.Gt,
    "ge": ops.Ge,
}
_OF_BOOLS: dict[type[Op], Op] = {
    ops.Add: ops.Or(),
    ops.Mul: ops.And(),
    ops.Maximum: ops.Or(),
    ops.Minimum: ops.And(),
}
"""Arithmetic of bools is logic."""


def _unary(name: str, op: type[Op]) -> Converter:
    def convert(e: Emitter, x: Value) -> Value:
        if name in _KEEPS_INTEGERS:
            return e.emit(op(), x)
        if name == "floor" and x.type.dtype.is_integer:
            return x
        return e.emit(op(), e.cast(x, F32))

    return convert


def _arithmetic(op: type[Op]) -> Converter:
    def convert(e: Emitter, a: Operand, b: Operand) -> Value:
        dtype = e.result.dtype
        chosen = _OF_BOOLS.get(op, op()) if dtype == BOOL else op()
        return e.emit(chosen, e.operand(a, dtype), e.operand(b, dtype))

    return convert


def _comparison(op: type[Op]) -> Converter:
    def convert(e: Emitter, a: Operand, b: Operand) -> Value:
        dtype = common_dtype(a, b)
        if dtype == BOOL and op not in (ops.Eq, ops.Ne):
            dtype = I32
        return e.emit(op(), e.operand(a, dtype), e.operand(b, dtype))

    return convert


def common_dtype(*operands: Operand) -> DType:
    """The type that holds all operands: f32, u64, u32, i32 or bool, the first that some need."""
    dtypes = {x.type.dtype for x in operands if isinstance(x, Value)}
    kinds = {type(x) for x in operands if not isinstance(x, Value)}
    if F32 in dtypes or float in kinds:
        return F32
    for wide in (U64, U32):
        if wide in dtypes:
            return wide
    return BOOL if dtypes | {BOOL} == {BOOL} and kinds <= {bool} else I32


for _name, _op in _UNARY.items():
    converts(_name)(_unary(_name, _op))
for _name, _op in _ARITHMETIC.items():
    converts(_name)(_arithmetic(_op))
for _name, _op in _COMPARISON.items():
    converts(_name)(_comparison(_op))


@converts("add")
def add(e: Emitter, a: Operand, b: Operand, *, alpha: float = 1) -> Value:
    dtype = e.result.dtype
    op = ops.Or() if dtype == BOOL else ops.Add()
    return e.emit(op, e.operand(a, dtype), _scaled(e, b, alpha, dtype))


@converts("sub", "subtract")
def sub(e: Emitter, a: Operand, b: Operand, *, alpha: float = 1) -> Value:
    dtype = e.result.dtype
    return e.emit(ops.Sub(), e.operand(a, dtype), _scaled(e, b, alpha, dtype))


@converts("rsub")
def rsub(e: Emitter, a: Operand, b: Operand, alpha: float = 1) -> Value:
    dtype = e.result.dtype
    return e.emit(ops.Sub(), e.operand(b, dtype), _scaled(e, a, alpha, dtype))


def _scaled(e: Emitter, x: Operand, alpha: float, dtype: DType) -> Value:
    value = e.operand(x, dtype)
    if alpha == 1:
        return value
    return e.emit(ops.And() if dtype == BOOL else ops.Mul(), value, e.scalar(alpha, dtype))


@converts("div", "true_divide", "divide")
def div(e: Emitter, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Value:
    dtype = e.result.dtype
    op = {"trunc": TruncDiv(), "floor": ops.FloorDiv(), None: ops.Div()}[rounding_mode]
    return e.emit(op, e.operand(a, dtype), e.operand(b, dtype))


@converts("pow")
def power(e: Emitter, a: Operand, b: Operand) -> Value:
    """Small exponents become products and roots, which recognition and kernels know."""
    dtype = e.result.dtype
    base = e.operand(a, dtype)
    if not isinstance(b, Value) and b in (2, 3):
        square = e.emit(ops.Mul(), base, base)
        return square if b == 2 else e.emit(ops.Mul(), square, base)
    if not isinstance(b, Value) and b in (0.5, -0.5) and dtype == F32:
        return e.emit(ops.Sqrt() if b == 0.5 else ops.Rsqrt(), base)
    return e.emit(ops.Pow(), base, e.operand(b, dtype))


@converts("addcmul")
def addcmul(e: Emitter, x: Value, a: Value, b: Value, *, value: float = 1) -> Value:
    return e.emit(ops.Add(), x, _scaled(e, e.emit(ops.Mul(), a, b), value, e.result.dtype))


@converts("square")
def square(e: Emitter, x: Value) -> Value:
    return e.emit(ops.Mul(), x, x)


@converts("gelu")
def gelu(e: Emitter, x: Value, *, approximate: str = "none") -> Value:
    return e.emit(ops.GeluTanh() if approximate == "tanh" else ops.Gelu(), x)


@converts("clamp", "clip")
def clamp(e: Emitter, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    dtype = e.result.dtype
    result = e.cast(x, dtype)
    if min is not None:
        result = e.emit(ops.Maximum(), result, e.operand(min, dtype))
    return result if max is None else e.emit(ops.Minimum(), result, e.operand(max, dtype))


@converts("leaky_relu")
def leaky_relu(e: Emitter, x: Value, negative_slope: float = 0.01) -> Value:
    positive = e.emit(ops.Gt(), x, e.scalar(0, F32))
    return e.emit(ops.Where(), positive, x, e.emit(ops.Mul(), x, e.scalar(negative_slope, F32)))


@converts("softplus")
def softplus(e: Emitter, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """log(1 + e^(beta x)) / beta, and x itself from where both are the same to f32."""
    scaled = e.emit(ops.Mul(), x, e.scalar(beta, F32))
    inner = e.emit(ops.Exp(), e.emit(ops.Minimum(), scaled, e.scalar(threshold, F32)))
    grown = e.emit(ops.Add(), inner, e.scalar(1, F32))
    curve = e.emit(ops.Div(), e.emit(ops.Log(), grown), e.scalar(beta, F32))
    return e.emit(ops.Where(), e.emit(ops.Gt(), scaled, e.scalar(threshold, F32)), x, curve)


@converts("hardtanh")
def hardtanh(e: Emitter, x: Value, min_val: float = -1, max_val: float = 1) -> Value:
    return clamp(e, x, min_val, max_val)


@converts("clamp_min")
def clamp_min(e: Emitter, x: Value, min: Operand) -> Value:
    return clamp(e, x, min)


@converts("clamp_max")
def clamp_max(e: Emitter, x: Value, max: Operand) -> Value:
    return clamp(e, x, None, max)


@converts("where")
def where(e: Emitter, condition: Value, a: Operand, b: Operand) -> Value:
    dtype = e.result.dtype
    return e.emit(ops.Where(), condition, e.operand(a, dtype), e.operand(b, dtype))


@converts("masked_fill")
def masked_fill(e: Emitter, x: Value, mask: Value, value: Operand) -> Value:
    return e.emit(ops.Where(), mask, e.operand(value, x.type.dtype), x)


# Copies and casts --------------------------------------------------------------------------


@converts("to", "_to_copy", "type_as", "clone", "contiguous", "alias", "detach", "lift_fresh_copy")
def to(e: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    """A copy; a change of dtype is a cast, unless both are floats: all float arithmetic is f32."""
    return e.cast(x, e.result.dtype)


@converts("sglk.rounded")
def rounded(e: Emitter, x: Value, to: str) -> Value:
    """The one cast between float types that stays, and the way back."""
    return e.cast(e.cast(x, {"f16": F16, "bf16": BF16}[to]), x.type.dtype)


@converts("dropout", "native_dropout_eval")
def dropout(e: Emitter, x: Value, p: float, train: bool) -> Value:
    if train and p:
        raise Unsupported("dropout in training mode (call eval() on the module)")
    return x


# Constants ---------------------------------------------------------------------------------


@converts("full", "full_like", "new_full")
def full(e: Emitter, _: Any, *rest: Any, **__: Any) -> Value:
    """The fill value is the last positional argument of every overload."""
    return filled(e, rest[-1])


@converts("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_permuted")
def zeros(e: Emitter, *_: Any, **__: Any) -> Value:
    """Memory without values may hold anything, so it holds zeros."""
    return filled(e, 0)


@converts("ones", "ones_like", "new_ones")
def ones(e: Emitter, *_: Any, **__: Any) -> Value:
    return filled(e, 1)


@converts("scalar_tensor")
def scalar_tensor(e: Emitter, number: Operand, **_: Any) -> Value:
    return e.operand(number, e.result.dtype)


def filled(e: Emitter, number: Operand) -> Value:
    result = e.result
    return e.broadcast(e.operand(number, result.dtype), result.shape)


@converts("arange")
def arange(e: Emitter, *bounds: Operand, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """``arange(stop)``, ``arange(start, stop)``, ``arange(start, stop, step)``."""
    result = DTYPES[dtype] if dtype is not None else e.result.dtype
    start = bounds[0] if len(bounds) > 1 else 0
    step = bounds[2] if len(bounds) > 2 else 1
    count = e.cast(e.emit(Iota(e.shape[0])), result)
    if step != 1:
        count = e.emit(ops.Mul(), count, e.operand(step, result))
    return count if start == 0 else e.emit(ops.Add(), count, e.operand(start, result))
