"""Ops that move or rename elements without computing: reshape, transpose, slice, concat, broadcast,
iota."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import sympy

from ...errors import VerifyError
from ..dim import Dim, as_dim, floordiv
from ..dtype import BOOL, I32, DType
from ..op import Array, Op, expect
from ..quantized import Quantized
from ..quantized import concat as stack_rows
from ..types import TensorType


@dataclass(frozen=True)
class Reshape(Op):
    """Same elements in row-major order under another shape of symbolically equal size."""

    shape: tuple[Dim, ...]
    name: ClassVar[str] = "reshape"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect(not x.dtype.is_block, f"reshape: expected a plain dtype, got {x}")
        result = x.with_shape(*self.shape)
        expect(result.size == x.size, f"reshape: expected {x.size} elements, got {result} of {x}")
        return (result,)

    def reference(self, x: Array) -> Array:
        """At most one symbolic dim can be found from the element count."""
        x = np.asarray(x)
        known = [d if isinstance(d, int) else -1 for d in self.shape]
        if known.count(-1) > 1:
            raise VerifyError(
                f"reshape {self.shape}: expected at most one symbolic dim to interpret"
            )
        return x.reshape(known)


@dataclass(frozen=True)
class Transpose(Op):
    """Result axis i is operand axis ``permutation[i]``."""

    permutation: tuple[int, ...]
    name: ClassVar[str] = "transpose"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        good = sorted(self.permutation) == list(range(x.rank)) and not x.dtype.is_block
        expect(good, f"transpose: expected a permutation of {x.rank} axes, got {self.permutation}")
        return (x.with_shape(*(x.shape[p] for p in self.permutation)),)

    def reference(self, x: Array) -> Array:
        return np.ascontiguousarray(np.transpose(x, self.permutation))


@dataclass(frozen=True)
class Slice(Op):
    """Elements start, start + step, ... below stop along one axis; 0 <= start <= stop <= size."""

    axis: int
    start: Dim
    stop: Dim
    step: int = 1
    name: ClassVar[str] = "slice"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect(0 <= self.axis < x.rank, f"slice: expected an axis of {x}, got {self.axis}")
        expect(self.step > 0, f"slice: expected a positive step, got {self.step}")
        good = not x.dtype.is_block or (self.axis == 0 and self.step == 1)
        expect(good, f"slice: {x.dtype} is cut along axis 0 with step 1 only")
        size = x.shape[self.axis]
        bounds = [b for b in (self.start, self.stop, size) if isinstance(b, int)]
        expect(
            bounds == sorted(bounds) and min(bounds, default=0) >= 0,
            f"slice: {self.start}:{self.stop} lies outside axis {self.axis} of {x}",
        )
        length = floordiv(as_dim(sympy.sympify(self.stop) - self.start + self.step - 1), self.step)
        return (x.with_shape(*x.shape[: self.axis], length, *x.shape[self.axis + 1 :]),)

    def reference(self, x: Array) -> Array:
        if not (isinstance(self.start, int) and isinstance(self.stop, int)):
            raise VerifyError(f"slice {self.start}:{self.stop}: expected ints to interpret")
        if isinstance(x, Quantized):
            return x[self.start : self.stop]
        index = [slice(None)] * np.ndim(x)
        index[self.axis] = slice(self.start, self.stop, self.step)
        return np.ascontiguousarray(x[tuple(index)])


@dataclass(frozen=True)
class Concat(Op):
    """Operands one after the other along an axis; block types along axis 0 only."""

    axis: int
    name: ClassVar[str] = "concat"

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        expect(bool(xs), "concat: expected at least one operand")
        first = xs[0]
        expect(0 <= self.axis < first.rank, f"concat: expected an axis of {first}, got {self.axis}")
        expect(
            not first.dtype.is_block or self.axis == 0,
            f"concat: {first.dtype} joins along axis 0 only",
        )
        for x in xs:
            same = x.dtype == first.dtype and _without(x.shape, self.axis) == _without(
                first.shape, self.axis
            )
            expect(
                same, f"concat: expected equal types but for axis {self.axis}, got {first} and {x}"
            )
        total = as_dim(sum((sympy.sympify(x.shape[self.axis]) for x in xs), start=sympy.Integer(0)))
        return (first.with_shape(*first.shape[: self.axis], total, *first.shape[self.axis + 1 :]),)

    def reference(self, *xs: Array) -> Array:
        if isinstance(xs[0], Quantized):
            return stack_rows(xs)
        return np.concatenate(xs, self.axis)


def _without(shape: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
    return shape[:axis] + shape[axis + 1 :]


@dataclass(frozen=True)
class Broadcast(Op):
    """Repeat dims that are 1 (and add leading dims) to reach ``shape``."""

    shape: tuple[Dim, ...]
    name: ClassVar[str] = "broadcast"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        tail = self.shape[len(self.shape) - x.rank :] if x.rank else ()
        good = len(self.shape) >= x.rank and not x.dtype.is_block
        good = good and all(a in (1, b) for a, b in zip(x.shape, tail, strict=True))
        expect(good, f"broadcast: expected dims of {x} to be 1 or those of {self.shape}")
        return (x.with_shape(*self.shape),)

    def reference(self, x: Array) -> Array:
        x = np.asarray(x)
        if not all(isinstance(d, int) for d in self.shape):
            raise VerifyError(f"broadcast {self.shape}: expected ints to interpret")
        return np.broadcast_to(x, self.shape)


@dataclass(frozen=True)
class Iota(Op):
    """0, 1, ..., size - 1."""

    size: Dim
    dtype: DType = I32
    name: ClassVar[str] = "iota"

    def infer(self) -> tuple[TensorType, ...]:
        good = not self.dtype.is_block and self.dtype != BOOL
        expect(good, f"iota: expected a dtype of numbers, got {self.dtype}")
        return (TensorType(self.dtype, (self.size,)),)

    def reference(self) -> Array:
        if not isinstance(self.size, int):
            raise VerifyError(f"iota {self.size}: expected an int to interpret")
        return np.arange(self.size, dtype=self.dtype.numpy)
