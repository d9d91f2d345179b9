"""How well `sglk sim` foretells a server: some traces calibrate it, others are compared.

    python bench/sim_accuracy.py model.sglk [--requests 20] [--rounds 5] [--at-edge COMMAND]

Each round serves in process and times every step of

1. calibration traces: requests of mixed lengths that come faster than they can be served, then
   slower, so that steps of all sizes occur;
2. test traces of other lengths, with and without shared prefixes, at half and four fifths of the
   load that the simulation says the machine bears.

In the end the step-time model is fitted to the calibration steps of all rounds (`--steps` keeps
them for `sglk sim`), and every test trace is simulated. Prints measured and simulated medians
(TTFT, ITL) of each kind of test trace over all rounds; ends with status 1 if one differs by more
than 20 %. Keep the machine idle: a step that somebody else delays is no model's. Rounds are short
for that: each is announced, and COMMAND is run with "begin NAME" and "end NAME". A trace whose
steps differ from the model by over 8 % at the median was served by another machine than the one
that was calibrated; it is left out and counted. A kind of which no trace is left is not foretold.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import sglk
from numpy.typing import NDArray
from sglk.bench.edges import Edges
from sglk.cli.sizes import parse_size
from sglk.runtime import SamplingParams
from sglk.runtime.admission import Limits
from sglk.runtime.engine import Engine
from sglk.runtime.simulate import SimResult, Simulation
from sglk.runtime.step_model import StepModel
from sglk.runtime.steps import StepRecord, StepWriter
from sglk.runtime.trace import TraceRequest

BLOCK = 64
TOLERANCE = 0.2
DISTURBED = 0.08
"""Difference between measured and modelled steps above which a trace does not count."""
CALIBRATION = ((60, 40), (300, 30))
"""Prompt and output tokens, about."""
TESTS = ((150, 50, 0), (400, 25, 0), (400, 40, 6))
"""The same, and groups with shared prefixes."""
LOADS = (0.5, 0.8)


@dataclass(frozen=True)
class Run:
    """A test trace that was served."""

    trace: list[TraceRequest]
    measured: SimResult
    records: list[StepRecord]


def make_trace(
    seed: int, count: int, rate: float, prompt: int, output: int, groups: int = 0
) -> list[TraceRequest]:
    """Poisson arrivals at ``rate`` per second; lengths of about ``prompt`` and ``output`` tokens.

    With ``groups`` each prompt begins with three quarters of its length of one group's text.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count)) if rate < np.inf else np.zeros(count)
    trace = []
    for number in range(count):
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


def prompt_of(each: TraceRequest, vocab: int) -> NDArray[np.int32]:
    """Token ids of the model that are equal where those of the trace are."""
    parts = [
        np.random.default_rng(block).integers(0, vocab, BLOCK, dtype=np.int32)
        for block in each.hash_ids or ()
    ]
    return np.concatenate(parts)[: each.num_prompt]


def serve(engine: Engine, trace: Sequence[TraceRequest]) -> tuple[SimResult, list[StepRecord]]:
    """Serve a trace in real time; times count from each request's arrival, as in the simulation."""
    engine.flush_cache()
    result, records = SimResult(), list[StepRecord]()
    engine.on_step = records.append
    prompts = [prompt_of(each, engine.vocab_size) for each in trace]
    last: dict[str, float] = {}
    begun: set[str] = set()
    at, started = 0, engine.clock()
    while at < len(trace) or engine.has_work:
        now = engine.clock() - started
        while at < len(trace) and trace[at].arrival_s <= now:
            each = trace[at]
            params = SamplingParams(max_tokens=each.num_output, ignore_eos=True)
            engine.add_request(f"t{each.number}", prompts[at], params)
            last[f"t{each.number}"] = each.arrival_s
            at += 1
        if not engine.has_work:
            time.sleep(max(0.0, trace[at].arrival_s - now))
            continue
        outputs = engine.step()
        now = engine.clock() - started
        for output in outputs:
            name = output.request_id
            (result.itl if name in begun else result.ttft).append(now - last[name])
            begun.add(name)
            last[name] = now
    result.seconds = engine.clock() - started
    engine.on_step = None
    return result, records


def calibrate(engine: Engine, count: int, seed: int) -> list[StepRecord]:
    """Timed steps of all sizes."""
    records: list[StepRecord] = []
    for at, (prompt, output) in enumerate(CALIBRATION):
        burst = make_trace(1000 * seed + at, count // 2, np.inf, prompt, output, groups=4)
        result, timed = serve(engine, burst)
        records += timed
        rate = 0.5 * len(burst) / result.seconds
        calm = [replace(each, arrival_s=each.number / rate) for each in burst[: count // 3]]
        records += serve(engine, calm)[1]
    return records


def fitted(records: Sequence[StepRecord]) -> StepModel:
    """The model of these steps."""
    model = StepModel.fit(records)
    if model.decode is None or model.mixed is None:
        raise SystemExit("sim_accuracy: expected more steps of each kind (raise --requests)")
    return model


def bearable_rate(engine: Engine, model: StepModel, trace: Sequence[TraceRequest]) -> float:
    """Requests per second that the simulation serves when they all come at once."""
    burst = [replace(each, arrival_s=0.0) for each in trace]
    return len(trace) / Simulation(burst, engine.limits, model).run().seconds


def disturbance(model: StepModel, records: Sequence[StepRecord]) -> float:
    """By how much more than the model says the median step took."""
    ratios = [r.seconds / (model.seconds(r.load) or r.seconds) for r in records]
    return statistics.median(ratios) - 1


def play(
    engine: Engine, count: int, rounds: int, edges: Edges
) -> tuple[list[StepRecord], dict[str, list[Run]]]:
    """The calibration steps of all rounds, and the test traces by kind."""
    records: list[StepRecord] = []
    runs: dict[str, list[Run]] = {}
    serve(engine, make_trace(1, 4, np.inf, 100, 8))  # warm up
    for number in range(1, rounds + 1):
        with edges.window(f"round {number}"):
            records += calibrate(engine, count, number)
            model = fitted(records)
            for prompt, output, groups in TESTS:
                for load in LOADS:
                    seed = 1000 * number + 11 + prompt + groups
                    trace = make_trace(seed, count, 1.0, prompt, output, groups)
                    rate = load * bearable_rate(engine, model, trace)
                    trace = [replace(each, arrival_s=each.arrival_s / rate) for each in trace]
                    name = f"{prompt}+{output} tokens, load {load}" + (", shared" if groups else "")
                    runs.setdefault(name, []).append(Run(trace, *serve(engine, trace)))
    return records, runs


def compare(limits: Limits, model: StepModel, name: str, runs: Sequence[Run]) -> float:
    """The largest relative difference of the two medians over the traces of a kind that count."""
    drifts = [disturbance(model, run.records) for run in runs]
    kept = [run for run, drift in zip(runs, drifts, strict=True) if abs(drift) <= DISTURBED]
    counts = f"{len(kept):4} of {len(runs)}"
    if not kept:
        print(f"{name:34}{'the machine was never what it was when calibrated':^60}{counts}")
        return float("inf")
    simulated = [Simulation(run.trace, limits, model).run() for run in kept]
    worst, line = 0.0, f"{name:34}"
    for kind in ("ttft", "itl"):
        real = statistics.median(value for run in kept for value in getattr(run.measured, kind))
        modelled = statistics.median(value for each in simulated for value in getattr(each, kind))
        worst = max(worst, abs(modelled / real - 1))
        line += f"{real * 1e3:11.1f}{modelled * 1e3:11.1f}{modelled / real - 1:+8.1%}"
    print(line + counts, flush=True)
    return worst


def describe(model: StepModel, records: Sequence[StepRecord]) -> None:
    """How well the model has the steps that it was fitted to."""
    for kind, is_mixed in (("decode", False), ("prefill", True)):
        found = [r for r in records if (r.load.prefill_tokens > 0) == is_mixed]
        errors = [abs((model.seconds(r.load) or 0.0) / r.seconds - 1) for r in found]
        print(f"{len(found):6} {kind:8} steps, model within {statistics.median(errors):.1%}")


def main() -> None:
    """Print a table; status 1 if a median is off by more than the tolerance."""
    parser = argparse.ArgumentParser(description="accuracy of sglk sim on this machine")
    parser.add_argument("artifact")
    parser.add_argument("--requests", type=int, default=20, help="of each trace")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--memory", default="2GiB", help="as in sglk plan (default: 2GiB)")
    parser.add_argument("--at-edge", help="command to run at the edges of each round")
    parser.add_argument("--steps", metavar="FILE", help="keep the timed steps")
    options = parser.parse_args()
    with sglk.load(
        options.artifact, num_threads=options.threads, memory=parse_size("--memory", options.memory)
    ) as llm:
        limits = llm.engine.limits
        records, runs = play(llm.engine, options.requests, options.rounds, Edges(options.at_edge))
    if options.steps is not None:
        with StepWriter.open(options.steps) as writer:
            for record in records:
                writer(record)
    model = fitted(records)
    describe(model, records)
    head = f"{'':34}{'TTFT ms':>11}{'sim':>11}{'':8}{'ITL ms':>11}{'sim':>11}{'':8}"
    print(f"{head}{'traces':>9}")
    worst = max(compare(limits, model, name, found) for name, found in runs.items())
    print(f"largest difference of a median: {worst:.1%} (at most {TOLERANCE:.0%})")
    raise SystemExit(int(worst > TOLERANCE))


if __name__ == "__main__":
    main()
