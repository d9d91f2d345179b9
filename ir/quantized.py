"""What every quantized matrix can do, whatever stores it: ggml's blocks or integers in groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import VerifyError


class Quantized(ABC):
    """A matrix [N, K] of one dtype; rows can be taken and stacked without touching a number."""

    dtype: str
    shape: tuple[int, int]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes as stored."""

    @abstractmethod
    def dequantize(self) -> NDArray[np.float32]:
        """Exact f32 values."""

    @abstractmethod
    def __getitem__(self, rows: slice) -> Quantized:
        """A range of rows, without a copy: ``weight[8:16]``."""

    @abstractmethod
    def _rows(self, index: NDArray[np.int64]) -> Quantized:
        """The rows of a checked index."""

    @abstractmethod
    def _stacked(self, others: Sequence[Quantized]) -> Quantized:
        """The rows of this matrix, then those of others of its dtype and width."""

    def take_rows(self, index: Sequence[int] | NDArray[np.integer]) -> Quantized:
        """The rows of `index`, in that order; a permutation of rows is exact."""
        chosen = np.asarray(index, np.int64)
        if chosen.size and (chosen.min() < 0 or chosen.max() >= self.shape[0]):
            raise VerifyError(
                f"take_rows: expected indices in 0..{self.shape[0] - 1}, "
                f"got {chosen.min()}..{chosen.max()}"
            )
        return self._rows(chosen)


def concat(arrays: Sequence[Quantized]) -> Quantized:
    """Stack along N; all of one type and one K."""
    kinds = {(array.dtype, array.shape[1]) for array in arrays}
    if len(kinds) != 1:
        raise VerifyError(f"concat: expected blocks of one type and K, got {sorted(kinds)}")
    return arrays[0]._stacked(arrays[1:])
