"""Cells and demands of the GPU bench: what is counted, and when a demand is missed."""

from __future__ import annotations

import random
import time

import pytest
from sglk.bench import cuda_cells
from sglk.bench.cuda_cells import EACH, GROUPS, WARM, Prompts, Served, all_cells
from sglk.bench.cuda_cells import DecodeStep as Step
from sglk.bench.cuda_demands import DEMANDS, START, cells_of, verdicts
from sglk.bench.cuda_products import Product, table

CELLS = {cell.name: cell for cell in all_cells()}


def serve(prompts: Prompts, new: int, reuse: bool) -> Served:
    """A millisecond for each prompt and each step; the host takes 100 µs more when all decode."""
    steps = [Step(len(prompts), 1e-4)] * 3 + [Step(1, 9.0)]
    return Served(1e-3 * (len(prompts) + new), tuple(steps))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("first token after 512", 2.0),
        ("decode 8 x 128", 8 * 127 / 0.127),
        ("host time of a step of 64", 100.0),
        ("prefill 16 x 2048", 16 * 2048 / 0.017),
        ("shared prefix, cache on", 256 * 1216 / 0.320),
    ],
)
def test_cells_count_what_they_say(
    name: str, wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_cells, "REST_S", 0.0)
    assert CELLS[name].measure(serve, random.Random(1), 1000) == pytest.approx(wanted)


def test_prefixes_are_shared_within_groups_only() -> None:
    seen: Prompts = []

    def remember(prompts: Prompts, new: int, reuse: bool) -> Served:
        seen.extend(prompts)
        return Served(1.0)

    CELLS["shared prefix, cache on"].measure(remember, random.Random(1), 50_000)
    assert len({tuple(prompt[:1024]) for prompt in seen}) == GROUPS
    assert len({tuple(prompt) for prompt in seen}) == GROUPS * EACH


def test_every_demand_is_a_cell_or_the_start() -> None:
    for model, demands in DEMANDS.items():
        names = {cell.name for cell in cells_of(model)}
        assert {name for name in names if not name.startswith(WARM)} == set(demands) - {START}


def test_first_tokens_are_measured_on_a_rested_and_on_a_warm_chip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    now = 0.0

    def remember(prompts: Prompts, new: int, reuse: bool) -> Served:
        nonlocal now
        now += 0.4
        done.append(str(len(prompts[0])))
        return Served(0.4)

    monkeypatch.setattr(time, "sleep", lambda seconds: done.append(f"rest {seconds}"))
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    CELLS["first token after 512"].measure(remember, random.Random(1), 50_000)
    assert done == ["rest 2.0", *["512"] * 6]
    done.clear()
    CELLS[f"{WARM}first token after 512"].measure(remember, random.Random(1), 50_000)
    assert done == [*["8192"] * 3, *["512"] * 6]


def test_a_must_is_missed_by_the_median() -> None:
    found = {"decode 1 x 128": [1240.0, 1260.0, 9000.0], "first token after 512": [3.0, 3.9, 8.0]}
    lines, kept = verdicts("qwen3-0.6b", found)
    assert kept and len(lines) == 3
    found[START] = [2.1]
    lines, kept = verdicts("qwen3-0.6b", found)
    assert not kept and "MISSED" in lines[-1]
    assert "goal" in verdicts("qwen3-0.6b", {START: [0.5]})[0][-1].split("  ")[-1]


def test_products_are_compared_in_pairs() -> None:
    product, gated = Product(64, 32, 0), Product(96, 32, 1)
    rounds = [
        {product: (2.0, 2.0), gated: (1.0, 1.0)},
        {product: (4.0, 2.0), gated: (1.05, 1.0)},
        {product: (6.0, 4.0), gated: (5.0, 5.0)},
    ]
    lines, kept = table(rounds, 256, 1.1)
    assert lines[1].split() == ["64", "32", "4.00", "2.00", "1.500"] and not kept
    assert lines[2].split() == ["2x96", "32", "1.05", "1.00", "1.000"]
    assert table([{gated: each[gated]} for each in rounds], 256, 1.1)[1]
