"""Ops along the last axis that put elements in order, pick them by index, or add them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...errors import VerifyError
from ..dtype import I32
from ..op import Array, Op, expect
from ..types import TensorType


def _expect_width(where: str, x: TensorType) -> int:
    """The size of the last axis, which must be known, of plain elements."""
    width = x.shape[-1] if x.rank else None
    good = isinstance(width, int) and not x.dtype.is_block
    expect(good, f"{where}: expected plain elements and a last axis of known size, got {x}")
    assert isinstance(width, int)
    return width


def _expect_ids(where: str, x: TensorType, ids: TensorType) -> None:
    good = ids.dtype.is_integer and ids.rank == x.rank and ids.shape[:-1] == x.shape[:-1]
    expect(good, f"{where}: expected integers [..., k] beside {x}, got {ids}")


def _checked(where: str, ids: np.ndarray, width: int) -> np.ndarray:
    """NumPy would count negative indices from the end."""
    if ids.size and (ids.min() < 0 or ids.max() >= width):
        got = f"{ids.min()}..{ids.max()}"
        raise VerifyError(f"{where}: expected indices in 0..{width - 1}, got {got}")
    return ids


def _reversed(x: np.ndarray) -> np.ndarray:
    """Numbers in the opposite order: ~i of an integer i, where -i may not fit."""
    return np.asarray(-x if np.issubdtype(x.dtype, np.floating) else ~x)


@dataclass(frozen=True)
class TopK(Op):
    """(x [..., N]) -> (values [..., k], indices i32[..., k]): the k largest, largest first.

    Of equal ones the lowest index comes first, so k = N sorts downwards and keeps that order.
    """

    k: int
    name: ClassVar[str] = "top_k"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        width = _expect_width("top_k", x)
        good = (x.dtype.is_float or x.dtype.is_integer) and 0 < self.k <= width
        expect(good, f"top_k: expected numbers [..., N] with N >= {self.k} > 0, got {x}")
        values = x.with_shape(*x.shape[:-1], self.k)
        return (values, values.with_dtype(I32))

    def reference(self, x: Array) -> tuple[Array, ...]:
        ids = np.argsort(_reversed(x), axis=-1, kind="stable")[..., : self.k]
        return np.take_along_axis(x, ids, -1), ids.astype(np.int32)


@dataclass(frozen=True)
class TakeAlong(Op):
    """(x [..., N], ids i32[..., k]) -> [..., k]: y[..., j] = x[..., ids[..., j]]."""

    name: ClassVar[str] = "take_along"

    def infer(self, x: TensorType, ids: TensorType) -> tuple[TensorType, ...]:
        _expect_width("take_along", x)
        _expect_ids("take_along", x, ids)
        return (x.with_shape(*ids.shape),)

    def reference(self, x: Array, ids: Array) -> Array:
        return np.take_along_axis(x, _checked("take_along", ids, x.shape[-1]), -1)


@dataclass(frozen=True)
class PutAlong(Op):
    """(x [..., N], ids i32[..., k], src [..., k]) -> x with y[..., ids[..., j]] = src[..., j].

    Where an index repeats, its last element stays.
    """

    name: ClassVar[str] = "put_along"

    def infer(self, x: TensorType, ids: TensorType, src: TensorType) -> tuple[TensorType, ...]:
        _expect_width("put_along", x)
        _expect_ids("put_along", x, ids)
        good = src == x.with_shape(*ids.shape)
        expect(good, f"put_along: expected a source {x.dtype}{list(ids.shape)}, got {src}")
        return (x,)

    def reference(self, x: Array, ids: Array, src: Array) -> Array:
        result = np.array(x)
        for j in range(ids.shape[-1]):
            at = _checked("put_along", ids[..., j : j + 1], x.shape[-1])
            np.put_along_axis(result, at, src[..., j : j + 1], -1)
        return result


@dataclass(frozen=True)
class CumSum(Op):
    """(x [..., N]) -> y[..., i] = x[..., 0] + ... + x[..., i], accumulated in f64 for floats."""

    name: ClassVar[str] = "cumsum"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _expect_width("cumsum", x)
        good = x.dtype.is_float or x.dtype.is_integer
        expect(good, f"cumsum: expected numbers, got {x}")
        return (x,)

    def reference(self, x: Array) -> Array:
        wide = np.float64 if np.issubdtype(x.dtype, np.floating) else x.dtype
        return np.cumsum(x, -1, dtype=wide).astype(x.dtype)
