"""The simulation does what the engine does: the same times to the last digit, given step times."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk.errors import SglkError
from sglk.runtime.admission import Limits
from sglk.runtime.batch import Plan
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.request import SamplingParams
from sglk.runtime.simulate import SimResult, Simulation
from sglk.runtime.step_model import Costs, StepModel
from sglk.runtime.steps import StepLoad, StepRecord
from sglk.runtime.trace import TraceRequest, read_trace
from sglk.targets.device import Logits

VOCAB = 97
MODEL = StepModel(
    decode=Costs(("decode_rows", "decode_context"), (0.25, 0.0625, 0.0009765625)),
    mixed=Costs(("decode_rows", "prefill_tokens"), (0.5, 0.0625, 0.03125)),
)
"""Seconds that are exact in binary."""


def serve(fake: SimpleNamespace, trace: list[TraceRequest], limits: Limits) -> SimResult:
    """The real engine on a device whose steps take what the model says, in a clock of their own."""
    now = trace[0].arrival_s

    class Timed(Executor):
        def run(self, plan: Plan) -> Logits:
            nonlocal now
            now += MODEL.seconds(StepLoad.of(plan)) or 0.0
            return super().run(plan)

    device = fake.HashDevice(limits.num_pages, limits.page_size, limits.max_step_tokens, VOCAB)
    engine = Engine(Timed(device, limits), limits, clock=lambda: now)
    result, at = SimResult(), 0
    last: dict[str, float] = {}
    begun: set[str] = set()
    while at < len(trace) or engine.has_work:
        while at < len(trace) and trace[at].arrival_s <= now:
            each = trace[at]
            params = SamplingParams(max_tokens=each.num_output, ignore_eos=True)
            name = f"t{each.number}"
            engine.add_request(name, np.abs(each.prompt()) % VOCAB, params, priority=each.priority)
            last[name] = each.arrival_s
            at += 1
        if not engine.has_work:
            now = trace[at].arrival_s
            continue
        for output in engine.step():
            name = output.request_id
            (result.itl if name in begun else result.ttft).append(now - last[name])
            begun.add(name)
            last[name] = now
    result.stats = engine.stats()
    return result


traces = st.lists(
    st.builds(
        lambda gap, prompt, answer, root, priority: (gap, prompt, answer, root, priority),
        st.sampled_from([0, 0, 1, 4, 20]),
        st.integers(2, 40),
        st.integers(1, 8),
        st.integers(0, 2),
        st.sampled_from([0, 0, -1, 2]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(
    rows=traces,
    policy=st.sampled_from(["fcfs", "cache-aware"]),
    share=st.sampled_from([0.25, 1.0]),
    pages=st.sampled_from([14, 60]),
)
def test_a_replay_has_the_times_of_the_engine(
    fake: SimpleNamespace, rows: list[Any], policy: Any, share: float, pages: int
) -> None:
    limits = Limits(
        page_size=4, num_pages=pages, max_step_tokens=16, max_running=4, policy=policy,
        prefill_share=share, aging_steps=6,
    )  # fmt: skip
    trace, arrival = [], 0.0
    for number, (gap, prompt, answer, root, priority) in enumerate(rows):
        arrival += gap / 4
        blocks = tuple(root if b < 2 else 10 + number for b in range(-(-prompt // 4)))
        trace.append(TraceRequest(number, arrival, prompt, answer, blocks, 4, priority))
    simulated = Simulation(trace, limits, MODEL).run()
    served = serve(fake, trace, limits)
    assert simulated.stats is not None and served.stats is not None
    assert simulated.ttft == served.ttft and simulated.itl == served.itl
    assert simulated.stats.num_preemptions == served.stats.num_preemptions
    assert simulated.stats.cached_tokens == served.stats.cached_tokens
    assert simulated.num_starved == 0 and len(simulated.total) == len(trace)


def test_prompts_share_what_their_hash_ids_share() -> None:
    a, b = (TraceRequest(0, 0, 12, 1, ids, 4).prompt() for ids in ((1, 2, 3), (1, 2, 4)))
    assert (a[:8] == b[:8]).all() and (a[8:] != b[8:]).all()
    alone, other = (TraceRequest(number, 0, 12, 1).prompt() for number in (0, 1))
    assert alone[0] != other[0]
    assert len(TraceRequest(0, 0, 9, 1, (10**9, 10**9 + 1, 5), 4).prompt()) == 9


def test_both_forms_of_a_trace_say_the_same() -> None:
    ours = {"arrival_s": 2.5, "prompt_tokens": 700, "output_tokens": 9, "hash_ids": [4, 5]}
    theirs = {"timestamp": 2500, "input_length": 700, "output_length": 9, "hash_ids": [4, 5]}
    earlier = {"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "priority": -2}
    trace = read_trace(map(json.dumps, [ours, theirs, earlier]), "t")
    assert [each.number for each in trace] == [2, 0, 1] and trace[0].priority == -2
    assert trace[1] == TraceRequest(0, 2.5, 700, 9, (4, 5)) and trace[2].hash_ids == (4, 5)


def test_what_can_never_run_is_counted_and_the_rest_served() -> None:
    limits = Limits(page_size=4, num_pages=9, max_step_tokens=16, max_running=4, max_context=30)
    trace = [TraceRequest(0, 0.0, 29, 5), TraceRequest(1, 0.0, 5, 3), TraceRequest(2, 0.0, 90, 1)]
    result = Simulation(trace, limits, MODEL).run()
    assert len(result.refused) == 2 and len(result.itl) == 2
    assert result.as_record()["requests"] == 1


def test_starvation_is_measured_in_steps_against_the_bound() -> None:
    limits = Limits(page_size=4, num_pages=60, max_step_tokens=8, max_running=1, aging_steps=5)
    trace = [TraceRequest(0, 0.0, 4, 30), TraceRequest(1, 0.0, 4, 2)]
    result = Simulation(trace, limits, MODEL).run()
    worst, bound = result.worst_gap
    assert (worst, bound) == (31, 5 + (5 + 30) + (1 + 2))
    assert result.num_starved == 0


def test_a_model_without_steps_of_a_kind_is_refused() -> None:
    limits = Limits(page_size=4, num_pages=60)
    with pytest.raises(SglkError, match="expected 16 timed steps with prefill or more, got fewer"):
        Simulation([TraceRequest(0, 0.0, 4, 3)], limits, StepModel(MODEL.decode, None)).run()


def test_a_long_context_costs_few_requests_more_than_its_share_of_many() -> None:
    """As where each head of each request is a part, and the longest part keeps a thread busy."""
    loads = [
        StepLoad(0, rows, rows, rows * context, 0)
        for rows in (1, 2, 3, 4, 6, 8) for context in range(50, 900, 50)
    ]  # fmt: skip
    taken = [0.003 + 8e-4 * r + 1e-6 * total + 2e-6 * total / r for _, r, _, total, _ in loads]
    records = [StepRecord(0, t, t, x, 0, 0, 0) for x, t in zip(loads, taken, strict=True)]
    model = StepModel.fit(records)
    for load, seconds in zip(loads, taken, strict=True):
        assert model.seconds(load) == pytest.approx(seconds, rel=0.002)
    assert StepLoad(5, 0, 1, 0, 15).mean_context == 0


def test_simulated_steps_vary_as_timed_ones_did_and_the_same_each_time() -> None:
    loads = [StepLoad(0, 1 + at % 4, 1 + at % 4, 100, 0) for at in range(400)]
    loads += [load._replace(prefill_tokens=9) for load in loads]
    times = [0.01 * (1.5 if at // 4 % 4 == 3 else 1.0) for at in range(len(loads))]
    records = [StepRecord(0, t, t, x, 0, 0, 0) for x, t in zip(loads, times, strict=True)]
    model = StepModel.fit(records)
    assert model.seconds(loads[0]) == pytest.approx(0.01, rel=0.02)
    limits = Limits(page_size=4, num_pages=400, max_running=1)
    first, again = (Simulation([TraceRequest(0, 0.0, 4, 400)], limits, model).run() for _ in "ab")
    assert first.itl == again.itl
    assert np.mean(np.array(first.itl) > 0.0149) == pytest.approx(0.25, abs=0.02)
    assert np.median(first.itl) == pytest.approx(0.01, rel=0.02)
