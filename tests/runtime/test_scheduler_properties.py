"""Whatever happens to requests, their tokens are those of a model that has no pages at all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sglk.errors import RequestError
from sglk.runtime.admission import Limits

VOCAB = 11
"""Few ids, so that prompts share prefixes and answers run into stop ids."""

quick = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    step_tokens = draw(st.integers(1, 24))
    return Limits(
        page_size=draw(st.integers(1, 5)),
        num_pages=draw(st.integers(4, 24)),
        max_step_tokens=step_tokens,
        max_running=draw(st.integers(1, min(6, step_tokens))),
        max_context=draw(st.sampled_from([30, 1000])),
        prefix_cache=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "cache-aware"])),
        aging_steps=draw(st.sampled_from([0, 2, 20])),
        prefill_share=draw(st.sampled_from([0.0, 0.3, 1.0, 1.0])),
        itl_target_s=draw(st.sampled_from([None, None, 0.5, 1.2])),
        batch_wait_s=draw(st.sampled_from([0.0, 0.0, 3.0])),
    )


# Prompts from a few roots, so that many are prefixes of each other.
prompts = st.one_of(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    st.builds(
        lambda root, cut, tail: [(root + i) % VOCAB for i in range(cut)] + tail,
        st.integers(0, 2),
        st.integers(1, 25),
        st.lists(st.integers(0, VOCAB - 1), max_size=3),
    ),
)


class Serving(RuleBasedStateMachine):
    """Requests come, step, are aborted; the naive model is `expected_tokens`."""

    fake: SimpleNamespace

    @initialize(limits=limits())
    def start(self, limits: Limits) -> None:
        self.bench = self.fake.Bench(limits, VOCAB)
        self.expected: dict[str, list[int]] = {}
        self.stops: dict[str, set[int]] = {}
        self.requests: dict[str, object] = {}
        self.deadlines: dict[str, int] = {}
        self.steps = 0

    @rule(
        prompt=prompts,
        max_new=st.integers(1, 12),
        stops=st.sets(st.integers(0, VOCAB - 1), max_size=1),
        namespace=st.sampled_from(["", "", "salt"]),
        priority=st.sampled_from([0, 0, -5, 7]),
        uses_cache=st.sampled_from([True, True, True, False]),
    )
    def add(
        self,
        prompt: list[int],
        max_new: int,
        stops: set[int],
        namespace: str,
        priority: int,
        uses_cache: bool,
    ) -> None:
        id = f"r{len(self.expected)}"
        total = len(prompt) + max_new
        if len(prompt) >= self.bench.limits.max_context or total > self.bench.limits.max_total:
            with pytest.raises(RequestError, match=f"request {id}: expected"):
                self.bench.add(id, prompt, max_new)
            return
        request = self.bench.add(
            id,
            prompt,
            max_new,
            stop_ids=stops,
            namespace=namespace,
            priority=priority,
            uses_cache=uses_cache,
        )
        tokens = self.fake.expected_tokens(prompt, max_new, VOCAB)
        hits = [place for place, token in enumerate(tokens) if token in stops]
        self.expected[id] = tokens[: hits[0] + 1] if hits else tokens
        self.stops[id] = stops
        self.requests[id] = request
        unfinished = [r for i, r in self.requests.items() if i not in self.bench.reasons]
        self.deadlines[id] = self.steps + self.bench.limits.progress_bound(unfinished)
        assert request.bound_step == self.deadlines[id]

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.steps += self.bench.scheduler.has_work
            self.bench.step()

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.expected)))
        self.bench.abort(id)
        self.bench.abort(id)

    @rule()
    def abort_in_flight(self) -> None:
        """A client leaves while its tokens are on the device."""
        self.steps += self.bench.scheduler.has_work
        self.bench.step(is_first_leaving=True)

    @rule()
    def plan_and_drop(self) -> None:
        """The device failed: nothing has happened."""
        self.bench.scheduler.schedule(self.bench.now)
        self.bench.check()

    @rule()
    def flush(self) -> None:
        self.bench.scheduler.kv.flush()
        self.bench.check()

    @invariant()
    def tokens_are_those_of_the_model(self) -> None:
        for id, tokens in self.expected.items() if hasattr(self, "bench") else ():
            got, reason = self.bench.answers[id], self.bench.reasons.get(id)
            assert got == tokens[: len(got)]
            if reason in ("stop", "length"):
                assert got == tokens
                assert (got[-1] in self.stops[id]) == (reason == "stop")

    @invariant()
    def everyone_makes_progress(self) -> None:
        for id, deadline in self.deadlines.items() if hasattr(self, "bench") else ():
            assert id in self.bench.reasons or self.steps <= deadline
        if hasattr(self, "bench"):
            assert not self.bench.scheduler.overdue()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            while self.bench.scheduler.has_work:
                self.step(1)
                self.everyone_makes_progress()
            self.tokens_are_those_of_the_model()
            assert set(self.bench.reasons) == set(self.expected)
            assert self.bench.scheduler.kv.pool.num_held == 0


def test_serving_equals_the_naive_model(fake: SimpleNamespace) -> None:
    machine = type("FakeServing", (Serving,), {"fake": fake})
    run_state_machine_as_test(machine, settings=quick)


@settings(quick, max_examples=60)
@given(
    batch=st.lists(st.tuples(prompts, st.integers(1, 10)), min_size=1, max_size=8),
    chunk=st.integers(1, 40),
    size=st.integers(1, 8),
    spare=st.integers(0, 20),
)
def test_same_tokens_alone_together_cold_and_warm(
    fake: SimpleNamespace, batch: list[tuple[list[int], int]], chunk: int, size: int, spare: int
) -> None:
    """Every chunk and page size; few pages force preemption; then again on a warm cache."""
    longest = max(len(prompt) + new for prompt, new in batch)
    bench = fake.Bench(
        Limits(
            page_size=size,
            num_pages=1 + -(-longest // size) + spare,
            max_step_tokens=chunk,
            max_running=min(chunk, 5),
        ),
        VOCAB,
    )
    for round in ("cold", "warm"):
        for place, (prompt, new) in enumerate(batch):
            bench.add(f"{round}{place}", prompt, new)
        bench.run()
        for place, (prompt, new) in enumerate(batch):
            expected = fake.expected_tokens(prompt, new, VOCAB)
            assert bench.answers[f"{round}{place}"] == expected
