"""Ops that work element by element, with NumPy's broadcasting of dims that are 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..dtype import BF16, BOOL, DType, round_bf16
from ..op import Array, Op, expect
from ..types import TensorType, broadcast_shapes

Function = Callable[..., np.ndarray]

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def gelu(x: np.ndarray) -> np.ndarray:
    """0.5 x (1 + erf(x / sqrt 2)), computed in f64."""
    return np.asarray(0.5 * x * (1 + _ERF(np.asarray(x, np.float64) / math.sqrt(2))))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), computed in f64."""
    x = np.asarray(x, np.float64)
    cubic = x + 0.044715 * x * x * x
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * cubic)))


def silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * _sigmoid(x))


ACTIVATIONS: dict[str, Function] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
}
"""Activations that fused ops name in their ``activation`` attribute."""


Kind = Literal["number", "float", "integer", "bool", "any"]


def _is(dtype: DType, kind: Kind) -> bool:
    """Plain dtypes only: values of a block type are reached through `linear` and `embedding`."""
    if dtype.is_block:
        return False
    return {
        "number": dtype != BOOL,
        "float": dtype.is_float,
        "integer": dtype.is_integer,
        "bool": dtype == BOOL,
        "any": True,
    }[kind]


class _Elementwise(Op):
    """What unary and binary ops share: a NumPy function, and the kind of operands it takes."""

    function: ClassVar[Function]
    on: ClassVar[Kind]
    result: ClassVar[DType | None] = None
    """The result's dtype if it differs from the operands'."""

    def __init_subclass__(
        cls,
        op: str = "",
        function: Function | None = None,
        on: Kind = "number",
        result: DType | None = None,
    ) -> None:
        cls.name = op
        if function is not None:
            cls.function, cls.on, cls.result = staticmethod(function), on, result
        super().__init_subclass__()

    def _compute(self, *arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            result = type(self).function(*map(np.asarray, arrays))
        return np.asarray(result).astype(
            self.result.numpy if self.result else np.asarray(arrays[0]).dtype
        )


@dataclass(frozen=True)
class Unary(_Elementwise):
    """One operand, one result of its shape."""

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect(_is(x.dtype, self.on), f"{self.name}: expected {self.on} elements, got {x}")
        return (x.with_dtype(self.result or x.dtype),)

    def reference(self, x: Array) -> Array:
        return self._compute(x)


class Neg(Unary, op="neg", function=np.negative):
    """y = -x"""


class Abs(Unary, op="abs", function=np.abs):
    """y = |x|"""


class Exp(Unary, op="exp", function=np.exp, on="float"):
    """y = e^x"""


class Log(Unary, op="log", function=np.log, on="float"):
    """y = ln x"""


class Sqrt(Unary, op="sqrt", function=np.sqrt, on="float"):
    """y = sqrt x"""


class Rsqrt(Unary, op="rsqrt", function=lambda x: 1 / np.sqrt(x), on="float"):
    """y = 1 / sqrt x"""


class Reciprocal(Unary, op="reciprocal", function=lambda x: 1 / x, on="float"):
    """y = 1 / x"""


class Sin(Unary, op="sin", function=np.sin, on="float"):
    """y = sin x"""


class Cos(Unary, op="cos", function=np.cos, on="float"):
    """y = cos x"""


class Tanh(Unary, op="tanh", function=np.tanh, on="float"):
    """y = tanh x"""


class Erf(Unary, op="erf", function=lambda x: _ERF(x), on="float"):
    """y = erf x"""


class Sigmoid(Unary, op="sigmoid", function=_sigmoid, on="float"):
    """y = 1 / (1 + e^-x)"""


class Silu(Unary, op="silu", function=silu, on="float"):
    """y = x / (1 + e^-x)"""


class Gelu(Unary, op="gelu", function=gelu, on="float"):
    """y = 0.5 x (1 + erf(x / sqrt 2))"""


class GeluTanh(Unary, op="gelu_tanh", function=gelu_tanh, on="float"):
    """Gelu with its tanh approximation."""


class Relu(Unary, op="relu", function=lambda x: np.maximum(x, 0)):
    """y = max(x, 0)"""


class Floor(Unary, op="floor", function=np.floor, on="float"):
    """Largest integer not above x."""


class Not(Unary, op="not", function=np.logical_not, on="bool"):
    """Logical negation."""


@dataclass(frozen=True)
class Binary(_Elementwise):
    """Two operands of one dtype, broadcast."""

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        expect(a.dtype == b.dtype, f"{self.name}: expected equal dtypes, got {a} and {b}")
        expect(_is(a.dtype, self.on), f"{self.name}: expected {self.on} elements, got {a}")
        shape = broadcast_shapes(self.name, a.shape, b.shape)
        return (TensorType(self.result or a.dtype, shape),)

    def reference(self, a: Array, b: Array) -> Array:
        return self._compute(a, b)


class Add(Binary, op="add", function=np.add):
    """y = a + b"""


class Sub(Binary, op="sub", function=np.subtract):
    """y = a - b"""


class Mul(Binary, op="mul", function=np.multiply):
    """y = a * b"""


class Div(Binary, op="div", function=np.divide, on="float"):
    """y = a / b"""


class FloorDiv(Binary, op="floor_div", function=np.floor_divide):
    """y = floor(a / b)"""


class Mod(Binary, op="mod", function=np.mod):
    """Remainder with the sign of b."""


class Pow(Binary, op="pow", function=np.power):
    """y = a ** b"""


class Maximum(Binary, op="maximum", function=np.maximum):
    """y = max(a, b), NaN wins"""


class Minimum(Binary, op="minimum", function=np.minimum):
    """y = min(a, b), NaN wins"""


class Eq(Binary, op="eq", function=np.equal, on="any", result=BOOL):
    """a == b"""


class Ne(Binary, op="ne", function=np.not_equal, on="any", result=BOOL):
    """a != b"""


class Lt(Binary, op="lt", function=np.less, result=BOOL):
    """a < b"""


class Le(Binary, op="le", function=np.less_equal, result=BOOL):
    """a <= b"""


class Gt(Binary, op="gt", function=np.greater, result=BOOL):
    """a > b"""


class Ge(Binary, op="ge", function=np.greater_equal, result=BOOL):
    """a >= b"""


class And(Binary, op="and", function=np.logical_and, on="bool"):
    """Logical and."""


class Or(Binary, op="or", function=np.logical_or, on="bool"):
    """Logical or."""


@dataclass(frozen=True)
class Where(Op):
    """y = a where the condition holds, else b."""

    name: ClassVar[str] = "where"

    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        expect(condition.dtype == BOOL, f"where: expected a bool condition, got {condition}")
        good = a.dtype == b.dtype and not a.dtype.is_block
        expect(good, f"where: expected equal plain dtypes, got {a} and {b}")
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
        with np.errstate(all="ignore"):  # out of range becomes infinite, or is undefined for ints
            if self.dtype == BF16:
                return round_bf16(np.asarray(x, np.float32))
            return np.asarray(x).astype(self.dtype.numpy)


@dataclass(frozen=True)
class Bitcast(Op):
    """The same bits read as a number of another type of the same width."""

    dtype: DType
    name: ClassVar[str] = "bitcast"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        types = (x.dtype, self.dtype)
        good = x.dtype.bits == self.dtype.bits and not any(t.is_block or t == BF16 for t in types)
        expect(good, f"bitcast: expected plain dtypes of one width, got {x} to {self.dtype}")
        return (x.with_dtype(self.dtype),)

    def reference(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view(self.dtype.numpy).reshape(np.shape(x))
