"""Hits by token, flushes, audits: the prefix cache as requests and administrators see it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk.errors import SglkError
from sglk.runtime.admission import Limits
from sglk.runtime.audit import MAX_PENDING, CacheAudit
from sglk.runtime.engine import Engine
from sglk.runtime.request import Request, SamplingParams

MakeEngine = Callable[..., Engine]


def limits(**changes: Any) -> Limits:
    chosen: dict[str, Any] = {
        "page_size": 4,
        "num_pages": 65,
        "max_step_tokens": 64,
        "max_running": 4,
    }
    return Limits(**{**chosen, **changes})


def run(engine: Engine) -> list[int | None]:
    found = []
    while engine.has_work:
        found += [output.token_id for output in engine.step()]
    return found


@pytest.mark.parametrize(
    ("second", "cached", "matched"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 8, 8),  # only full pages are cached: 8 and 9 are not
        ([0, 1, 2, 3, 4, 5, 99, 99, 99], 4, 6),
        ([0, 1, 2, 3, 4, 5], 4, 6),
        ([0, 99, 2, 3, 4], 0, 1),
        ([98, 99], 0, 0),
        ([0, 1, 2, 3, 4, 5, 6, 7], 4, 8),  # the last token is always computed, and so its page
        ([0, 1, 2, 3], 0, 4),
    ],
)
def test_hits_are_counted_by_token_and_reused_by_page(
    fake: SimpleNamespace, second: list[int], cached: int, matched: int
) -> None:
    bench = fake.Bench(limits(), 120)
    bench.add("first", list(range(10)), 1)
    bench.run()
    again = bench.add("second", second, 2)
    bench.run()
    assert (again.num_cached, again.num_matched) == (cached, matched)
    stats = bench.scheduler.stats()
    assert (stats.cached_tokens, stats.matched_tokens) == (cached, matched)
    assert bench.answers["second"] == fake.expected_tokens(second, 2, 120)


pages = st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=4)


@settings(max_examples=100)
@given(
    known=st.lists(pages, min_size=1, max_size=6),
    wanted=st.lists(st.integers(0, 3), min_size=1, max_size=17),
)
def test_matched_tokens_are_those_of_the_closest_prompt(
    fake: SimpleNamespace, known: list[list[list[int]]], wanted: list[int]
) -> None:
    bench = fake.Bench(limits(), 11)
    prompts = [[token for page in each for token in page] for each in known]
    for number, tokens in enumerate(prompts):
        bench.add(f"r{number}", tokens, 1)
        bench.run()
    closest = max(
        next(
            (i for i, (a, b) in enumerate(zip(wanted, p, strict=False)) if a != b),
            min(len(wanted), len(p)),
        )
        for p in prompts
    )
    request = bench.add("wanted", wanted, 1)
    bench.run()
    assert request.num_matched == closest
    assert request.num_cached == min(closest, len(wanted) - 1) // 4 * 4


def test_a_flush_forgets_everything_at_once(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits())
    bench.add("done", list(range(20)), 1)
    bench.run()
    running = bench.add("running", list(range(40, 60)), 12)
    bench.step()
    tree = bench.scheduler.kv.tree
    assert bench.scheduler.kv.flush() == 5 and len(tree.pages()) == 5
    bench.check()
    same = bench.add("same", list(range(40, 60)), 3)
    gone = bench.add("gone", list(range(20)), 1)
    bench.run()
    assert (same.num_cached, gone.num_cached, running.num_cached) == (0, 0, 0)
    assert bench.answers["same"] == bench.answers["running"][:3]
    again = bench.add("again", list(range(40, 60)), 1)
    bench.run()
    assert again.num_cached == 16
    bench.scheduler.kv.flush()
    assert bench.scheduler.stats().pages_free == 64
    assert not tree._flushed and not tree._roots


def test_a_running_request_publishes_where_nobody_looks_after_a_flush(
    fake: SimpleNamespace,
) -> None:
    bench = fake.Bench(limits(num_pages=17))
    bench.add("running", list(range(8)), 30)
    bench.step()
    bench.scheduler.kv.flush()
    bench.run()
    assert bench.scheduler.stats().pages_cached == 9  # unreachable, but free for the taking
    filling = bench.add("filling", list(range(50, 90)), 20)
    bench.run()
    assert filling.num_cached == 0 and filling.num_preemptions == 0


def test_the_audit_computes_hits_again_and_agrees(make_engine: MakeEngine) -> None:
    engine = make_engine()
    audit = engine._audit = CacheAudit(0.5)
    for number in range(9):
        engine.add_request(f"r{number}", [*range(8), number], SamplingParams(max_tokens=2))
        assert len(run(engine)) == 2  # the copies give no output
    stats = engine.stats()
    assert (stats.num_audits, stats.num_audit_mismatches) == (4, 0)  # of 8 hits
    assert audit.largest_difference == 0
    assert (stats.prompt_tokens, stats.cached_tokens) == (81, 64)
    assert stats.pages_held == 0 and stats.finished == {"length": 9}


def test_the_audit_finds_a_corrupted_page(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()
    engine._audit = CacheAudit(1.0)
    device: Any = engine._executor.executable
    engine.add_request("first", list(range(9)), SamplingParams(max_tokens=1))
    run(engine)
    (page, *_) = engine.scheduler.kv.tree.pages()
    device.tokens[page.number * 4] += 1  # somebody wrote where nobody may
    engine.add_request("second", list(range(9)), SamplingParams(max_tokens=1))
    with caplog.at_level(logging.ERROR):
        run(engine)
    assert engine.stats().num_audit_mismatches == 1
    assert "prefix cache: request second: expected the logits that its 8 cached tokens gave" in (
        caplog.text
    )


def test_a_tolerance_is_relative_to_the_largest_logit() -> None:
    audit = CacheAudit(1.0, tolerance=0.01)
    request = Request("r", [1, 2], 1)
    row = np.array([100.0, -50.0], np.float32)
    assert audit.compare(audit.remember(request, row), row + np.float32(0.9))
    assert not audit.compare(audit.remember(request, row), row - np.float32(1.1))


def test_the_audit_keeps_few_rows() -> None:
    audit = CacheAudit(1.0)
    request = Request("r", [1, 2, 3], 1)
    request.num_cached = 2
    row = np.zeros(3, np.float32)
    copies = [audit.remember(request, row) for _ in range(10) if audit.wants(request)]
    assert len(copies) == MAX_PENDING
    audit.compare(copies[0], row)
    assert audit.wants(request)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
def test_an_audit_of_nothing_or_more_than_all_is_refused(fraction: float) -> None:
    with pytest.raises(SglkError, match=r"audit_cache: expected a fraction in \(0, 1\]"):
        CacheAudit(fraction)


def test_aborting_what_is_audited_leaves_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=1)
    engine._audit = CacheAudit(1.0)
    for name in ("a", "b"):
        engine.add_request(name, list(range(9)), SamplingParams(max_tokens=5))
    engine.step()
    while engine.scheduler.waiting or len(engine.scheduler.running) == 2:
        engine.step()
        engine.abort("b")
    run(engine)
    assert not engine.has_work and engine.stats().pages_held == 0
