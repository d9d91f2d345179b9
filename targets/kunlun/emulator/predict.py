"""What the emulator must count for launches, from the costs that a kernel's header carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ...artifact.kernel_pack import PackedKernel
from ...artifact.program import Program
from ...dim_code import parse

Counts = dict[str, int]


def predict(meta: Mapping[str, object], runs: Sequence[int]) -> Counts:
    """Counts of launches whose blocks run this often in all, the outermost block first.

    The outermost block runs once per program; a loop's body runs as often as it iterates.

    >>> predict({"costs": [{"macs": 0, "lanes": 8}, {"macs": 64, "lanes": 1}]}, [2, 6])
    {'macs': 384, 'lanes': 22}
    """
    costs = cast("Sequence[Mapping[str, int]]", meta["costs"])
    if len(runs) != len(costs):
        raise ValueError(f"predict: expected {len(costs)} counts of runs, got {len(runs)}")
    totals: Counts = {}
    for cost, count in zip(costs, runs, strict=True):
        for name, value in cost.items():
            totals[name] = totals.get(name, 0) + count * value
    return totals


def predict_programs(meta: Mapping[str, object], programs: int) -> Counts | None:
    """Counts of so many programs; None for a kernel whose loops or branches depend on data."""
    trips = cast("Sequence[int | None]", meta["trips"])
    runs = [programs * trip for trip in trips if trip is not None]
    return predict(meta, runs) if len(runs) == len(trips) else None


def predict_step(
    program: Program, kernels: Mapping[str, PackedKernel], symbols: Mapping[str, int]
) -> dict[str, Counts | None]:
    """Counts by kernel of one step of these sizes, launches and programs among them."""
    tokens = symbols.get("tokens", 0)
    bucket = next(b for b in program.buckets if b.tokens_max is None or tokens <= b.tokens_max)
    launches: Counts = {}
    programs: Counts = {}
    for call in bucket.calls:
        x, y, z = (parse(text, program.all_symbols).evaluate(symbols) for text in call.grid)
        if x * y * z:
            launches[call.kernel] = launches.get(call.kernel, 0) + 1
            programs[call.kernel] = programs.get(call.kernel, 0) + x * y * z
    found: dict[str, Counts | None] = {}
    for name, count in programs.items():
        counts = predict_programs(kernels[name].meta, count)
        own = {"programs": count, "launches": launches[name]}
        found[name] = None if counts is None else {**counts, **own}
    return found
