"""What is kept of the logits at every position of a sequence: enough to compare, and small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COLUMNS = 512
"""Columns of the vocabulary that are kept of every row, evenly spaced."""


@dataclass(frozen=True)
class Rows:
    """Logits of P positions. Row i holds the scores of token i + 1."""

    top: NDArray[np.int32]
    """[P] the likeliest token; ties go to the lowest id."""
    gap: NDArray[np.float32]
    """[P] its distance to the second likeliest, in logits."""
    sample: NDArray[np.float32]
    """[P, COLUMNS] evenly spaced columns."""
    last: NDArray[np.float32]
    """[V] the whole row of the last prompt token."""

    def first(self, positions: int) -> Rows:
        """Without the positions after the first ones."""
        kept = slice(positions)
        return Rows(self.top[kept], self.gap[kept], self.sample[kept], self.last)


def columns_of(vocabulary: int) -> NDArray[np.int64]:
    """The columns that are kept."""
    return np.linspace(0, vocabulary - 1, COLUMNS).astype(np.int64)


def rows_of(parts: Iterable[np.ndarray], last: int) -> Rows:
    """From the logits of consecutive positions, in parts [n, V]."""
    tops, gaps, samples, done = [], [], [], 0
    whole: np.ndarray | None = None
    for part in parts:
        best = np.partition(part, -2, axis=1)[:, -2:]
        tops.append(part.argmax(axis=1).astype(np.int32))
        gaps.append(best[:, 1] - best[:, 0])
        samples.append(part[:, columns_of(part.shape[1])])
        if done <= last < done + len(part):
            whole = part[last - done].astype(np.float32)
        done += len(part)
    if whole is None:
        raise ValueError(f"expected more than {last} positions, got {done}")
    return Rows(np.concatenate(tops), np.concatenate(gaps), np.concatenate(samples), whole)
