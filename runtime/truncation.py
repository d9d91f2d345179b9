"""Top-k, top-p, min-p and the draw, on one row, without sorting the vocabulary.

A row is in units of temperature with its maximum at 0, so ``exp`` gives unnormalised probabilities.
"Most likely" orders by value, then by lowest id; every cut is made in that order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .request import SamplingParams

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]
_BLOCK = 64
_GUESSES = (64, 512)
"""Sizes of a nucleus to try before sorting everything; answers of a model that knows are small."""


def choose(row: Floats, params: SamplingParams, uniform: float) -> int:
    """Draw a token from what top-k, top-p and min-p leave."""
    ids: Ids | None = None
    if 0 < params.top_k < len(row):
        ids = top_ids(row, params.top_k)
    if params.top_p < 1:
        ids = _nucleus(row, ids, params.top_p)
    if params.min_p > 0:
        ids = _likely(row, ids, params.min_p)
    if ids is None:
        return _draw_from_all(row, uniform)
    ids = np.sort(ids)
    return int(ids[_draw(np.exp(row[ids].astype(np.float64)), uniform)])


def top_ids(row: Floats, count: int) -> Ids:
    """The ``count`` most likely ids, best first."""
    candidates = np.flatnonzero(row >= _floor(row, count))
    order = np.argsort(-row[candidates], kind="stable")  # candidates ascend, so ties do too
    return candidates[order[:count]]


def _floor(row: Floats, count: int) -> float:
    """A value that at least ``count`` entries reach, and few more.

    Each of the ``count`` best blocks holds an entry as large as the worst of their maxima: cheaper
    than a partition of the whole row while there are enough blocks. A block is every n-th entry,
    so that the maxima are taken over whole vectors.
    """
    blocks = len(row) // _BLOCK
    if count > blocks:
        return float(np.partition(row, len(row) - count)[len(row) - count])
    maxima = row[: blocks * _BLOCK].reshape(_BLOCK, blocks).max(axis=0)
    return float(np.partition(maxima, blocks - count)[blocks - count])


def _nucleus(row: Floats, ids: Ids | None, top_p: float) -> Ids:
    """The smallest most-likely set whose share of the probability reaches ``top_p``."""
    if ids is not None:
        weights = np.exp(row[ids].astype(np.float64))
        return ids[: _reach(weights, top_p * weights.sum())]
    goal = top_p * float(np.exp(row).sum(dtype=np.float64))
    for count in _GUESSES:
        if count < len(row):
            ids = top_ids(row, count)
            weights = np.exp(row[ids].astype(np.float64))
            if weights.sum() >= goal:
                return ids[: _reach(weights, goal)]
    return _nucleus_of_flat(row, goal)


def _nucleus_of_flat(row: Floats, goal: float) -> Ids:
    """The same set where it is large: sorting values is much cheaper than sorting ids."""
    values = np.sort(row)[::-1]
    count = min(_reach(np.exp(values.astype(np.float64)), goal), len(row))
    cut = values[count - 1]
    above = np.flatnonzero(row > cut)
    return np.concatenate([above, np.flatnonzero(row == cut)[: count - len(above)]])


def _reach(weights: NDArray[np.float64], goal: float) -> int:
    """How many leading weights it takes to reach the goal."""
    return int(np.searchsorted(np.cumsum(weights), goal, side="left")) + 1


def _likely(row: Floats, ids: Ids | None, min_p: float) -> Ids:
    """Those at least ``min_p`` times as likely as the most likely."""
    floor = np.float32(np.log(min_p))
    return np.flatnonzero(row >= floor) if ids is None else ids[row[ids] >= floor]


def _draw(weights: NDArray[np.float64], uniform: float) -> int:
    """The first place where the running sum exceeds ``uniform`` times the total."""
    sums = np.cumsum(weights)
    return _place(sums, uniform * float(sums[-1]))


def _draw_from_all(row: Floats, uniform: float) -> int:
    """The same draw over the whole vocabulary: first a block, then a place in it."""
    weights = np.zeros(-(-len(row) // _BLOCK) * _BLOCK, dtype=np.float32)
    np.exp(row, out=weights[: len(row)])
    blocks = weights.reshape(-1, _BLOCK)
    totals = blocks.sum(axis=1).astype(np.float64)
    sums = np.cumsum(totals)
    goal = uniform * float(sums[-1])
    block = _place(sums, goal)
    inside = np.cumsum(blocks[block], dtype=np.float64)
    return block * _BLOCK + _place(inside, goal - float(sums[block] - totals[block]))


def _place(sums: NDArray[np.float64], goal: float) -> int:
    """Where the running sum first exceeds the goal; rounding never yields a place of weight 0."""
    place = int(np.searchsorted(sums, goal, side="right"))
    return place if place < len(sums) else int(np.searchsorted(sums, sums[-1], side="left"))
