"""How well `sglk sim` foretells a server: some traces calibrate it, others are compared.

    python bench/sim_accuracy.py model.sglk [--requests 20] [--rounds 3] [--at-edge COMMAND]

Two engines of one process take turns of a fraction of a second:

1. one serves calibration traces without end: requests of mixed lengths that come all at once, then
   others over time, so that steps of all sizes occur all along;
2. the other one serves test traces of other lengths, with and without shared prefixes, at half and
   four fifths of the load that the simulation says the machine bears.

The step-time model and the machine's pace (`pace.py`) are fitted to the calibration steps alone.
Every test trace is simulated with that model, at the pace that the calibration steps between its
own had: what the machine does meanwhile is no error of the simulation. Prints measured and
simulated medians (TTFT, ITL) of each kind of test trace over all rounds, and by how much the steps
themselves differ; ends with status 1 if a median differs by more than 20 %. Each test trace is
announced, and COMMAND is run with "begin NAME" and "end NAME", so that the machine can be kept
quiet meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import sglk
from sglk.bench.edges import Edges
from sglk.bench.pace import Pace, fit_beside
from sglk.bench.replay import Replay, Step, TurnClock
from sglk.cli.sizes import parse_size
from sglk.runtime.admission import Limits
from sglk.runtime.engine import Engine
from sglk.runtime.simulate import SimResult, Simulation
from sglk.runtime.step_model import StepModel
from sglk.runtime.steps import StepLoad, StepWriter
from sglk.runtime.trace import TraceRequest

BLOCK = 64
TOLERANCE = 0.2
Kind: TypeAlias = tuple[int, int, int]
"""Prompt and output tokens, about, and groups with shared prefixes (0: nobody shares)."""
CALIBRATION = ((60, 40, 0), (350, 30, 6), (200, 40, 0))
"""All in one trace: at any time the steps between those of a test trace are of all sizes."""
TESTS = ((150, 50, 0), (400, 25, 0), (400, 40, 6))
LOADS = (0.5, 0.8)
CALM = 0.7
"""Of the rate at which a calibration trace was served that came all at once, for the next one."""
TURN_S, CALIBRATION_TURN_S = 0.3, 0.2
FIRST_S = 12.0
"""Of calibration, before there is a model."""
RECENT = 1000
"""Calibration steps that say what the machine bears now."""


@dataclass(frozen=True)
class Side:
    """An engine and its clock."""

    engine: Engine
    clock: TurnClock


def make_trace(seed: int, rate: float, count: int, *kinds: Kind) -> list[TraceRequest]:
    """Poisson arrivals at ``rate`` per second, of each kind in turn.

    With groups each prompt begins with three quarters of its length of one group's text.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count)) if rate < np.inf else np.zeros(count)
    trace = []
    for number, (prompt, output, groups) in zip(range(count), itertools.cycle(kinds), strict=False):
        tokens = int(np.clip(rng.lognormal(np.log(prompt), 0.5), 8, 4 * prompt))
        blocks = -(-tokens // BLOCK)
        own = [1000 + 100 * number + block for block in range(blocks)]
        if groups:
            shared = 100 * int(rng.integers(groups))
            own = [shared + b if b < blocks * 3 // 4 else own[b] for b in range(blocks)]
        answer = int(np.clip(rng.geometric(1 / output), 2, 4 * output))
        trace.append(
            TraceRequest(number, float(arrivals[number]), tokens, answer, tuple(own), BLOCK)
        )
    return trace


class Calibration:
    """Traces of mixed lengths, one after the other, without end."""

    def __init__(self, side: Side, count: int) -> None:
        self._clock = side.clock
        self._replays = self._endless(side, count)
        self._all = [next(self._replays)]

    def turn(self, seconds: float) -> None:
        """Serve for so long."""
        if self._all[-1].is_done:
            self._all.append(next(self._replays))
        self._all[-1].turn(seconds)

    def turn_for(self, seconds: float) -> None:
        """Serve for so long, over as many traces as it takes."""
        until = self._clock.wall() + seconds
        while (left := until - self._clock.wall()) > 0:
            self.turn(left)

    @property
    def steps(self) -> list[Step]:
        """All that were served, in order."""
        return [step for replay in self._all for step in replay.steps]

    def _endless(self, side: Side, count: int) -> Iterator[Replay]:
        for seed in itertools.count(1):
            trace = make_trace(seed, np.inf, count, *CALIBRATION)
            burst = Replay(side.engine, side.clock, trace)
            yield burst
            rate = CALM * count / burst.result.seconds
            yield Replay(side.engine, side.clock, make_trace(seed, rate, count, *CALIBRATION))


def fitted(steps: Sequence[Step]) -> tuple[StepModel, Pace]:
    """The model of these steps and the pace."""
    model, pace = fit_beside(steps)
    if model.decode is None or model.mixed is None:
        raise SystemExit("sim_accuracy: expected more steps of each kind (raise --requests)")
    return model, pace


def bearable_rate(limits: Limits, steps: Sequence[Step], trace: Sequence[TraceRequest]) -> float:
    """Requests per second that the simulation serves now when they all come at once."""
    model, pace = fitted(steps[-RECENT:])
    burst = [replace(each, arrival_s=0.0) for each in trace]
    latest = steps[-1].wall

    def now(at: float, load: StepLoad) -> float:
        return pace.at(latest, load.prefill_tokens > 0)

    return len(trace) / Simulation(burst, limits, model, pace=now).run().seconds


def play(
    test: Side, calibrating: Side, count: int, rounds: int, edges: Edges
) -> tuple[list[Step], dict[str, list[Replay]]]:
    """The calibration steps of all rounds, and the test traces by kind."""
    calibration = Calibration(calibrating, count)
    runs: dict[str, list[Replay]] = {}
    with edges.window("first calibration"):
        serve_beside(
            Replay(test.engine, test.clock, make_trace(1, np.inf, 4, (100, 8, 0))), calibration
        )
        calibration.turn_for(FIRST_S)
    for number in range(1, rounds + 1):
        for (prompt, output, groups), load in itertools.product(TESTS, LOADS):
            name = f"{prompt}+{output} tokens, load {load}" + (", shared" if groups else "")
            seed = 1000 * number + 11 + prompt + groups
            trace = make_trace(seed, 1.0, count, (prompt, output, groups))
            with edges.window(f"{name}, round {number}"):
                calibration.turn_for(CALIBRATION_TURN_S)
                rate = load * bearable_rate(test.engine.limits, calibration.steps, trace)
                trace = [replace(each, arrival_s=each.arrival_s / rate) for each in trace]
                replay = Replay(test.engine, test.clock, trace)
                serve_beside(replay, calibration)
            runs.setdefault(name, []).append(replay)
    return calibration.steps, runs


def serve_beside(replay: Replay, calibration: Calibration) -> None:
    """A trace, and calibration all along."""
    while not replay.is_done:
        replay.turn(TURN_S)
        calibration.turn_for(CALIBRATION_TURN_S)


def simulated(run: Replay, limits: Limits, model: StepModel, pace: Pace) -> SimResult:
    """The trace on the machine as it was when it was served."""
    now, wall = [step.now for step in run.steps], [step.wall for step in run.steps]

    def slower(at: float, load: StepLoad) -> float:
        return pace.at(float(np.interp(at, now, wall)), load.prefill_tokens > 0)

    return Simulation(run.trace, limits, model, pace=slower).run()


def compare(
    limits: Limits, model: StepModel, pace: Pace, name: str, runs: Sequence[Replay]
) -> float:
    """The largest relative difference of the two medians over the traces of a kind."""
    results = [simulated(run, limits, model, pace) for run in runs]
    worst, line = 0.0, f"{name:34}"
    for kind in ("ttft", "itl"):
        real = statistics.median(value for run in runs for value in getattr(run.result, kind))
        modelled = statistics.median(value for each in results for value in getattr(each, kind))
        worst = max(worst, abs(modelled / real - 1))
        line += f"{real * 1e3:11.1f}{modelled * 1e3:11.1f}{modelled / real - 1:+8.1%}"
    for is_mixed in (True, False):
        found = [
            error(step, model, pace) for run in runs for step in run.steps
            if step.is_mixed == is_mixed
        ]  # fmt: skip
        line += f"{statistics.median(found):+9.1%}"
    print(line, flush=True)
    return worst


def error(step: Step, model: StepModel, pace: Pace) -> float:
    """Of the modelled seconds, relative to those measured."""
    modelled = model.seconds(step.record.load) or 0.0
    return modelled * pace.at(step.wall, step.is_mixed) / step.record.seconds - 1


def describe(model: StepModel, pace: Pace, steps: Sequence[Step]) -> None:
    """How well the model has the steps that it was fitted to, and what the machine did."""
    for kind, is_mixed in (("decode", False), ("prefill", True)):
        errors = [abs(error(step, model, pace)) for step in steps if step.is_mixed == is_mixed]
        fastest, slowest = pace.spread(is_mixed)
        print(
            f"{len(errors):6} {kind:8} steps, model within {statistics.median(errors):.1%} "
            f"at the machine's pace, {fastest:.2f} to {slowest:.2f}"
        )


def main() -> None:
    """Print a table; status 1 if a median is off by more than the tolerance."""
    parser = argparse.ArgumentParser(description="accuracy of sglk sim on this machine")
    parser.add_argument("artifact")
    parser.add_argument("--requests", type=int, default=20, help="of each trace")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--memory", default="2GiB", help="as in sglk plan (default: 2GiB)")
    parser.add_argument("--at-edge", help="command to run at the edges of each test trace")
    parser.add_argument("--steps", metavar="FILE", help="keep the calibration steps")
    options = parser.parse_args()
    loading = {
        "num_threads": options.threads, "memory": parse_size("--memory", options.memory)
    }  # fmt: skip
    with (
        sglk.load(options.artifact, **loading) as one,
        sglk.load(options.artifact, **loading) as two,
    ):
        limits = one.engine.limits
        test, other = Side(one.engine, TurnClock()), Side(two.engine, TurnClock())
        steps, runs = play(test, other, options.requests, options.rounds, Edges(options.at_edge))
    if options.steps is not None:
        with StepWriter.open(options.steps) as writer:
            for step in steps:
                writer(step.record)
    model, pace = fitted(steps)
    describe(model, pace, steps)
    head = f"{'':34}{'TTFT ms':>11}{'sim':>11}{'':8}{'ITL ms':>11}{'sim':>11}{'':8}"
    print(f"{head}{'prefill':>9}{'decode':>9} steps")
    worst = max(compare(limits, model, pace, name, found) for name, found in runs.items())
    print(f"largest difference of a median: {worst:.1%} (at most {TOLERANCE:.0%})")
    raise SystemExit(int(worst > TOLERANCE))


if __name__ == "__main__":
    main()
