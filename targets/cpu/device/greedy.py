"""Greedy ids from logits where they lie: the host reads one id per row instead of a vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from ...device import Int32s
from .library import Library

Floats = NDArray[np.float32]


class Greedy:
    """`argmax_rows` of the library, or NumPy where the library is older than that."""

    def __init__(self, library: Library) -> None:
        self._argmax = library.argmax
        self._ids = np.zeros(1, np.int32)

    def choose(self, pool: int, logits: Floats, rows: Int32s) -> Int32s:
        """The id of the largest in each of these rows, -1 where none is finite."""
        count = len(rows)
        if rows.dtype != np.int32 or rows.ndim != 1 or not rows.flags.c_contiguous:
            raise DeviceError(
                f"cpu: argmax: expected int32 rows [R], got {rows.dtype} {rows.shape}"
            )
        if count and not 0 <= int(rows.min()) <= int(rows.max()) < len(logits):
            raise DeviceError(
                f"cpu: argmax: expected rows of the last step's {len(logits)} logits,"
                f" got {rows.tolist()[:20]}"
            )
        if self._argmax is None:
            return _with_numpy(logits, rows)
        if count > len(self._ids):
            self._ids = np.zeros(2 * count, np.int32)
        self._argmax(
            pool,
            logits.ctypes.data,
            logits.shape[1],
            rows.ctypes.data,
            count,
            self._ids.ctypes.data,
        )
        return self._ids[:count]


def _with_numpy(logits: Floats, rows: Int32s) -> Int32s:
    ids = np.array([logits[row].argmax() for row in rows.tolist()], np.int32)
    ids[~np.isfinite(logits[rows, ids])] = -1
    return ids
