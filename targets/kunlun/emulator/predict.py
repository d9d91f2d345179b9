"""What the emulator must count for launches, from the costs that a kernel's header carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast


def predict(meta: Mapping[str, object], runs: Sequence[int]) -> dict[str, int]:
    """Counts of launches whose blocks run this often in all, the outermost block first.

    The outermost block runs once per program; a loop's body runs as often as it iterates.

    >>> predict({"costs": [{"macs": 0, "lanes": 8}, {"macs": 64, "lanes": 1}]}, [2, 6])
    {'macs': 384, 'lanes': 22}
    """
    costs = cast("Sequence[Mapping[str, int]]", meta["costs"])
    if len(runs) != len(costs):
        raise ValueError(f"predict: expected {len(costs)} counts of runs, got {len(runs)}")
    totals: dict[str, int] = {}
    for cost, count in zip(costs, runs, strict=True):
        for name, value in cost.items():
            totals[name] = totals.get(name, 0) + count * value
    return totals
