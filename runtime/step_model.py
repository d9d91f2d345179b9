"""How long a step takes, as a sum of non-negative costs fitted to steps that were timed.

    seconds = a + b * decode_rows + c * decode_context + d * mean_context        decode steps
    seconds = a + b * decode_rows + c * decode_context
            + e * prefill_tokens + f * prefill_pairs + g * logit_rows            with prefill

A long context costs few requests more than its share of many: there are fewer parts to share out
among threads, so the mean context counts beside the sum. Steps that only decode and steps with
prefill chunks run different kernels, so each kind has its own coefficients. Errors count relative
to the step's time, and steps that something else delayed (much slower than the fit) lose their
weight. Kernels change with the number of tokens, so what the sum gets wrong for steps of 1, 2,
3 to 4, 5 to 8, ... tokens is corrected by a factor for each of these sizes. How far steps were
from that is kept as quantiles: a median over steps of several sizes depends on it. `StepModel`
serves the scheduler, which sizes chunks by it, and `sglk sim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .steps import StepLoad, StepRecord

Floats = NDArray[np.float64]
_DECODE = ("decode_rows", "decode_context", "mean_context")
_MIXED = ("decode_rows", "decode_context", "prefill_tokens", "prefill_pairs", "logit_rows")
_ROUNDS = 8
"""Rounds of reweighting; the weights settle in four or five."""
_OUTLIER = 0.25
"""Relative error from which a step counts less."""
_QUANTILES = 32
"""Of measured over modelled seconds."""
MIN_STEPS = 16
"""Steps of a kind below which nothing is said about it."""


class Costs(NamedTuple):
    """Seconds per step and per unit of each feature."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    """The constant first."""
    factors: tuple[float, ...] = ()
    """Corrections for steps of up to 1, 2, 4, 8, ... tokens; 1 beyond the last."""
    spread: tuple[float, ...] = ()
    """Measured over modelled seconds of the steps of the fit: as many quantiles, in order."""

    def seconds(self, load: StepLoad) -> float:
        """Modelled seconds of one step."""
        named = zip(self.names, self.values[1:], strict=True)
        total = self.values[0] + sum(value * float(getattr(load, n)) for n, value in named)
        size = _size_class(load)
        return total * self.factors[size] if size < len(self.factors) else total


@dataclass(frozen=True)
class StepModel:
    """Seconds of a step from its load. None: too few steps of that kind were timed."""

    decode: Costs | None
    mixed: Costs | None

    @classmethod
    def fit(cls, records: Sequence[StepRecord]) -> StepModel:
        """Fit to timed steps.

        >>> loads = [StepLoad(0, rows, rows, 100 * rows, 0) for rows in range(1, 33)]
        >>> steps = [StepRecord(0, 0.01 + 0.001 * load.decode_rows, 0, load, 0, 0, 0)
        ...          for load in loads]
        >>> round(StepModel.fit(steps).seconds(StepLoad(0, 64, 64, 6400, 0)), 4)
        0.074
        """
        decode = [record for record in records if not record.load.prefill_tokens]
        mixed = [record for record in records if record.load.prefill_tokens]
        return cls(_fit(decode, _DECODE), _fit(mixed, _MIXED))

    def seconds(self, load: StepLoad) -> float | None:
        """Modelled seconds of a step; None when too few of its kind were timed."""
        costs = self.mixed if load.prefill_tokens else self.decode
        return None if costs is None else costs.seconds(load)

    def varied(self, load: StepLoad, share: float) -> float | None:
        """What a step takes that is slower than this share, 0 to 1, of the steps of its load."""
        costs = self.mixed if load.prefill_tokens else self.decode
        if costs is None:
            return None
        factor = costs.spread[int(share * len(costs.spread))] if costs.spread else 1.0
        return factor * costs.seconds(load)

    def prefill_within(self, seconds: float, decode_rows: int, decode_context: int) -> int | None:
        """Prefill tokens that fit a step of so many seconds beside the decoding requests.

        None when no step with prefill was timed. Attention inside the chunk is left out: for chunks
        that matter here it is small beside the weights.
        """
        if self.mixed is None:
            return None
        fixed = self.mixed.seconds(StepLoad(0, decode_rows, decode_rows, decode_context, 0))
        per_token = self.mixed.values[1 + _MIXED.index("prefill_tokens")]
        if per_token <= 0:
            return None
        return max(0, int((seconds - fixed) / per_token))


@dataclass
class OnlineFit:
    """The model of the latest steps, fitted again now and then."""

    every: int = 64
    """Steps between fits."""
    window: int = 1024
    """Steps of each kind that are remembered."""
    model: StepModel = field(default_factory=lambda: StepModel(None, None))
    _records: dict[bool, list[StepRecord]] = field(default_factory=lambda: {True: [], False: []})
    _num_new: int = 0

    def observe(self, record: StepRecord) -> None:
        """Learn from a step."""
        kept = self._records[record.load.prefill_tokens > 0]
        kept.append(record)
        if len(kept) > 2 * self.window:
            del kept[: -self.window]
        self._num_new += 1
        if self._num_new >= self.every:
            self._num_new = 0
            recent = [r for records in self._records.values() for r in records[-self.window :]]
            self.model = StepModel.fit(recent)


def _fit(records: Sequence[StepRecord], names: tuple[str, ...]) -> Costs | None:
    if len(records) < MIN_STEPS:
        return None
    columns = [[1.0] * len(records)]
    columns += [[float(getattr(record.load, name)) for record in records] for name in names]
    seconds = np.maximum(np.array([record.seconds for record in records]), 1e-9)
    features = np.array(columns).T / seconds[:, None]
    ones = np.ones(len(records))
    weights = ones
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        values = non_negative_least_squares(features * root[:, None], root)
        error = np.abs(features @ values - ones)
        weights = np.minimum(1.0, _OUTLIER / np.maximum(error, 1e-9))
    factors = _factors(records, 1 / np.maximum(features @ values, 1e-9))
    costs = Costs(names, tuple(float(value) for value in values), factors)
    return costs._replace(spread=_spread(records, costs))


def _size_class(load: StepLoad) -> int:
    """0 for 1 token, 1 for 2, 2 for 3 to 4, 3 for 5 to 8, ..."""
    return (load.prefill_tokens + load.decode_rows - 1).bit_length()


def _factors(records: Sequence[StepRecord], ratios: Floats) -> tuple[float, ...]:
    """The median of measured over modelled seconds for each size; 1 where few were measured."""
    sizes = np.array([_size_class(record.load) for record in records])
    found = [ratios[sizes == size] for size in range(int(sizes.max()) + 1)]
    return tuple(float(np.median(r)) if len(r) >= MIN_STEPS else 1.0 for r in found)


def _spread(records: Sequence[StepRecord], costs: Costs) -> tuple[float, ...]:
    """Quantiles of what steps took, by what they were expected to take."""
    ratios = [record.seconds / max(costs.seconds(record.load), 1e-9) for record in records]
    places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return tuple(float(ratio) for ratio in np.quantile(ratios, places))


def non_negative_least_squares(a: Floats, b: Floats) -> Floats:
    """x >= 0 that minimises |a x - b|, for few columns.

    The active-set method of Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23,
    on columns of equal length.

    >>> x = non_negative_least_squares(np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([1.0, -1.0]))
    >>> x.tolist()
    [1.0, 0.0]
    """
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale
    count = a.shape[1]
    x, is_free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(3 * count):
        gradient = a.T @ (b - a @ x)
        gradient[is_free] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= 1e-10:
            break
        is_free[best] = True
        x = _step_inside(a, b, x, is_free)
    return np.asarray(x / scale)


def _step_inside(a: Floats, b: Floats, x: Floats, is_free: NDArray[np.bool_]) -> Floats:
    """Solve for the free columns; those that would turn negative are fixed at 0 again."""
    while is_free.any():
        trial = np.zeros(len(x))
        trial[is_free] = np.linalg.lstsq(a[:, is_free], b, rcond=None)[0]
        negative = is_free & (trial <= 0)
        if not negative.any():
            return trial
        share = float((x[negative] / np.maximum(x[negative] - trial[negative], 1e-300)).min())
        x = x + share * (trial - x)
        is_free &= x > 1e-12
        x[~is_free] = 0.0
    return np.zeros(len(x))
