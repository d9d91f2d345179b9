"""Which classes of steps become graphs, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sglk.targets.cuda.device import CudaExecutable, recipes
from sglk.targets.cuda.device.null_driver import NullDriver

Load = Callable[..., CudaExecutable]
PROMPT = [3, 5, 7, 9, 11]


def run(executable: CudaExecutable, toy: Any, tokens: list[int]) -> int:
    executable.step(toy.batch([(tokens, 0, 1)]))
    return int(executable.argmax(np.zeros(1, np.int32))[0])


def test_a_class_of_prompts_becomes_a_graph_when_it_comes_again(
    load: Load, toy: Any, driver: NullDriver
) -> None:
    executable = load()
    for captures in (0, 1, 1):
        assert run(executable, toy, PROMPT) == toy.next_token(PROMPT)
        assert len(driver.of("capture")) == captures
    kinds = [record.kind for record in driver.records]
    assert kinds[kinds.index("capture") - 1] == "launch"  # the device has work meanwhile


def test_prompts_that_keep_the_device_busy_need_no_graph(
    load: Load, toy: Any, driver: NullDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MOST_RATE", 1.0)
    executable = load()
    for _ in range(3):
        run(executable, toy, PROMPT)
    assert not driver.of("capture")
    run(executable, toy, [4])  # of a decode step's size
    assert len(driver.of("capture")) == 1
