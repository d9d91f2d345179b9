"""Matrices in a group form (`ir.forms`): integers or small floats, scales, zero points.

>>> q = np.full((1, 32), 9, np.uint8)
>>> GroupArray("i4_row_f16", (1, 32), q, np.array([[0.5]], np.float16)).dequantize()[0, :2]
array([0.5, 0.5], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import VerifyError
from .forms import SLICE, GroupForm, form_named
from .quantized import Quantized

SCALE_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype("<f2"),
    "bf16": np.dtype("<u2"),
    "f32": np.dtype("<f4"),
}
"""How scales are held; bf16 as its bits."""
_VALUES_AT_ONCE = 1 << 22


def _e4m3_table() -> NDArray[np.float32]:
    """Value of each byte: sign, 4 bits of exponent (bias 7), 3 of fraction; S.1111.111 is NaN."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = np.where(
        exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent.astype(float) - 10)
    )
    size = np.where(byte & 127 == 127, np.nan, size)
    return np.where(byte > 127, -size, size).astype(np.float32)


E4M3_VALUES = _e4m3_table()
"""OCP 8-bit floating point, e4m3: no infinities, largest value 448."""


@dataclass(frozen=True, eq=False)
class GroupArray(Quantized):
    """A matrix [N, K] of the form that `dtype` names."""

    dtype: str
    shape: tuple[int, int]
    q: NDArray[np.uint8]
    """[N, K], a byte each: i4 0..15; i8 signed values + 128; e4m3 as stored."""
    scale: NDArray[np.generic]
    """[N, groups], of `SCALE_TYPES`."""
    zero: NDArray[np.uint8] | None = None
    """[N, groups], counted as `q`; None where the form has none."""

    def __post_init__(self) -> None:
        form = form_named(self.dtype)
        if form is None:
            raise VerifyError(f"group array: expected the name of a form, got {self.dtype!r}")
        if len(self.shape) != 2 or self.shape[0] < 0 or self.shape[1] % SLICE:
            raise VerifyError(
                f"{self.dtype}: expected [N, K] with K a multiple of {SLICE}, got {self.shape}"
            )
        groups = (self.shape[0], form.groups(self.shape[1]))
        self._check("q", self.q, np.dtype(np.uint8), self.shape)
        self._check("scales", self.scale, SCALE_TYPES[form.scale], groups)
        if (self.zero is None) == form.has_zeros:
            raise VerifyError(f"{self.dtype}: expected zero points just if its name ends in _z")
        if self.zero is not None:
            self._check("zero points", self.zero, np.dtype(np.uint8), groups)

    def _check(
        self, what: str, array: NDArray[np.generic], dtype: np.dtype[np.generic], shape: object
    ) -> None:
        if array.dtype != dtype or array.shape != shape:
            raise VerifyError(
                f"{self.dtype} of {self.shape}: expected {what} {dtype} of {shape}, "
                f"got {array.dtype} of {array.shape}"
            )

    @property
    def form(self) -> GroupForm:
        """What the name says."""
        form = form_named(self.dtype)
        assert form is not None
        return form

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.form.row_bytes(self.shape[1])

    def scales(self) -> NDArray[np.float32]:
        """The scales as f32 [N, groups]; exact."""
        if self.form.scale != "bf16":
            return self.scale.astype(np.float32)
        return (self.scale.astype(np.uint32) << 16).view(np.float32)

    def dequantize(self) -> NDArray[np.float32]:
        out = np.empty(self.shape, np.float32)
        step = max(1, _VALUES_AT_ONCE // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            out[start : start + step] = self[start : start + step]._values()
        return out

    def _values(self) -> NDArray[np.float32]:
        """Difference exact, product rounded once."""
        form, columns = self.form, self.shape[1]
        scales: NDArray[np.float32] = self._per_column(self.scales(), columns)
        if form.is_float:
            return np.asarray(E4M3_VALUES[self.q] * scales)
        zero = form.zero if self.zero is None else self._per_column(self.zero, columns)
        difference = (self.q.astype(np.int16) - zero).astype(np.float32)
        return np.asarray(difference * scales)

    def _per_column(self, groups: NDArray[Any], columns: int) -> NDArray[Any]:
        """[N, groups] as [N, K]."""
        width = self.form.group or columns
        return np.repeat(groups, width, axis=1)[:, :columns]

    def __getitem__(self, rows: slice) -> GroupArray:
        return self._take(rows)

    def _rows(self, index: NDArray[np.int64]) -> GroupArray:
        return self._take(index)

    def _take(self, rows: slice | NDArray[np.int64]) -> GroupArray:
        q, zero = self.q[rows], None if self.zero is None else self.zero[rows]
        return GroupArray(self.dtype, (len(q), self.shape[1]), q, self.scale[rows], zero)

    def _stacked(self, others: Sequence[Quantized]) -> GroupArray:
        parts = [self, *(other for other in others if isinstance(other, GroupArray))]
        q = np.concatenate([part.q for part in parts])
        scale = np.concatenate([part.scale for part in parts])
        zeros = [part.zero for part in parts if part.zero is not None]
        zero = np.concatenate(zeros) if zeros else None
        return GroupArray(self.dtype, (len(q), self.shape[1]), q, scale, zero)


def random_groups(name: str, shape: tuple[int, int], rng: np.random.Generator) -> GroupArray:
    """Random elements; scales between 1/64 and 1."""
    form = form_named(name)
    assert form is not None
    groups = (shape[0], form.groups(shape[1]))
    q = rng.integers(0, 1 << form.bits, shape, np.uint8)
    if form.is_float:
        q = np.where(q & 127 == 127, q - 1, q).astype(np.uint8)
    scale: NDArray[np.generic] = rng.uniform(1 / 64, 1, groups).astype(np.float32)
    if form.scale == "bf16":
        scale = (scale.view(np.uint32) >> 16).astype(np.uint16)
    zero = rng.integers(0, 1 << form.bits, groups, np.uint8) if form.has_zeros else None
    return GroupArray(name, shape, q, scale.astype(SCALE_TYPES[form.scale]), zero)
