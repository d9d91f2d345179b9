"""How well `sglk sim` foretells a server: one trace calibrates it, others are compared.

    python bench/sim_accuracy.py model.sglk [--requests 80] [--threads N] [--steps FILE]

1. A calibration trace is served in process and every step is timed: requests of mixed lengths that
   come faster than they can be served, then slower, so that steps of all sizes occur.
2. The step-time model is fitted to these steps; `--steps` keeps them for `sglk sim`.
3. Test traces of other lengths, with and without shared prefixes, at half and four fifths of the
   load that the simulation says the machine bears, are served and simulated.

Prints measured and simulated medians (TTFT, ITL) of each test trace, and by how much its steps
differed from the model's; ends with status 1 if a median differs by more than 20 %. Keep the
machine idle: a step that somebody else delays is no model's. A trace whose steps differ by over 8 %
at the median is served again, three times at most.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import sglk
from numpy.typing import NDArray
from sglk.cli.sizes import parse_size
from sglk.runtime import SamplingParams
from sglk.runtime.engine import Engine
from sglk.runtime.simulate import SimResult, Simulation
from sglk.runtime.step_model import StepModel
from sglk.runtime.steps import StepRecord, StepWriter
from sglk.runtime.trace import TraceRequest

BLOCK = 64
TOLERANCE = 0.2
DISTURBED = 0.08
"""Difference between measured and modelled steps above which a trace is served again."""


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


def calibrate(engine: Engine, count: int, path: str | None) -> StepModel:
    """Time steps of all sizes and fit."""
    _, records = serve(engine, make_trace(1, 4, np.inf, 100, 8))  # warm up
    records = []
    for seed, prompt, output in ((2, 60, 40), (3, 300, 30)):
        burst = make_trace(seed, count // 2, np.inf, prompt, output, groups=4)
        result, timed = serve(engine, burst)
        records += timed
        rate = 0.5 * len(burst) / result.seconds
        calm = [replace(each, arrival_s=each.number / rate) for each in burst[: count // 3]]
        records += serve(engine, calm)[1]
    if path is not None:
        with StepWriter.open(path) as writer:
            for record in records:
                writer(record)
    model = StepModel.fit(records)
    if model.decode is None or model.mixed is None:
        raise SystemExit("sim_accuracy: expected more steps of each kind (raise --requests)")
    for kind, is_mixed in (("decode", False), ("prefill", True)):
        found = [r for r in records if (r.load.prefill_tokens > 0) == is_mixed]
        errors = [abs((model.seconds(r.load) or 0.0) / r.seconds - 1) for r in found]
        if errors:
            print(f"{len(found):6} {kind:8} steps, model within {statistics.median(errors):.1%}")
    return model


def bearable_rate(engine: Engine, model: StepModel, trace: Sequence[TraceRequest]) -> float:
    """Requests per second that the simulation serves when they all come at once."""
    burst = [replace(each, arrival_s=0.0) for each in trace]
    return len(trace) / Simulation(burst, engine.limits, model).run().seconds


def disturbance(model: StepModel, records: Sequence[StepRecord]) -> float:
    """By how much more than the model says the median step took."""
    ratios = [r.seconds / (model.seconds(r.load) or r.seconds) for r in records]
    return statistics.median(ratios) - 1


def compare(
    engine: Engine, model: StepModel, name: str, trace: list[TraceRequest], tries: int
) -> float:
    """Serve and simulate; the largest relative difference of the two medians.

    Served again, up to ``tries`` times, where the machine was not what it was when it was
    calibrated: the last of them counts, whatever it was like.
    """
    simulated = Simulation(trace, engine.limits, model).run()
    for _ in range(tries):
        measured, records = serve(engine, trace)
        drift = disturbance(model, records)
        worst, line = 0.0, f"{name:34}"
        for kind in ("ttft", "itl"):
            real, modelled = (statistics.median(getattr(r, kind)) for r in (measured, simulated))
            worst = max(worst, abs(modelled / real - 1))
            line += f"{real * 1e3:11.1f}{modelled * 1e3:11.1f}{modelled / real - 1:+8.1%}"
        print(f"{line}{drift:+9.1%}", flush=True)
        if abs(drift) <= DISTURBED:
            break
    return worst


def main() -> None:
    """Print a table; status 1 if a median is off by more than the tolerance."""
    parser = argparse.ArgumentParser(description="accuracy of sglk sim on this machine")
    parser.add_argument("artifact")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--memory", default="2GiB", help="as in sglk plan (default: 2GiB)")
    parser.add_argument("--tries", type=int, default=3, help="per trace, if it was disturbed")
    parser.add_argument("--steps", metavar="FILE", help="keep the timed steps")
    options = parser.parse_args()
    with sglk.load(
        options.artifact, num_threads=options.threads, memory=parse_size("--memory", options.memory)
    ) as llm:
        engine = llm.engine
        model = calibrate(engine, options.requests, options.steps)
        head = f"{'':34}{'TTFT ms':>11}{'sim':>11}{'':8}{'ITL ms':>11}{'sim':>11}{'':8}"
        print(f"{head}{'steps':>9}")
        worst = 0.0
        for prompt, output, groups in ((150, 50, 0), (400, 25, 0), (400, 40, 6)):
            for load in (0.5, 0.8):
                shape = (options.requests, 1.0, prompt, output, groups)
                trace = make_trace(11 + prompt + groups, *shape)
                rate = load * bearable_rate(engine, model, trace)
                trace = [replace(each, arrival_s=each.arrival_s / rate) for each in trace]
                name = f"{prompt}+{output} tokens, load {load}" + (", shared" if groups else "")
                worst = max(worst, compare(engine, model, name, trace, options.tries))
    print(f"largest difference of a median: {worst:.1%} (at most {TOLERANCE:.0%})")
    raise SystemExit(int(worst > TOLERANCE))


if __name__ == "__main__":
    main()
