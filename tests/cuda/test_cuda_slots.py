"""Slots of pinned memory: no step's tokens are overwritten before they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sglk.errors import DeviceError
from sglk.targets.cuda.device import CudaExecutable, recipes, slots
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.cuda.device.slots import Slot
from sglk.targets.cuda.device.step_layout import StepLayout
from sglk.targets.cuda.device.step_sizes import padded
from sglk.targets.device import SAMPLED_ROW, StepSizes

Load = Callable[..., CudaExecutable]


@pytest.mark.parametrize("num_refused", [1, 2, 3])
def test_refused_steps_leave_the_tokens_in_flight_alone(
    load: Load, toy: Any, num_refused: int
) -> None:
    executable = load()
    rows = np.zeros(1, SAMPLED_ROW)
    rows["top_k"], rows["temperature"] = 1, 1
    executable.submit(toy.batch([([3], 0, 1)]), rows)
    bad = toy.batch([([5], 0, 2)])
    bad.slots[:] = 10**6
    for _ in range(num_refused):
        with pytest.raises(DeviceError, match="step input slots"):
            executable.submit(bad, rows)
    executable.submit(toy.batch([([7], 0, 3)]), rows)
    assert executable.collect().tolist() == [toy.next_token([3])]
    assert executable.collect().tolist() == [toy.next_token([7])]


def test_more_rows_than_tokens_are_refused(load: Load, toy: Any) -> None:
    """A slot has room for the tokens of `max_tokens` rows."""
    executable = load(max_tokens=4)
    step = toy.batch([([1], 0, 1)])
    step.logit_rows = np.zeros(300, np.int32)
    with pytest.raises(DeviceError, match="logit_rows: expected at most 1 rows, one of each token"):
        executable.step(step)


def test_views_of_many_layouts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MAX_STAGED", 3)
    driver = NullDriver()
    slot = Slot(driver, 0, driver.allocate_pinned(64, "tokens"))
    layouts = [StepLayout(padded(StepSizes(n, 1, 4, 1)), 4, 16, 8) for n in range(16, 160, 16)]
    for layout in layouts:
        staged = slot.stage(layout)
        assert staged.layout is layout and slot.stage(layout) is staged
    assert len(slot._staged) <= 3
    slot.close()


def test_layouts_go_with_their_recipes(
    load: Load, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MAX_RECIPES", 2)
    executable = load(max_tokens=64)
    for length in (3, 20, 36, 50, 3, 20):  # a class each
        tokens = [1] * length
        executable.step(toy.batch([(tokens, 0, 1)]))
        assert executable.argmax(np.zeros(1, np.int32)).tolist() == [toy.next_token(tokens)]
    assert len(executable._book._layouts) <= 2
