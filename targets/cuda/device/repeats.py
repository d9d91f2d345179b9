"""The step that was queued last, where one may follow that only moves it on."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...device import StepSizes
from .recipes import Recipe
from .slots import Slot
from .step_layout import StagedStep


@dataclass
class Repeatable:
    """A greedy step of one token and one row for each sequence."""

    recipe: Recipe
    sizes: StepSizes
    slot: Slot
    """Of the last step that followed it."""
    staged: StagedStep
    """Its inputs as the host wrote them, until the first step follows."""
    _steps_left: int | None = field(default=None, init=False)

    def take_step(self) -> bool:
        """Count one more step; False where a value would pass its limit."""
        if self._steps_left is None:
            self._steps_left = self.staged.steps_left()
        self._steps_left -= 1
        return self._steps_left >= 0
