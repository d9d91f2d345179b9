"""Steps in flight: the next one is queued while the device still computes the one before.

The tokens of a step in flight are known by their place only (`request.place_of`) until it has
landed; the device puts the real ids in their places. Where penalties or masks depend on the tokens
of the step before, the next step is queued without saying how its tokens are chosen; that follows
when the one before has landed, while the device computes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError
from ..targets.device import SAMPLED_ROW, Int32s, LogitChanges
from .answer import Live
from .batch import Plan
from .request import Status
from .sampler import RowState


class Flight(NamedTuple):
    """A step that was submitted and has not landed."""

    plan: Plan
    rows: list[Live]
    """Whose tokens it chooses, in order."""
    started: float


@functools.lru_cache(maxsize=1024)
def likeliest_rows(count: int) -> NDArray[np.void]:
    """`SAMPLED_ROW`s 0 to L-1 that take their likeliest token; not to be changed."""
    rows = np.zeros(count, SAMPLED_ROW)
    rows["row"] = np.arange(count)
    rows["top_k"], rows["temperature"], rows["top_p"] = 1, 1, 1
    rows["lowest"] = -np.inf
    rows.flags.writeable = False
    return rows


def as_sampled_rows(lives: Sequence[Live]) -> NDArray[np.void]:
    """`SAMPLED_ROW`s 0 to L-1 of a step whose requests may have tokens in flight before it."""
    rows = likeliest_rows(len(lives)).copy()
    for row, live in enumerate(lives):
        if not live.row.params.is_greedy:
            rows[row] = live.row.as_sampled_row(row, live.request.num_in_flight)
    return rows


def changes_of(
    lives: Sequence[Live], vocab_size: int
) -> tuple[LogitChanges, dict[int, RequestError]]:
    """What these rows' logits go through, and by row why it cannot have a token."""
    going = [(n, v.row) for n, v in enumerate(lives) if v.request.status is not Status.FINISHED]
    listed = [(n, s) for n, s in going if s.has_lists]
    states = [state for _, state in listed]
    bias_starts, bias_ids = _joined([s.bias_ids for s in states])
    history_starts, history_ids = _joined([s.history.ids if s.history else _NONE for s in states])
    forbidden_starts, forbidden_ids = _joined([s.forbidden_ids for s in states])
    counts = [s.history.counts for s in states if s.history]
    masks, failures = _masks(going, vocab_size)
    changes = LogitChanges(
        rows=np.array([n for n, _ in listed], np.int32),
        bias_starts=bias_starts,
        bias_ids=bias_ids,
        bias=np.concatenate([np.zeros(0, np.float32), *(s.bias for s in states)]),
        history_starts=history_starts,
        history_ids=history_ids,
        counts=np.concatenate([np.zeros(0, np.float32), *counts]),
        penalties=np.array([_penalties(s) for s in states], np.float32).reshape(-1, 3),
        forbidden_starts=forbidden_starts,
        forbidden_ids=forbidden_ids,
        masked_rows=np.array(list(masks), np.int32),
        masks=np.array(list(masks.values()), np.uint32).reshape(-1, -(-vocab_size // 32)),
    )
    return changes, failures


_NONE = np.zeros(0, np.int64)


def _joined(lists: Sequence[NDArray[np.int64]]) -> tuple[Int32s, Int32s]:
    """(starts, entries) of lists one after the other."""
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    return starts, np.concatenate([_NONE, *lists]).astype(np.int32)


def _penalties(state: RowState) -> tuple[float, float, float]:
    params = state.params
    return params.repetition_penalty, params.frequency_penalty, params.presence_penalty


def _masks(
    states: Sequence[tuple[int, RowState]], vocab_size: int
) -> tuple[dict[int, NDArray[np.uint32]], dict[int, RequestError]]:
    """The words of each masked row; a row without an allowed token fails, and has no mask."""
    masks: dict[int, NDArray[np.uint32]] = {}
    failures: dict[int, RequestError] = {}
    for number, state in states:
        if state.mask is None:
            continue
        try:
            masks[number] = words = state.mask.words()
            if not words.any():
                raise RequestError("mask: expected at least one token that may come next, got none")
        except RequestError as error:
            masks.pop(number, None)
            failures[number] = error
    return masks, failures
