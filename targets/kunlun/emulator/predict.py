"""What the emulator must count for launches, from the costs that a kernel's header carries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from numpy.typing import NDArray

from ...artifact.kernel_pack import PackedKernel
from ...artifact.program import Arg, Call, Program
from ...dim_code import parse
from ...tilec.ir import Function
from ...tilec.parser import parse as parse_ttir
from .block_runs import Known, Place, block_runs

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
    program: Program,
    kernels: Mapping[str, PackedKernel],
    symbols: Mapping[str, int],
    texts: Mapping[str, str] | None = None,
    inputs: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, Counts | None]:
    """Counts by kernel of one step of these sizes, launches and programs among them.

    ``texts`` (TTIR by symbol) and ``inputs`` (the arrays of the step) are for kernels whose loops
    depend on data; without them the counts of such a kernel are None.
    """
    tokens = symbols.get("tokens", 0)
    bucket = next(b for b in program.buckets if b.tokens_max is None or tokens <= b.tokens_max)
    step = _Step(program, kernels, symbols, texts or {}, inputs or {})
    found: dict[str, Counts | None] = {}
    for call in bucket.calls:
        counts = step.counts(call)
        so_far = found.setdefault(call.kernel, {}) if counts else None
        if counts and so_far is not None:
            found[call.kernel] = {
                name: so_far.get(name, 0) + value for name, value in counts.items()
            }
        elif counts is None:
            found[call.kernel] = None
    return found


@dataclass(frozen=True)
class _Step:
    """What the calls of a step have in common."""

    program: Program
    kernels: Mapping[str, PackedKernel]
    symbols: Mapping[str, int]
    texts: Mapping[str, str]
    inputs: Mapping[str, NDArray[Any]]
    made: dict[object, Counts | None] = field(default_factory=dict)
    """Layers repeat their calls: a count for each kernel, grid and what decides its loops."""

    def counts(self, call: Call) -> Counts | None:
        """Counts of one call; {} where its grid is empty, None where data decides."""
        grid = cast("tuple[int, int, int]", tuple(map(self.size, call.grid)))
        if not math.prod(grid) or call.kernel not in self.kernels:
            return {}  # the host's and the vendor's calls are no kernels
        arguments = tuple(map(self.known, call.args))
        names = tuple(a.value for a in call.args if a.kind == "buffer" and a.value in self.inputs)
        numbers = tuple(a for a in arguments if not isinstance(a, Place))
        key = (call.kernel, grid, numbers, names)
        if key not in self.made:
            self.made[key] = self._counts(call.kernel, grid, arguments)
        return self.made[key]

    def _counts(
        self, kernel: str, grid: tuple[int, int, int], arguments: Sequence[Known]
    ) -> Counts | None:
        meta, programs = self.kernels[kernel].meta, math.prod(grid)
        counts = predict_programs(meta, programs)
        if counts is None and kernel in self.texts:
            counts = predict(meta, block_runs(parsed(self.texts[kernel]), grid, arguments))
        return None if counts is None else {**counts, "programs": programs, "launches": 1}

    def size(self, text: str) -> int:
        return parse(text, self.program.all_symbols).evaluate(self.symbols)

    def known(self, arg: Arg) -> Known:
        """What is known of an argument ahead of the run."""
        if arg.kind in ("i32", "i64"):
            return self.size(arg.value)
        array = self.inputs.get(arg.value) if arg.kind == "buffer" else None
        if array is None:
            return None
        return Place(array.reshape(-1), self.size(arg.offset) // array.itemsize)


@cache
def parsed(text: str) -> Function:
    return parse_ttir(text)
