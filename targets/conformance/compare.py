"""Whether two arrays agree, and if not, where and by how much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.dtype import BF16, F16, DType
from ...ir.types import TensorType

ROUNDING = {"f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}
"""Largest difference, relative to the largest wanted value: some hundred roundings of f32, a few of
f16 and bf16 (2^-11 and 2^-8 each)."""


def tolerance_of(types: Iterable[TensorType]) -> float:
    """By the coarsest type that takes part; a chip may unpack blocks into bf16."""
    return max(ROUNDING[_kind(type.dtype)] for type in types)


def _kind(dtype: DType) -> str:
    if dtype == BF16 or dtype.is_block:
        return "bf16"
    return "f16" if dtype == F16 else "f32"


def difference(got: NDArray[Any], wanted: NDArray[Any], tolerance: float) -> str:
    """Why two arrays do not agree, or "". Integers and booleans must be equal."""
    if got.shape != wanted.shape:
        return f"expected shape {wanted.shape}, got {got.shape}"
    if not wanted.size:
        return ""
    if wanted.dtype.kind not in "f":
        return _unequal(got, wanted)
    if reason := _special(got, wanted):
        return reason
    good = np.where(np.isfinite(wanted), wanted, 0).astype(np.float64)
    error = np.abs(np.where(np.isfinite(wanted), got, 0).astype(np.float64) - good)
    scale = max(float(np.abs(good).max()), 1e-30)
    if error.max() <= tolerance * scale:
        return ""
    place = np.unravel_index(int(error.argmax()), error.shape)
    count = int((error > tolerance * scale).sum())
    return (
        f"expected {_number(wanted[place])} at {_place(place)}, got {_number(got[place])}: off by "
        f"{error.max() / scale:.2g} of the largest value, at most {tolerance:g} is allowed "
        f"({count} of {wanted.size} values differ so much)"
    )


def _unequal(got: NDArray[Any], wanted: NDArray[Any]) -> str:
    wrong = np.argwhere(got != wanted)
    if not len(wrong):
        return ""
    place = tuple(wrong[0])
    return (
        f"expected {wanted[place]} at {_place(place)}, got {got[place]} "
        f"({len(wrong)} of {wanted.size} values differ)"
    )


def _special(got: NDArray[Any], wanted: NDArray[Any]) -> str:
    """NaN and infinities must be where they belong and nowhere else."""
    for what, mark in (("NaN", np.isnan), ("infinity", np.isinf)):
        wrong = np.argwhere(mark(got) != mark(wanted))
        if len(wrong):
            place = tuple(wrong[0])
            return (
                f"expected {_number(wanted[place])} at {_place(place)}, got {_number(got[place])} "
                f"({what} in {len(wrong)} places where the other has none)"
            )
    wrong = np.argwhere(np.isinf(wanted) & (got != wanted))
    return f"expected {wanted[tuple(wrong[0])]}, got the other sign" if len(wrong) else ""


def _number(value: Any) -> str:
    return f"{float(value):.6g}"


def _place(place: tuple[Any, ...]) -> str:
    return str(tuple(int(i) for i in place))
