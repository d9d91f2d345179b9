"""Ops of windows over the last axes of [N, C, ...]: convolutions and pools, of 1 to 3 axes.

Attributes have one number for each of these axes. Windows that begin or end outside read zeros
(convolution), or leave those places out (pools).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import sympy

from ..dim import Dim, as_dim, floordiv, prod
from ..dtype import F32, I32
from ..op import Array, Cost, Op, expect
from ..types import TensorType

Ints = tuple[int, ...]


def _places(size: Dim, window: int, stride: int, padding: int) -> Dim:
    """How many windows fit."""
    return as_dim(floordiv(as_dim(sympy.sympify(size) + padding - window), stride) + 1)


def _expect_spatial(where: str, x: TensorType, axes: int) -> None:
    good = 1 <= axes <= 3 and x.rank == axes + 2 and x.dtype == F32
    expect(good, f"{where}: expected f32 [N, C, ...] of {axes} more axes, got {x}")


@dataclass(frozen=True)
class Convolution(Op):
    """(x [N, C, ...], w [M, C / groups, ...], bias [M]?) -> [N, M, ...].

    y[n, m, o] = bias[m] + sum over c and k of w[m, c, k] * x[n, c, o * stride + k * dilation -
    before]. With ``transposed``, x reaches o = i * stride + k * dilation - before instead, and
    ``after`` is what is cut from the end; w is [M, C / groups, ...] all the same.
    """

    stride: Ints
    before: Ints
    after: Ints
    dilation: Ints
    groups: int = 1
    transposed: bool = False
    has_bias: bool = False
    name: ClassVar[str] = "convolution"

    def infer(
        self, x: TensorType, w: TensorType, bias: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        axes = len(self.stride)
        _expect_spatial("convolution", x, axes)
        lengths = {len(v) for v in (self.before, self.after, self.dilation)}
        good = lengths == {axes} and (bias is not None) == self.has_bias and self.groups > 0
        expect(good, f"convolution: expected {axes} numbers each and the bias it has, got {self}")
        kernel = w.shape[2:]
        good = w.rank == x.rank and w.dtype.is_float and not w.dtype.is_block
        good = good and all(isinstance(k, int) for k in kernel)
        good = good and w.shape[1] * self.groups == x.shape[1]
        expect(good, f"convolution: expected w [M, C / {self.groups}, ...] beside {x}, got {w}")
        if bias is not None:
            good = bias.shape == w.shape[:1] and bias.dtype.is_float and not bias.dtype.is_block
            expect(good, f"convolution: expected a bias of {w.shape[0]}, got {bias}")
        return (
            x.with_shape(
                x.shape[0], w.shape[0], *map(self._size, range(axes), x.shape[2:], kernel)
            ),
        )

    def _size(self, axis: int, size: Dim, kernel: Dim) -> Dim:
        reach = self.dilation[axis] * (int(kernel) - 1) + 1
        edges = self.before[axis] + self.after[axis]
        if not self.transposed:
            return _places(size, reach, self.stride[axis], edges)
        return as_dim((sympy.sympify(size) - 1) * self.stride[axis] + reach - edges)

    def reference(self, x: Array, w: Array, bias: Array | None = None) -> Array:
        (out,) = self.infer(*(TensorType(F32, a.shape) for a in (x, w, bias) if a is not None))
        sizes = tuple(int(d) for d in out.shape[2:])
        wide, n = x.astype(np.float64), self.groups
        total = np.zeros((x.shape[0], w.shape[0], *sizes))
        for k in itertools.product(*map(range, w.shape[2:])):
            part = self._moved(wide, k, sizes)
            part = part.reshape(x.shape[0], n, x.shape[1] // n, -1)
            weight = w[(slice(None), slice(None), *k)].astype(np.float64)
            weight = weight.reshape(n, w.shape[0] // n, -1)
            total += np.einsum("bgcp,gmc->bgmp", part, weight).reshape(total.shape)
        if bias is not None:
            total += np.asarray(bias, np.float64).reshape(-1, *(1 for _ in sizes))
        return total.astype(np.float32)

    def _moved(self, x: np.ndarray, k: Sequence[int], sizes: Ints) -> np.ndarray:
        """What each output reads of x through one place of the kernel."""
        for axis, (place, size) in enumerate(zip(k, sizes, strict=True)):
            stride, at = self.stride[axis], np.arange(size)
            offset = place * self.dilation[axis] - self.before[axis]
            at = at - offset if self.transposed else at * stride + offset
            good = (at >= 0) & (at < x.shape[axis + 2] * (stride if self.transposed else 1))
            if self.transposed:
                good &= at % stride == 0
                at = at // stride
            shape = [1] * x.ndim
            shape[axis + 2] = size
            x = np.take(x, np.where(good, at, 0), axis + 2) * good.reshape(shape)
        return x

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        moved = sum((t.bytes for t in (*inputs, *outputs)), start=0)
        return Cost(as_dim(2 * outputs[0].size * prod(inputs[1].shape[1:])), as_dim(moved))


@dataclass(frozen=True)
class _Pool(Op):
    """What pools share: windows that are cut where they leave x."""

    kernel: Ints
    stride: Ints
    before: Ints
    after: Ints
    dilation: Ints

    def _result(self, x: TensorType) -> TensorType:
        axes = len(self.kernel)
        _expect_spatial(self.name, x, axes)
        lengths = {len(v) for v in (self.stride, self.before, self.after, self.dilation)}
        expect(lengths == {axes}, f"{self.name}: expected {axes} numbers each, got {self}")
        sizes = (
            _places(x.shape[i + 2], self.dilation[i] * (k - 1) + 1, self.stride[i], self._edges(i))
            for i, k in enumerate(self.kernel)
        )
        return x.with_shape(*x.shape[:2], *sizes)

    def _edges(self, axis: int) -> int:
        return self.before[axis] + self.after[axis]

    def _windows(self, shape: Sequence[int]) -> Iterator[tuple[Ints, list[np.ndarray]]]:
        """Each output place with the places that its window has in x, by axis."""
        sizes = [int(d) for d in self._result(TensorType(F32, tuple(shape))).shape[2:]]
        for place in itertools.product(*map(range, sizes)):
            starts = [p * s - b for p, s, b in zip(place, self.stride, self.before, strict=True)]
            reach = [
                start + np.arange(k) * d
                for start, k, d in zip(starts, self.kernel, self.dilation, strict=True)
            ]
            yield (
                place,
                [r[(r >= 0) & (r < n)] for r, n in zip(reach, shape[2:], strict=True)],
            )


@dataclass(frozen=True)
class MaxPool(_Pool):
    """x [N, C, ...] -> (largest of each window, its place i32 in x's last axes taken as one)."""

    name: ClassVar[str] = "max_pool"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        result = self._result(x)
        return (result, result.with_dtype(I32))

    def reference(self, x: Array) -> tuple[Array, ...]:
        (values, ids) = (
            np.zeros([int(d) for d in t.shape], t.dtype.numpy)
            for t in self.infer(TensorType(F32, x.shape))
        )
        flat = np.arange(int(np.prod(x.shape[2:]))).reshape(x.shape[2:])
        for place, reach in self._windows(x.shape):
            at = flat[np.ix_(*reach)].ravel()
            window = x.reshape(*x.shape[:2], -1)[:, :, at]
            best = np.argmax(window, -1)  # the first of equals; NaN wins
            where: Any = (slice(None), slice(None), *place)
            values[where] = np.take_along_axis(window, best[..., None], -1)[..., 0]
            ids[where] = at[best]
        return values, ids


@dataclass(frozen=True)
class AvgPool(_Pool):
    """x [N, C, ...] -> sums of windows over ``divisor``, or if that is 0, over the window's places:
    those in x, and with ``count_padding`` those in the padding too."""

    count_padding: bool = False
    divisor: int = 0
    pads: Ints = ()
    """What ``after`` has of the padding: a window may reach beyond, to places that never count."""
    name: ClassVar[str] = "avg_pool"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        expect(len(self.pads) == len(self.kernel), f"avg_pool: expected pads by axis, got {self}")
        return (self._result(x),)

    def reference(self, x: Array) -> Array:
        (type,) = self.infer(TensorType(F32, x.shape))
        y = np.zeros([int(d) for d in type.shape], np.float32)
        for place, reach in self._windows(x.shape):
            window = x[(slice(None), slice(None), *np.ix_(*reach))].astype(np.float64)
            total = window.sum(tuple(range(2, x.ndim)))
            with np.errstate(all="ignore"):
                at: Any = (slice(None), slice(None), *place)
                y[at] = total / self._count(place, reach, x.shape)
        return y

    def _count(self, place: Ints, reach: Sequence[np.ndarray], shape: Sequence[int]) -> int:
        if self.divisor:
            return self.divisor
        if not self.count_padding:
            return int(np.prod([len(r) for r in reach]))
        count = 1
        for axis, p in enumerate(place):
            start = p * self.stride[axis] - self.before[axis]
            end = start + self.dilation[axis] * (self.kernel[axis] - 1) + 1
            count *= min(end, shape[axis + 2] + self.pads[axis]) - start
        return count
