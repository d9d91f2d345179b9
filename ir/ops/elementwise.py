"""Ops that work element by element, with NumPy's broadcasting of dims that are 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..dtype import BF16, BOOL, DType, round_bf16
from ..op import Array, Op, expect
from ..types import TensorType, broadcast_shapes

Function = Callable[..., np.ndarray]

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """0.5 x (1 + erf(x / sqrt 2)), computed in f64."""
    return 0.5 * x * (1 + _ERF(np.asarray(x, np.float64) / math.sqrt(2)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))"""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


ACTIVATIONS: dict[str, Function] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
}
"""Activations that fused ops name in their ``activation`` attribute."""


@dataclass(frozen=True)
class Unary(Op):
    """One operand, one result of the same type. ``function`` is the NumPy meaning."""

    function: ClassVar[Function]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            result = type(self).function(np.asarray(x))
        return result.astype(np.asarray(x).dtype)


def _unary(op_name: str, function: Function, doc: str) -> type[Unary]:
    class_name = "".join(part.capitalize() for part in op_name.split("_"))
    body: dict[str, Any] = {
        "name": op_name,
        "function": staticmethod(function),
        "__doc__": doc,
        "__module__": __name__,
        "__annotations__": {},
    }
    return dataclass(frozen=True)(type(class_name, (Unary,), body))


Neg = _unary("neg", np.negative, "y = -x")
Abs = _unary("abs", np.abs, "y = |x|")
Exp = _unary("exp", np.exp, "y = e^x")
Log = _unary("log", np.log, "y = ln x")
Sqrt = _unary("sqrt", np.sqrt, "y = sqrt x")
Rsqrt = _unary("rsqrt", lambda x: 1 / np.sqrt(x), "y = 1 / sqrt x")
Reciprocal = _unary("reciprocal", lambda x: 1 / x, "y = 1 / x")
Sin = _unary("sin", np.sin, "y = sin x")
Cos = _unary("cos", np.cos, "y = cos x")
Tanh = _unary("tanh", np.tanh, "y = tanh x")
Erf = _unary("erf", lambda x: _ERF(x), "y = erf x")
Sigmoid = _unary("sigmoid", _sigmoid, "y = 1 / (1 + e^-x)")
Silu = _unary("silu", silu, "y = x / (1 + e^-x)")
Gelu = _unary("gelu", gelu, "y = 0.5 x (1 + erf(x / sqrt 2))")
GeluTanh = _unary("gelu_tanh", gelu_tanh, "gelu with its tanh approximation")
Relu = _unary("relu", lambda x: np.maximum(x, 0), "y = max(x, 0)")
Floor = _unary("floor", np.floor, "largest integer not above x")
Not = _unary("not", np.logical_not, "logical negation of a bool")


@dataclass(frozen=True)
class Binary(Op):
    """Two operands of one dtype, broadcast; ``result`` is the dtype if it differs from theirs."""

    function: ClassVar[Function]
    result: ClassVar[DType | None] = None

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        expect(a.dtype == b.dtype, f"{self.name}: expected equal dtypes, got {a} and {b}")
        shape = broadcast_shapes(self.name, a.shape, b.shape)
        return (TensorType(self.result or a.dtype, shape),)

    def reference(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            result = type(self).function(np.asarray(a), np.asarray(b))
        return np.asarray(result).astype(
            self.result.numpy if self.result else np.asarray(a).dtype
        )


def _binary(
    op_name: str, function: Function, doc: str, result: DType | None = None
) -> type[Binary]:
    class_name = "".join(part.capitalize() for part in op_name.split("_"))
    body: dict[str, Any] = {
        "name": op_name,
        "function": staticmethod(function),
        "result": result,
        "__doc__": doc,
        "__module__": __name__,
        "__annotations__": {},
    }
    return dataclass(frozen=True)(type(class_name, (Binary,), body))


Add = _binary("add", np.add, "y = a + b")
Sub = _binary("sub", np.subtract, "y = a - b")
Mul = _binary("mul", np.multiply, "y = a * b")
Div = _binary("div", lambda a, b: a / b, "y = a / b (floats)")
FloorDiv = _binary("floor_div", np.floor_divide, "y = floor(a / b)")
Mod = _binary("mod", np.mod, "remainder with the sign of b")
Pow = _binary("pow", np.power, "y = a ** b")
Maximum = _binary("maximum", np.maximum, "y = max(a, b), NaN wins")
Minimum = _binary("minimum", np.minimum, "y = min(a, b), NaN wins")
Eq = _binary("eq", np.equal, "a == b", BOOL)
Ne = _binary("ne", np.not_equal, "a != b", BOOL)
Lt = _binary("lt", np.less, "a < b", BOOL)
Le = _binary("le", np.less_equal, "a <= b", BOOL)
Gt = _binary("gt", np.greater, "a > b", BOOL)
Ge = _binary("ge", np.greater_equal, "a >= b", BOOL)
And = _binary("and", np.logical_and, "logical and of bools", BOOL)
Or = _binary("or", np.logical_or, "logical or of bools", BOOL)


@dataclass(frozen=True)
class Where(Op):
    """y = a where the condition holds, else b."""

    name: ClassVar[str] = "where"

    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        expect(condition.dtype == BOOL, f"where: expected a bool condition, got {condition}")
        expect(a.dtype == b.dtype, f"where: expected equal dtypes, got {a} and {b}")
        return (TensorType(a.dtype, broadcast_shapes("where", condition.shape, a.shape, b.shape)),)

    def reference(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)


@dataclass(frozen=True)
class Cast(Op):
    """Convert to another plain dtype: round to nearest even, floats to ints toward zero."""

    dtype: DType
    name: ClassVar[str] = "cast"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect(
            not (x.dtype.is_block or self.dtype.is_block), f"cast: expected plain dtypes, got {x}"
        )
        return (x.with_dtype(self.dtype),)

    def reference(self, x: Array) -> Array:
        if self.dtype == BF16:
            return round_bf16(np.asarray(x, np.float32))
        return np.asarray(x).astype(self.dtype.numpy)
