"""The watchdog tells a step that hangs, a caller that stopped, and a request that starves."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from sglk.runtime.engine import Engine
from sglk.runtime.request import SamplingParams
from sglk.runtime.watchdog import Diagnosis, Watchdog

MakeEngine = Callable[..., Engine]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_sound_engine_gives_no_diagnosis(make_engine: MakeEngine, clock: Clock) -> None:
    engine = make_engine()
    engine.clock = clock
    watchdog = Watchdog(engine, step_timeout_s=10)
    clock.now = 100.0
    assert watchdog.check() is None  # nothing to do is no fault, however long
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=20))
    while engine.has_work:
        clock.now += 9.0
        engine.step()
        assert watchdog.check() is None
    clock.now += 1000
    assert watchdog.check() is None


def test_a_step_that_does_not_end_is_named_while_it_runs(
    make_engine: MakeEngine, clock: Clock
) -> None:
    engine = make_engine()
    engine.clock = clock
    watchdog = Watchdog(engine, step_timeout_s=10)
    seen: list[Diagnosis | None] = []
    device = engine._executor.executable
    step = device.step

    def slow(batch):  # type: ignore[no-untyped-def]
        for _ in range(2):
            clock.now += 6
            seen.append(watchdog.check())
        return step(batch)

    device.step = slow  # type: ignore[method-assign]
    engine.add_request("a", list(range(30)), SamplingParams(max_tokens=2))
    engine.step()
    assert seen[0] is None and seen[1] is not None
    assert (seen[1].kind, seen[1].seconds) == ("step", 12.0)
    assert "a step has been running for 12.0 s (1 running, 0 waiting" in seen[1].sentence
    assert seen[1].requests[0].id == "a" and seen[1].requests[0].num_pages == 8
    assert watchdog.check() is None
    json.dumps(seen[1].as_record())


def test_work_that_nobody_steps_is_told(make_engine: MakeEngine, clock: Clock) -> None:
    engine = make_engine()
    engine.clock = clock
    watchdog = Watchdog(engine, step_timeout_s=10)
    engine.add_request("a", [1], SamplingParams(max_tokens=9))
    engine.step()
    assert watchdog.check() is None
    clock.now = 11.0
    found = watchdog.check()
    assert found is not None and found.kind == "idle"
    assert "there is work, but no step has ended for 11.0 s" in found.sentence
    engine.step()
    assert watchdog.check() is None


def test_a_request_over_its_bound_is_named(make_engine: MakeEngine, clock: Clock) -> None:
    engine = make_engine()
    engine.clock = clock
    watchdog = Watchdog(engine)
    engine.add_request("a", [1], SamplingParams(max_tokens=30))
    engine.add_request("b", [2], SamplingParams(max_tokens=30))
    engine.scheduler.waiting.values()[1].bound_step = 2  # as if the guarantee had been less
    for _ in range(3):
        assert watchdog.check() is None
        engine.step()
    found = watchdog.check()
    assert found is not None and found.kind == "overdue"
    assert [(view.id, view.steps, view.bound) for view in found.requests] == [("b", 3, 2)]
    assert "1 requests should have ended by step 3" in found.sentence
