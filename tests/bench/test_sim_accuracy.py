"""The simulation beside an engine on a machine whose steps are foretold, and whose pace is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sglk.bench.edges import Edges
from sglk.bench.null_device import CountingDevice
from sglk.bench.pace import LEAST, Pace
from sglk.bench.replay import Replay, Step, TurnClock
from sglk.bench.sim_accuracy import Side, compare, fitted, make_trace, play, simulated
from sglk.runtime.admission import Limits
from sglk.runtime.batch import Plan
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.step_model import Costs, StepModel
from sglk.runtime.steps import StepLoad, StepRecord
from sglk.targets.device import Logits

LIMITS = Limits(page_size=32, num_pages=1200)
MODEL = StepModel(
    decode=Costs(("decode_rows", "decode_context"), (0.004, 0.001, 1e-6)),
    mixed=Costs(("decode_rows", "prefill_tokens"), (0.005, 0.001, 0.0004)),
)


class Machine:
    """Steps take what the model says, times a pace that changes."""

    def __init__(self, swing: float, period_s: float = 100.0) -> None:
        self.now = 0.0
        self._swing, self._period = swing, period_s

    def wall(self) -> float:
        return self.now

    def pace(self, wall: float) -> float:
        return 1 + self._swing * math.sin(2 * math.pi * wall / self._period)

    def side(self) -> Side:
        machine = self

        class Timed(Executor):
            def run(self, plan: Plan) -> Logits:
                seconds = MODEL.seconds(StepLoad.of(plan)) or 0.0
                machine.now += seconds * machine.pace(machine.now)
                return super().run(plan)

        device = CountingDevice(32, LIMITS.num_pages, LIMITS.max_step_tokens, 500)
        return Side(Engine(Timed(device, LIMITS), LIMITS), TurnClock(self.wall))


def worst_of(machine: Machine, *, at_pace: bool) -> float:
    steps, runs = play(machine.side(), machine.side(), 12, 1, Edges(None))
    model, pace = fitted(steps)
    if not at_pace:
        records = [step.record for step in steps]
        model = StepModel.fit(records)
        pace = Pace(model, [])
    return max(compare(LIMITS, model, pace, name, found) for name, found in runs.items())


def test_what_the_machine_does_meanwhile_is_no_error_of_the_simulation() -> None:
    assert worst_of(Machine(0.4), at_pace=True) < 0.08
    assert worst_of(Machine(0.4), at_pace=False) > 0.2


def test_a_replay_in_turns_has_the_times_of_a_replay_alone() -> None:
    trace = make_trace(5, 20.0, 8, (60, 10, 2))
    alone, parted = Machine(0.0), Machine(0.0)
    whole = Replay(*side_of(alone), trace)
    whole.turn(1e9)
    parts = Replay(*side_of(parted), trace)
    while not parts.is_done:
        parts.turn(0.01)
        parted.now += 5.0  # others have their turn
    assert parts.result.ttft == pytest.approx(whole.result.ttft)
    assert parts.result.itl == pytest.approx(whole.result.itl)
    assert len(parts.result.ttft) == 8 and len(parts.steps) == len(whole.steps)


def test_the_simulation_of_a_replay_has_its_times() -> None:
    machine = Machine(0.0)
    replay = Replay(*side_of(machine), make_trace(6, 10.0, 10, (200, 20, 0), (50, 9, 3)))
    replay.turn(1e9)
    found = simulated(replay, LIMITS, MODEL, Pace(MODEL, replay.steps))
    assert found.ttft == pytest.approx(replay.result.ttft)
    assert found.itl == pytest.approx(replay.result.itl)


def side_of(machine: Machine) -> tuple[Engine, TurnClock]:
    side = machine.side()
    return side.engine, side.clock


def step_at(wall: float, factor: float, *, prefill: int) -> Step:
    load = StepLoad(prefill, 4, 5, 400, prefill * 10)
    seconds = factor * (MODEL.seconds(load) or 0.0)
    return Step(wall, wall, StepRecord(wall, seconds, seconds, load, 4, 0, 0))


def test_each_kind_of_step_has_its_pace_and_a_stray_one_counts_little() -> None:
    times = np.arange(0.0, 100.0, 0.25)
    steps = [step_at(t, 1.0 if t < 50 else 2.0, prefill=0) for t in times]
    steps[40] = step_at(10.0, 30.0, prefill=0)
    steps += [step_at(t, 1.5, prefill=100) for t in times[::40]]
    pace = Pace(MODEL, sorted(steps))
    assert pace.at(10.0, is_mixed=False) == pytest.approx(1.0)
    assert pace.at(90.0, is_mixed=False) == pytest.approx(2.0)
    assert pace.at(55.0, is_mixed=True) == pytest.approx(1.5)
    assert pace.spread(is_mixed=False) == pytest.approx((1.0, 2.0))
    assert len(times[::40]) < LEAST and Pace(MODEL, []).at(3.0, is_mixed=True) == 1.0
