"""How fast the machine was, over time: from steps of a known load that were timed all along.

A step takes what the model says times the pace of its moment. Neighbours on a virtual machine make
steps with prefill and steps without one slower by different factors, so each kind has its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sglk.bench.replay import Step
from sglk.runtime.step_model import StepModel
from sglk.runtime.steps import StepRecord

NEAR_S = 1.0
"""Steps so far away in time say what the pace is."""
LEAST = 12
"""The nearest so many say it where these are fewer."""
ROUNDS = 3
"""Of fitting a model to steps at one pace, and the pace to that model."""


class Pace:
    """Measured by modelled seconds, smoothed."""

    def __init__(self, model: StepModel, steps: Sequence[Step]) -> None:
        """``steps`` in order of time."""
        self._known = {}
        for is_mixed in (False, True):
            kind = [step for step in steps if step.is_mixed == is_mixed]
            ratios = [
                step.record.seconds / (model.seconds(step.record.load) or step.record.seconds)
                for step in kind
            ]
            self._known[is_mixed] = np.array([step.wall for step in kind]), np.array(ratios)

    def at(self, wall: float, is_mixed: bool) -> float:
        """The median of the nearest steps; 1 where there is none."""
        times, ratios = self._known[is_mixed]
        low, high = np.searchsorted(times, [wall - NEAR_S, wall + NEAR_S])
        if high - low < LEAST:
            low = max(0, min(int(np.searchsorted(times, wall)) - LEAST // 2, len(times) - LEAST))
            high = low + LEAST
        near = ratios[low:high]
        return float(np.median(near)) if len(near) else 1.0

    def spread(self, is_mixed: bool) -> tuple[float, float]:
        """The slowest and the fastest it was."""
        times, _ = self._known[is_mixed]
        found = [self.at(float(time), is_mixed) for time in times] or [1.0]
        return min(found), max(found)


def fit_beside(steps: Sequence[Step]) -> tuple[StepModel, Pace]:
    """The model of these steps and the machine's pace, which together say what each took."""
    model = StepModel.fit([step.record for step in steps])
    for _ in range(ROUNDS):
        pace = Pace(model, steps)
        model = StepModel.fit([_at_one_pace(step, pace) for step in steps])
    return model, Pace(model, steps)


def _at_one_pace(step: Step, pace: Pace) -> StepRecord:
    seconds = step.record.seconds / pace.at(step.wall, step.is_mixed)
    return step.record._replace(seconds=seconds)
