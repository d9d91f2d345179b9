"""Steps in flight: the next one is queued while the device still computes the one before.

The tokens of a step in flight are known by their place only (`request.place_of`) until it has
landed; the device puts the real ids in their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..targets.device import SAMPLED_ROW
from .answer import Live
from .batch import Plan
from .sampler import RowState


class Flight(NamedTuple):
    """A step that was submitted and has not landed."""

    plan: Plan
    rows: list[Live]
    """Whose tokens it chooses, in order."""
    started: float


def as_sampled_rows(states: Sequence[RowState], ahead: Sequence[int]) -> NDArray[np.void]:
    """`SAMPLED_ROW`s 0 to L-1; ``ahead`` counts each sequence's tokens that are still in flight."""
    rows = np.zeros(len(states), SAMPLED_ROW)
    rows["row"] = np.arange(len(states))
    rows["top_k"], rows["temperature"], rows["top_p"] = 1, 1, 1
    rows["lowest"] = -np.inf
    for row, (state, more) in enumerate(zip(states, ahead, strict=True)):
        if not state.params.is_greedy:
            rows[row] = state.as_sampled_row(row, more)
    return rows
