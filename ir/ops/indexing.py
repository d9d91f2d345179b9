"""Ops that pick or replace parts along one axis, by computed index.

With index arithmetic on a flat view they are every gather, scatter, flip, diagonal or fold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...errors import VerifyError
from ..op import Array, Op, expect
from ..types import TensorType


def _expect_axis(where: str, x: TensorType, axis: int) -> None:
    good = 0 <= axis < x.rank and not x.dtype.is_block
    expect(good, f"{where}: expected plain elements and an axis of {x}, got {axis}")


def _checked(where: str, ids: np.ndarray, size: int) -> np.ndarray:
    """NumPy would count negative indices from the end."""
    if ids.size and (ids.min() < 0 or ids.max() >= size):
        got = f"{ids.min()}..{ids.max()}"
        raise VerifyError(f"{where}: expected indices in 0..{size - 1}, got {got}")
    return ids


@dataclass(frozen=True)
class TakeAxis(Op):
    """(x, ids i32[L]) -> x with ``axis`` replaced by L parts: y[.., l, ..] = x[.., ids[l], ..]."""

    axis: int = 0
    name: ClassVar[str] = "take_axis"

    def infer(self, x: TensorType, ids: TensorType) -> tuple[TensorType, ...]:
        _expect_axis("take_axis", x, self.axis)
        good = ids.rank == 1 and ids.dtype.is_integer
        expect(good, f"take_axis: expected indices i32[L], got {ids}")
        return (x.with_shape(*x.shape[: self.axis], *ids.shape, *x.shape[self.axis + 1 :]),)

    def reference(self, x: Array, ids: Array) -> Array:
        return np.take(x, _checked("take_axis", ids, x.shape[self.axis]), self.axis)


COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "put": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@dataclass(frozen=True)
class PutAxis(Op):
    """(x, ids i32[L], src) -> x with part ids[l] of ``axis`` combined with part l of src, in order.

    ``how`` is put (the last of equal indices stays), add, mul, min or max.
    """

    axis: int = 0
    how: str = "put"
    name: ClassVar[str] = "put_axis"

    def infer(self, x: TensorType, ids: TensorType, src: TensorType) -> tuple[TensorType, ...]:
        _expect_axis("put_axis", x, self.axis)
        expect(self.how in COMBINE, f"put_axis: expected one of {list(COMBINE)}, got {self.how}")
        good = ids.rank == 1 and ids.dtype.is_integer
        expect(good, f"put_axis: expected indices i32[L], got {ids}")
        wanted = x.with_shape(*x.shape[: self.axis], *ids.shape, *x.shape[self.axis + 1 :])
        expect(src == wanted, f"put_axis: expected a source {wanted}, got {src}")
        return (x,)

    def reference(self, x: Array, ids: Array, src: Array) -> Array:
        _checked("put_axis", ids, x.shape[self.axis])
        y, parts = np.moveaxis(np.array(x), self.axis, 0), np.moveaxis(src, self.axis, 0)
        for i, part in zip(ids, parts, strict=True):
            y[i] = COMBINE[self.how](y[i], part)
        return np.ascontiguousarray(np.moveaxis(y, 0, self.axis))
