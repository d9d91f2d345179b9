"""What is asked of artifacts on an H200: a must and a goal by model and cell of `cuda_cells.py`.

vLLM's figures (0.24.0, CUDA graphs, dummy weights, on the same machine) are the bar where the cell
says a ratio.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sglk.bench.cuda_cells import WARM, Cell, all_cells

START = "process start to first token"


class Demand(NamedTuple):
    """In the unit of its cell; of milliseconds, microseconds and seconds less is better."""

    must: float
    goal: float


def decoding(*demands: tuple[int, float, float]) -> dict[str, Demand]:
    """By the number of requests side by side."""
    return {f"decode {n} x 128": Demand(must, goal) for n, must, goal in demands}


def first_token(*demands: tuple[int, float, float]) -> dict[str, Demand]:
    """By the length of the prompt."""
    return {f"first token after {n}": Demand(must, goal) for n, must, goal in demands}


def shared(theirs: float) -> dict[str, Demand]:
    """As many tokens/s as vLLM, and 1.15 times as many."""
    return {"shared prefix, cache on": Demand(theirs, 1.15 * theirs)}


HOST = {"host time of a step of 64": Demand(150, 150)}
DEMANDS: Mapping[str, Mapping[str, Demand]] = {
    "llama-8b": {
        **decoding((1, 240, 270), (8, 1950, 2200), (64, 11500, 14000), (256, 25000, 29000)),
        **first_token((512, 12.5, 11), (2048, 48, 43), (8192, 225, 200)),
        **shared(132_226),
        **HOST,
        START: Demand(6, 6),
    },
    "llama-8b-fp8": {**decoding((1, 380, 460), (64, 16000, 20000)), **HOST},
    "qwen3-0.6b": {
        **decoding((1, 1250, 2200), (64, 35000, 60000)),
        **first_token((512, 4, 2)),
        **shared(299_703),
        **HOST,
        START: Demand(2, 2),
    },
    "qwen3-30b-a3b": {**decoding((1, 350, 500), (64, 3900, 4400)), **HOST},
}


def cells_of(model: str) -> list[Cell]:
    """Those with a demand, in the order of the table, and what the same takes on a warm chip."""
    return [cell for cell in all_cells() if cell.name.removeprefix(WARM) in DEMANDS[model]]


def verdicts(model: str, found: Mapping[str, Sequence[float]]) -> tuple[list[str], bool]:
    """A line for each demand that was measured, by its median; and whether every must holds."""
    units = {cell.name: cell.unit for cell in all_cells()} | {START: "s"}
    lines, kept = [f"{model:34}{'median':>10}{'must':>10}{'goal':>10}"], True
    for name, demand in DEMANDS[model].items():
        if name not in found:
            continue
        value, unit = statistics.median(found[name]), units[name]
        holds = value >= demand.must if unit == "tokens/s" else value <= demand.must
        reached = value >= demand.goal if unit == "tokens/s" else value <= demand.goal
        kept = kept and holds
        word = "goal" if reached else "holds" if holds else "MISSED"
        lines.append(
            f"{name:34}{value:10.4g}{demand.must:10.4g}{demand.goal:10.4g}  {word} ({unit})"
        )
    return lines, kept
