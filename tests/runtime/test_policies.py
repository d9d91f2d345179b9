"""Order, shares and waits: what each policy does, and that no flood of arrivals starves anybody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk.errors import RequestError, SglkError
from sglk.runtime.admission import Limits
from sglk.runtime.request import Request
from sglk.runtime.step_model import StepModel, non_negative_least_squares
from sglk.runtime.steps import StepLoad, StepRecord


def limits(**changes: Any) -> Limits:
    chosen: dict[str, Any] = {
        "page_size": 4,
        "num_pages": 65,
        "max_step_tokens": 16,
        "max_running": 4,
    }
    return Limits(**{**chosen, **changes})


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + i) % 90 for i in range(length)]


def order(bench: Any) -> list[str]:
    bench.run()
    return list(bench.reasons)


def test_urgent_requests_start_first_whatever_their_policy(fake: SimpleNamespace) -> None:
    for policy in ("fcfs", "cache-aware"):
        bench = fake.Bench(limits(max_running=1, policy=policy))
        for name, priority in (("late", 5), ("normal", 0), ("urgent", -3), ("urgent2", -3)):
            bench.add(name, prompt(5, ord(name[0])), 2, priority=priority)
        assert order(bench) == ["urgent", "urgent2", "normal", "late"]


def test_an_aged_request_starts_before_urgent_ones(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(max_running=1, aging_steps=3))
    bench.add("first", prompt(5), 4)
    bench.add("old", prompt(5, 9), 2, priority=9)
    for _ in range(3):
        bench.step()
    bench.add("urgent", prompt(5, 20), 2, priority=-9)
    assert order(bench) == ["first", "old", "urgent"]


def test_the_least_urgent_gives_way_when_pages_run_out(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(num_pages=9, prefix_cache=False))
    low = bench.add("low", prompt(8), 20, priority=5)
    bench.step()
    high = bench.add("high", prompt(8, 40), 20)
    bench.run()
    assert (high.num_preemptions, low.num_preemptions > 0) == (0, True)
    assert bench.answers["low"] == fake.expected_tokens(prompt(8), 20, 97)


@pytest.mark.parametrize("priority", [-101, 101, 1.5, "high", True])
def test_priorities_are_whole_numbers_in_range(priority: Any) -> None:
    with pytest.raises(RequestError, match=r"priority: expected a whole number in \[-100, 100\]"):
        Request("a", [1], 1, priority=priority)


def test_cache_aware_takes_the_longest_cached_prefix_first(fake: SimpleNamespace) -> None:
    found = {}
    for policy in ("fcfs", "cache-aware"):
        bench = fake.Bench(limits(max_running=1, policy=policy))
        bench.add("seed", prompt(20), 1)
        bench.run()
        bench.add("none", prompt(20, 50), 1)
        bench.add("two", [*prompt(8), *prompt(12, 60)], 1)
        bench.add("five", [*prompt(20), 80], 1)
        found[policy] = order(bench)[1:]
    assert found == {"fcfs": ["none", "two", "five"], "cache-aware": ["five", "two", "none"]}


def test_cache_aware_starts_others_while_a_prefix_is_being_computed(fake: SimpleNamespace) -> None:
    started = {}
    for policy in ("fcfs", "cache-aware"):
        bench = fake.Bench(limits(policy=policy, max_step_tokens=64))
        bench.add("first", prompt(20), 1)
        bench.add("twin", [*prompt(20), 80], 1)
        bench.add("other", prompt(20, 50), 1)
        started[policy] = [request.id for request in bench.scheduler.schedule().admitted]
    assert started == {"fcfs": ["first"], "cache-aware": ["first", "other"]}


flood = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["fcfs", "cache-aware"]),
        "aging_steps": st.sampled_from([0, 1, 7]),
        "max_running": st.integers(1, 4),
        "prefill_share": st.sampled_from([0.0, 0.5, 1.0]),
        "itl_target_s": st.sampled_from([None, 1.1]),
        "batch_wait_s": st.sampled_from([0.0, 2.5]),
        "num_pages": st.sampled_from([21, 65]),
    }
)


@settings(max_examples=80)
@given(
    chosen=flood,
    length=st.integers(1, 40),
    new=st.integers(1, 6),
    attack=st.sampled_from(["urgent", "cached", "long prompts", "long answers"]),
    before=st.integers(0, 3),
)
def test_no_flood_of_arrivals_starves_a_request(
    fake: SimpleNamespace, chosen: dict[str, Any], length: int, new: int, attack: str, before: int
) -> None:
    """Arrivals fill every place at every step; who came first still ends within its bound."""
    bench = fake.Bench(limits(**chosen))
    sent = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        size = {"long prompts": 60, "cached": 24}.get(attack, 5)
        answer = {"long answers": 60, "urgent": 40}.get(attack, 3)
        tokens = prompt(size) if attack == "cached" else prompt(size, sent)
        bench.add(f"flood{sent}", tokens, answer, priority=-50 if attack == "urgent" else 0)

    for _ in range(before):
        send()
        bench.step()
    victim = bench.add("victim", prompt(length, 45), new, priority=30)
    while "victim" not in bench.reasons:
        while len(bench.scheduler.waiting) < 6:
            send()
        bench.step()
        assert not bench.scheduler.overdue()
    assert bench.scheduler.num_steps <= victim.bound_step
    assert bench.answers["victim"] == fake.expected_tokens(prompt(length, 45), new, 97)


def test_arrivals_alone_wait_for_company_but_not_for_long(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(batch_wait_s=5.0))
    scheduler = bench.scheduler
    bench.add("a", prompt(5), 3)
    plan = scheduler.schedule(1.0)
    assert (plan.chunks, plan.wait_until) == ([], 5.0)
    bench.now = 2.0
    bench.add("b", prompt(5, 40), 3)
    assert scheduler.schedule(4.9).wait_until == 5.0
    assert [request.id for request in scheduler.schedule(5.0).admitted] == ["a", "b"]


def test_a_full_batch_does_not_wait(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(batch_wait_s=5.0, max_running=2))
    bench.add("a", prompt(5), 3)
    bench.add("b", prompt(5, 40), 3)
    assert len(bench.scheduler.schedule(0.0).admitted) == 2
    bench = fake.Bench(limits(batch_wait_s=5.0))
    bench.add("long", prompt(40), 3)
    assert len(bench.scheduler.schedule(0.0).admitted) == 1


def test_decoding_goes_on_while_arrivals_wait(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(batch_wait_s=2.5))
    bench.add("runs", prompt(16), 9)
    bench.step()
    bench.add("waits", prompt(5, 40), 1)
    starts = []
    for _ in range(4):
        bench.step()
        starts.append("waits" in bench.reasons)
    assert starts == [False, False, False, True] and len(bench.answers["runs"]) == 5


@pytest.mark.parametrize(("share", "chunk"), [(1.0, 15), (0.5, 8), (0.25, 4), (0.0, 4)])
def test_prefill_takes_its_share_while_others_decode(
    fake: SimpleNamespace, share: float, chunk: int
) -> None:
    bench = fake.Bench(limits(prefill_share=share))
    bench.add("short", prompt(3), 30)
    bench.step()
    bench.add("long", prompt(50, 7), 2)
    for _ in range(3):
        bench.step()
    assert bench.prefilled[1:] == [chunk] * 3


def test_without_anybody_decoding_prefill_takes_the_whole_step(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(prefill_share=0.1, itl_target_s=0.1))
    bench.add("long", prompt(32), 2)
    bench.step()
    assert bench.prefilled == [16]


def test_chunks_are_sized_for_the_target_once_steps_were_timed(fake: SimpleNamespace) -> None:
    """A step takes 1 s and 1/64 s a token: 1.5 s are 32 tokens."""
    bench = fake.Bench(
        limits(itl_target_s=1.5, max_step_tokens=128, num_pages=1025, prefix_cache=False)
    )
    bench.scheduler.fit.every = 40
    bench.add("decodes", prompt(3), 900)
    bench.step()
    for number in range(20):
        bench.add(f"p{number}", prompt(30 + 13 * (number % 5), number), 3)
        bench.run_until(lambda name=f"p{number}": name in bench.reasons)
    assert bench.prefilled[1] == 4  # nothing was timed yet: the smallest chunk
    bench.prefilled.clear()
    bench.add("long", prompt(200, 5), 1)
    bench.run_until(lambda: "long" in bench.reasons)
    assert all(30 <= count <= 32 for count in bench.prefilled[:-1])


def test_a_target_that_cannot_be_met_still_makes_progress(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(itl_target_s=0.001))
    bench.scheduler.fit.every = 8
    bench.add("decodes", prompt(3), 60)
    bench.step()
    bench.add("long", prompt(100, 9), 1)
    bench.run()
    assert set(bench.prefilled[1:26]) == {4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "lifo"}, r"expected a policy of \('fcfs', 'cache-aware'\), got 'lifo'"),
        ({"aging_steps": -1}, "aging_steps: expected 0 or more, got -1"),
        ({"prefill_share": 1.5}, "prefill_share: expected a number from 0 to 1, got 1.5"),
        ({"itl_target_s": 0.0}, "itl_target_s: expected more than 0 s, got 0.0"),
        ({"batch_wait_s": 11.0}, "batch_wait_s: expected 0 to 10 s, got 11.0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SglkError, match=f"limits: {message}"):
        limits(**changes)


def timed(load: StepLoad, seconds: float) -> StepRecord:
    return StepRecord(0.0, seconds, seconds, load, 0, 0, 0)


def test_the_step_model_finds_the_costs_among_stalls() -> None:
    records = []
    for number in range(400):
        rows, context, tokens = number % 17, (number * 97) % 5000, (number * 31) % 256 + 1
        pairs, rows_out = tokens * 100 + number, rows + number % 2
        if number % 2:
            tokens = pairs = 0
            rows, rows_out = rows + 1, rows + 1
        load = StepLoad(tokens, rows, rows_out, context, pairs)
        seconds = 0.01 + 0.001 * rows + 1e-6 * context + 2e-4 * tokens + 1e-7 * pairs
        records.append(timed(load, seconds * (5 if number % 20 == 3 else 1)))
    model = StepModel.fit(records)
    for load, expected in (
        (StepLoad(0, 40, 40, 8000, 0), 0.01 + 0.04 + 0.008),
        (StepLoad(300, 10, 11, 1000, 45_000), 0.01 + 0.01 + 0.001 + 0.06 + 0.0045),
    ):
        assert model.seconds(load) == pytest.approx(expected, rel=0.03)
    assert model.prefill_within(0.05, 10, 1000) == pytest.approx(145, abs=6)


def test_what_kernels_for_other_sizes_cost_is_corrected() -> None:
    """Steps of more than 16 tokens run a kernel that takes half as long again."""
    loads = [StepLoad(0, rows, rows, 50 * rows, 0) for rows in range(1, 33)] * 16
    seconds = [0.01 + 0.001 * x.decode_rows * (1.5 if x.decode_rows > 16 else 1) for x in loads]
    model = StepModel.fit([timed(*pair) for pair in zip(loads, seconds, strict=True)])
    errors = [abs((model.seconds(x) or 0) / y - 1) for x, y in zip(loads, seconds, strict=True)]
    assert max(errors) < 0.12 and float(np.median(errors)) < 0.03


def test_too_few_steps_say_nothing() -> None:
    model = StepModel.fit([timed(StepLoad(0, 1, 1, 9, 0), 0.1)] * 3)
    assert model.seconds(StepLoad(0, 1, 1, 9, 0)) is None
    assert model.prefill_within(1.0, 1, 9) is None


@settings(max_examples=100)
@given(seed=st.integers(0, 10_000), columns=st.integers(1, 6))
def test_least_squares_meets_the_conditions_of_an_optimum(seed: int, columns: int) -> None:
    """Non-negative, no gradient along what is positive, none that descends along what is 0."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((30, columns)) * 10.0 ** rng.integers(-6, 6, columns)
    b = rng.standard_normal(30)
    x = non_negative_least_squares(a, b)
    gradient = (a.T @ (b - a @ x)) / np.linalg.norm(a, axis=0)
    assert (x >= 0).all()
    assert (np.abs(gradient[x > 0]) < 1e-6).all() and (gradient[x == 0] < 1e-6).all()
