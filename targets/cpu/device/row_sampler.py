"""Tokens from logits where they lie: the host reads one id per row instead of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from ...device import SAMPLED_ROW, Int32s
from .library import Library

Floats = NDArray[np.float32]


class RowSampler:
    """`argmax_rows` and `sample_rows` of the library, on its threads."""

    def __init__(self, library: Library) -> None:
        self._argmax = library.argmax
        self._sample = library.sample
        self._ids = np.zeros(1, np.int32)

    @property
    def can_sample(self) -> bool:
        """False with libraries of the first release; `argmax` then falls back to NumPy."""
        return self._sample is not None

    def argmax(self, pool: int, logits: Floats, rows: Int32s) -> Int32s:
        """The id of the largest in each of these rows, -1 where none is finite."""
        if rows.dtype != np.int32 or rows.ndim != 1 or not rows.flags.c_contiguous:
            raise DeviceError(
                f"cpu: argmax: expected int32 rows [R], got {rows.dtype} {rows.shape}"
            )
        _check_rows("argmax", rows, len(logits))
        if self._argmax is None:
            return _with_numpy(logits, rows)
        return self._run(self._argmax, pool, logits, rows)

    def sample(self, pool: int, logits: Floats, rows: NDArray[np.void]) -> Int32s:
        """A token for each `SAMPLED_ROW`, -1 where no logit is finite."""
        if rows.dtype != SAMPLED_ROW or rows.ndim != 1 or not rows.flags.c_contiguous:
            raise DeviceError(f"cpu: sample: expected SAMPLED_ROW [R], got {rows.dtype}")
        _check_rows("sample", rows["row"], len(logits))
        if self._sample is None:
            raise DeviceError("cpu: sample: this library cannot sample (compile the model again)")
        return self._run(self._sample, pool, logits, rows)

    def _run(
        self, function: Callable[..., None], pool: int, logits: Floats, rows: NDArray[Any]
    ) -> Int32s:
        count = len(rows)
        if count > len(self._ids):
            self._ids = np.zeros(2 * count, np.int32)
        ids = self._ids[:count]
        at = [array.__array_interface__["data"][0] for array in (logits, rows, ids)]
        function(pool, at[0], logits.shape[1], at[1], count, at[2])
        return ids


def _check_rows(what: str, rows: NDArray[Any], count: int) -> None:
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise DeviceError(
            f"cpu: {what}: expected rows of the last step's {count} logits,"
            f" got {rows.tolist()[:20]}"
        )


def _with_numpy(logits: Floats, rows: Int32s) -> Int32s:
    ids = np.array([logits[row].argmax() for row in rows.tolist()], np.int32)
    ids[~np.isfinite(logits[rows, ids])] = -1
    return ids
