"""Reductions along one axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dtype import I32
from ..op import Array, Op, expect
from ..types import TensorType


def _check_axis(where: str, x: TensorType, axis: int, floats: bool = False) -> None:
    good = x.dtype.is_float if floats else x.dtype.is_float or x.dtype.is_integer
    good = good and not x.dtype.is_block
    expect(good, f"{where}: expected {'floats' if floats else 'numbers'}, got {x}")
    expect(-x.rank <= axis < x.rank, f"{where}: expected an axis of {x}, got {axis}")


@dataclass(frozen=True)
class Reduce(Op):
    """Base: reduce ``axis``; it stays as 1 with ``keepdim``."""

    axis: int = -1
    keepdim: bool = False

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _check_axis(self.name, x, self.axis)
        axis = self.axis % x.rank
        middle = (1,) if self.keepdim else ()
        return (x.with_shape(*x.shape[:axis], *middle, *x.shape[axis + 1 :]),)


@dataclass(frozen=True)
class Sum(Reduce):
    """Sum, accumulated in f64 for floats."""

    name: ClassVar[str] = "sum"

    def reference(self, x: Array) -> Array:
        wide = np.float64 if np.issubdtype(x.dtype, np.floating) else x.dtype
        return np.sum(x, self.axis, dtype=wide, keepdims=self.keepdim).astype(x.dtype)


@dataclass(frozen=True)
class Mean(Reduce):
    """Arithmetic mean, accumulated in f64."""

    name: ClassVar[str] = "mean"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _check_axis("mean", x, self.axis, floats=True)
        return super().infer(x)

    def reference(self, x: Array) -> Array:
        return np.mean(x, self.axis, dtype=np.float64, keepdims=self.keepdim).astype(x.dtype)


@dataclass(frozen=True)
class Max(Reduce):
    """Largest element; NaN wins."""

    name: ClassVar[str] = "max"

    def reference(self, x: Array) -> Array:
        return np.max(x, self.axis, keepdims=self.keepdim)


@dataclass(frozen=True)
class Min(Reduce):
    """Smallest element; NaN wins."""

    name: ClassVar[str] = "min"

    def reference(self, x: Array) -> Array:
        return np.min(x, self.axis, keepdims=self.keepdim)


@dataclass(frozen=True)
class Prod(Reduce):
    """Product, accumulated in f64 for floats."""

    name: ClassVar[str] = "prod"

    def reference(self, x: Array) -> Array:
        wide = np.float64 if np.issubdtype(x.dtype, np.floating) else x.dtype
        return np.prod(x, self.axis, dtype=wide, keepdims=self.keepdim).astype(x.dtype)


@dataclass(frozen=True)
class Argmax(Reduce):
    """Index of the largest element; of equal ones the lowest index."""

    name: ClassVar[str] = "argmax"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        (result,) = super().infer(x)
        return (result.with_dtype(I32),)

    def reference(self, x: Array) -> Array:
        return np.argmax(x, self.axis, keepdims=self.keepdim).astype(np.int32)


@dataclass(frozen=True)
class Argmin(Reduce):
    """Index of the smallest element; of equal ones the lowest index."""

    name: ClassVar[str] = "argmin"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        (result,) = super().infer(x)
        return (result.with_dtype(I32),)

    def reference(self, x: Array) -> Array:
        return np.argmin(x, self.axis, keepdims=self.keepdim).astype(np.int32)


@dataclass(frozen=True)
class Softmax(Op):
    """e^(x - max) / sum, along ``axis``."""

    axis: int = -1
    name: ClassVar[str] = "softmax"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _check_axis("softmax", x, self.axis, floats=True)
        return (x,)

    def reference(self, x: Array) -> Array:
        with np.errstate(invalid="ignore"):  # a row of -inf alone has no softmax: NaN, as in torch
            wide = np.exp(x.astype(np.float64) - np.max(x, self.axis, keepdims=True))
            return (wide / np.sum(wide, self.axis, keepdims=True)).astype(x.dtype)
