"""Runs of steps that decode the same requests leave what the steps one by one leave."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sglk.runtime.admission import Limits
from sglk.runtime.batch import BatchBuffers, Plan
from sglk.runtime.decode_run import MAX_STEPS
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.request import Request, SamplingParams
from sglk.runtime.scheduler import Scheduler

SIZE = 4
PAGED = ("slots", "page_table")
"""Which page a request gets may differ; that they hold what they should is for test_run_ahead."""
LIMITS = Limits(page_size=SIZE, num_pages=400, max_step_tokens=64, max_running=8)


class Ahead:
    """A scheduler driven as an engine does that runs ahead; tokens are random but the same."""

    def __init__(self, limits: Limits, *, may_repeat: bool, seed: int) -> None:
        self.scheduler = Scheduler(limits)
        self._rng = random.Random(seed)
        self._may_repeat = may_repeat
        self._flight: Plan | None = None
        self._buffers = BatchBuffers(limits.page_size, limits.max_step_tokens, limits.max_running)
        self.arrays: list[dict[str, list[int]]] = []
        self.ends: list[tuple[str, str | None]] = []
        self.num_moved = 0

    def step(self) -> None:
        plan = self.scheduler.schedule()
        self.num_moved += plan.moved > 0
        if plan.chunks:
            batch = self._buffers.fill(plan)
            self.arrays.append({n: a.tolist() for n, a in vars(batch).items() if n not in PAGED})
        if self._flight is not None:
            tokens = [self._rng.randrange(50) for _ in self._flight.sampled]
            if not self.scheduler.lands_all(self._flight, tokens):
                events = self.scheduler.land(self._flight, tokens)
                self.ends += [(r.id, reason) for r, _, reason in events if reason]
        self._flight = plan if plan.chunks else None
        if plan.chunks:
            self.scheduler.advance(plan, may_repeat=self._may_repeat)

    def state(self) -> list[dict[str, Any]]:
        """All that is known of each request; `check` brings it up to date."""
        self.scheduler.check()
        return [
            {
                "id": request.id,
                "tokens": request.tokens.tolist(),
                "counts": (request.num_tokens, request.num_computed, request.num_published),
                "last": (request.last_token, request.num_in_flight),
                "pages": len(request.pages),
            }
            for request in self.scheduler.snapshot()
        ]


def requests(rng: random.Random, count: int, stop: int) -> list[Request]:
    return [
        Request(f"r{n}", [rng.randrange(50) for _ in range(rng.randrange(1, 20))],
                rng.randrange(1, 60), stop_ids=[stop])
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("num_pages", [60, 400])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_leaves_what_its_steps_leave(seed: int, num_pages: int) -> None:
    """Stops, ends, aborts and arrivals break runs; with few pages somebody has to give way."""
    limits = Limits(page_size=SIZE, num_pages=num_pages, max_step_tokens=64, max_running=6)
    runs = Ahead(limits, may_repeat=True, seed=seed)
    steps = Ahead(limits, may_repeat=False, seed=seed)
    for each in (runs, steps):
        for request in requests(random.Random(seed), 14, stop=7):
            each.scheduler.add(request)
    rng = random.Random(seed)
    number = 0
    while runs.scheduler.has_work or steps.scheduler.has_work:
        leaving = f"r{rng.randrange(14)}" if rng.random() < 0.02 else ""
        for each in (runs, steps):
            each.scheduler.abort(leaving)
            each.step()
        if rng.random() < 0.1:
            assert runs.state() == steps.state()
        assert runs.scheduler.stats() == steps.scheduler.stats()
        number += 1
        assert number < 2000, "no progress"
    assert runs.num_moved > number // 4 and steps.num_moved == 0
    assert runs.arrays == steps.arrays and runs.ends == steps.ends


def decoding(ahead: Ahead, count: int, new: int) -> list[Request]:
    """Requests that all decode, with prompts that end at different places of a page."""
    found = [Request(f"r{n}", [n] * (n + 2), new) for n in range(count)]
    for request in found:
        ahead.scheduler.add(request)
    for _ in range(3):
        ahead.step()
    return found


def test_a_step_of_a_run_looks_at_no_request_within_its_page() -> None:
    ahead = Ahead(LIMITS, may_repeat=True, seed=0)
    found = decoding(ahead, 3, 40)
    before = [(r.num_tokens, r.num_computed, len(r.latest)) for r in found]
    for _ in range(2):
        ahead.step()
    after = [(r.num_tokens, r.num_computed, len(r.latest)) for r in found]
    assert (
        sum(a == b for a, b in zip(before, after, strict=True)) == 2
    )  # the third has filled a page
    assert ahead.scheduler.stats().slots_filled == sum(s["counts"][1] for s in ahead.state())
    assert all(request.num_tokens > was[0] for request, was in zip(found, before, strict=True))


def test_a_run_ends_so_that_its_tokens_are_not_kept_for_ever() -> None:
    ahead = Ahead(Limits(page_size=512, num_pages=9, max_running=2), may_repeat=True, seed=0)
    (request,) = decoding(ahead, 1, MAX_STEPS + 100)
    for _ in range(MAX_STEPS + 1):
        ahead.step()
    assert request.num_tokens >= MAX_STEPS and ahead.num_moved >= MAX_STEPS - 2


@pytest.mark.parametrize(("running", "waits"), [(3, False), (8, True)])
def test_who_waits_breaks_a_run_only_where_it_can_start(running: int, waits: bool) -> None:
    ahead = Ahead(LIMITS, may_repeat=True, seed=0)
    decoding(ahead, running, 40)
    ahead.scheduler.add(Request("late", [1, 2, 3], 5))
    moved = ahead.num_moved
    ahead.step()
    assert (ahead.num_moved > moved) is waits
    assert ("late" in ahead.scheduler.waiting) is waits


def test_a_plan_whose_run_has_ended_counts_from_where_it_is() -> None:
    """Somebody leaves between planning a step and its being in flight."""
    ahead = Ahead(LIMITS, may_repeat=True, seed=0)
    first, second = decoding(ahead, 2, 40)
    ahead.step()
    plan = ahead.scheduler.schedule()
    assert plan.moved and ahead._flight is not None
    ahead.scheduler.abort(first.id)
    assert not ahead.scheduler.lands_all(ahead._flight, [3, 4])
    ahead.scheduler.land(ahead._flight, [3, 4])
    ahead.scheduler.advance(plan)
    ahead.scheduler.check()
    assert second.tokens.tolist()[-2:] == [4, -2]
    assert not plan.moved and plan.chunks[1].end == second.num_computed


def test_a_step_that_failed_is_planned_and_filled_again() -> None:
    ahead = Ahead(LIMITS, may_repeat=True, seed=0)
    decoding(ahead, 3, 40)
    for _ in range(6):
        plan = ahead.scheduler.schedule()
        copies = {n: a.copy() for n, a in vars(ahead._buffers.fill(plan)).items()}
        again = vars(ahead._buffers.fill(ahead.scheduler.schedule()))
        assert all(np.array_equal(again[name], array) for name, array in copies.items())
        ahead.step()
        assert ahead.arrays[-1] == {n: a.tolist() for n, a in copies.items() if n not in PAGED}


def test_records_of_overlapping_steps_add_up_to_the_time_that_passed(fake: SimpleNamespace) -> None:
    """Each instant belongs to one record, so that host and device time are counted once."""

    class Device(fake.HashDevice):  # type: ignore[misc, name-defined]
        can_run_ahead = True

        def __init__(self, *args: int) -> None:
            super().__init__(*args)
            self.queued: list[int] = []

        def submit(self, batch: Any, rows: Any) -> None:
            self.queued.append(len(rows))

        def collect(self) -> np.ndarray:
            return np.full(self.queued.pop(0), 5, np.int32)

    ticks = iter(range(10**6))
    device = Device(LIMITS.num_pages, SIZE, LIMITS.max_step_tokens, 50)
    engine = Engine(Executor(device, LIMITS), LIMITS, clock=lambda: float(next(ticks)))
    records: list[Any] = []
    engine.on_step = records.append
    for number in range(4):
        engine.add_request(f"r{number}", [1, 2, 3], SamplingParams(max_tokens=20))
    began = float(next(ticks))
    while engine.has_work:
        engine.step()
    for before, after in itertools.pairwise(records):
        assert before.started + before.seconds <= after.started
        assert after.device_seconds < after.seconds
    assert sum(record.seconds for record in records) <= float(next(ticks)) - began
    steady = records[5:-2]
    assert len({(r.seconds, r.device_seconds) for r in steady}) == 1
    contexts = [record.load.decode_context for record in steady]
    assert {b - a for a, b in itertools.pairwise(contexts)} == {4}
