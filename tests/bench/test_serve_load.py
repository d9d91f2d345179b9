"""The load generator and a short soak: what they count is what happened."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

import pytest
from sglk.bench import serve_hour, serve_load, serve_shared
from sglk.bench.edges import Edges
from sglk.bench.load_client import Result, Target, metrics, percentile, request
from sglk.bench.serve_soak import expected_text, soak
from sglk.bench.server_process import server


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with server(serve_load.null_server(32, 400), "null") as target:
        yield target


def test_a_short_soak_loses_doubles_and_leaves_nothing(target: Target) -> None:
    figures = asyncio.run(soak(target, 250, seed=1))
    assert figures["wrong"] == [] and figures["errors"] == 0
    assert figures["pages_held"] == figures["in_flight"] == 0 and figures["pages"] == 399
    assert figures["left"] > 20 and figures["completed"] > 100


def test_poisson_load_counts_tokens_and_shares_prefixes(target: Target) -> None:
    run = serve_load.poisson(
        target, rate=200.0, count=40, groups=2, shared=40, own=4, new=8, seed=0
    )
    figures = asyncio.run(run)
    assert figures["failed"] == 0 and figures["requests"] == 40
    assert figures["cached_tokens"] > 38 * 100
    assert 0 < figures["ttft_p50_s"] <= figures["ttft_p99_s"]


def test_tokens_that_are_not_those_expected_would_be_seen(target: Target) -> None:
    async def ask() -> Result:
        body = {"prompt": [1] * 9, "max_tokens": 30, "ignore_eos": True, "temperature": 0}
        return await request(target, {**body, "stream": True}, keeps_text=True)

    text = asyncio.run(ask()).text
    assert text == expected_text(9, 30) != expected_text(10, 30)


def test_a_cycle_of_long_load_counts_steps_and_fragmentation(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_hour, "LOOK_INTERVAL_S", 0.01)
    batches = [([[1] * 20, [2] * 30], 400), ([[3] * 100], 8)]
    window = asyncio.run(serve_hour._one_cycle(target, batches))
    assert window.steps_per_s > 0 and window.busy_ms > 0 and window.memory > 1
    assert all(0 <= each < 1 for each in window.fragmentation)


def test_a_look_counts_while_requests_run(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    found = iter([{"sglk_running": 0.0}, {"sglk_running": 2.0}])
    looks: list[dict[str, float]] = []

    async def metrics(target: Target) -> dict[str, float]:
        return next(found)

    async def look() -> None:
        with pytest.raises(RuntimeError):  # no third answer
            await serve_hour._look(target, looks)

    monkeypatch.setattr(serve_hour, "LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr(serve_hour, "metrics", metrics)
    asyncio.run(look())
    assert looks == [{"sglk_running": 2.0}]


def test_prompts_of_a_group_share_their_prefix_and_no_more() -> None:
    options = argparse.Namespace(groups=3, each=4, shared=8, own=2, seed=0)
    prompts = serve_shared.shared_prompts(options)
    assert len(prompts) == 12 and {len(prompt) for prompt in prompts} == {10}
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 3
    assert len({tuple(prompt) for prompt in prompts}) == 12


def test_metrics_are_read_by_their_full_names(target: Target) -> None:
    found = asyncio.run(metrics(target))
    assert found["sglk_ready"] == 1 and found['sglk_pages{state="held"}'] == 0


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([], 0.5) == 0.0


def window_of(steps_per_s: float) -> serve_hour._Window:
    names = ("sglk_steps_total", "sglk_generated_tokens_total", "sglk_busy_seconds_total")
    before = dict.fromkeys(names, 0.0)
    after = dict.fromkeys(names, steps_per_s)
    return serve_hour._Window(1.0, before, {**after, 'sglk_memory_bytes{kind="anonymous"}': 2**20})


@pytest.mark.parametrize(
    ("last", "old", "fresh", "ok"),
    [
        (98.0, 98.0, 100.0, True),
        (80.0, 79.0, 80.0, True),  # the machine has changed, the server has not
        (117.0, 98.0, 100.0, True),  # a window in which the machine was fast
        (80.0, 77.0, 80.0, False),
        (100.0, 96.0, 100.0, False),  # slower than it was, in a window that hid it
    ],
)
def test_an_hour_is_judged_beside_a_fresh_server(
    last: float, old: float, fresh: float, ok: bool
) -> None:
    windows = ([window_of(rate)] for rate in (100.0, last, old, fresh))
    assert serve_hour.compared(*windows)["ok"] is ok


def test_windows_are_announced_to_people_and_to_a_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Edges("echo told").window("last"):
        pass
    out, err = capfd.readouterr()
    assert out.split("\n")[:2] == ["told begin last", "told end last"]
    assert "window 'last': begin" in err and "window 'last': end" in err
