"""Section ``ops``: every row of the operator table against the op's NumPy reference.

Cases are compiled many to a program, since a program costs a compile and a load; where one of them
is refused or crashes, they are compiled apart, so that the others are still judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SglkError, VerifyError
from ...ir.dtype import BF16, DType, round_bf16
from ...ir.graph import Graph, Node, Value
from ...ir.interpret import interpret
from ...ir.op import Array
from ...ir.rewrite import clone
from ...ir.target import Target
from ...passes.select_rows import HOST_OPS, HOST_ROW
from ..device import Executable
from ..table import OperatorRow
from .case import Case
from .cases import SIZES, all_cases
from .chip import Chip
from .compare import difference, tolerance_of
from .outcome import Outcome, crashed

SECTION = "ops"
BATCH = 60
"""Trials of one program."""
SYMBOL = "n"


@dataclass(frozen=True)
class Trial:
    """A case on one row; without a row, on whatever the chip chooses."""

    case: Case
    row: OperatorRow | None = None
    on_host: bool = False

    @property
    def name(self) -> str:
        by = self.row.name if self.row else HOST_ROW if self.on_host else ""
        return f"{self.case.name} by {by}" if by else self.case.name


def check_ops(chip: Chip, quick: bool = False, wanted: Sequence[str] = ()) -> Iterator[Outcome]:
    """Every case of every op (or of those named), on each row that takes it; ``quick``: one case a
    row."""
    trials: list[Trial] = []
    variants = [(variant, list[Trial]()) for variant in chip.variants()]
    seen: set[tuple[str, str]] = set()
    for op, cases in all_cases().items():
        if wanted and op not in wanted:
            continue
        try:
            taken = [trial for case in cases for trial in _trials(chip, case)]
        except VerifyError as error:
            yield Outcome(SECTION, op, "failed", f"the kit's own case does not fit: {error}")
            continue
        taken = taken or _on_host(chip, cases)
        if not taken:
            yield Outcome(SECTION, op, "absent", _why_absent(chip, op, cases))
        trials += _first_of_each_row(taken, seen) if quick else taken
        tried = {trial.row.name for trial in taken if trial.row}
        for variant, reserve in variants:
            spare = _in_reserve(variant, op, cases, tried)
            reserve += _first_of_each_row(spare, seen) if quick else spare
            tried |= {trial.row.name for trial in spare if trial.row}
    yield from _in_batches(chip, trials)
    for variant, reserve in variants:
        yield from _in_batches(variant, reserve)


def _in_batches(chip: Chip, trials: Sequence[Trial]) -> Iterator[Outcome]:
    for start in range(0, len(trials), BATCH):
        yield from _judge(chip, trials[start : start + BATCH])


def _in_reserve(
    variant: Chip, op: str, cases: Sequence[Case], tried: Collection[str]
) -> list[Trial]:
    """Cases on rows that were not tried yet and that a variant of the chip takes."""
    spare = {row.name for row in variant.table if row.op == op} - set(tried)
    trials = (trial for case in cases for trial in _trials(variant, case)) if spare else ()
    return [trial for trial in trials if trial.row and trial.row.name in spare]


def _on_host(chip: Chip, cases: Sequence[Case]) -> list[Trial]:
    """One case of an op without a row, where the host does such ops: operands and results get
    there and back."""
    has_host = HOST_OPS in chip.target.features and chip.table
    first = next((case for case in cases if not _refused(chip, case)), None) if has_host else None
    return [Trial(first, on_host=True)] if first else []


def _first_of_each_row(trials: Sequence[Trial], seen: set[tuple[str, str]]) -> list[Trial]:
    """One trial for each row, the widest in use: the last case of each."""
    last = {(t.case.op.name, t.row.name if t.row else ""): t for t in trials}
    fresh = [trial for key, trial in last.items() if key not in seen]
    seen.update(last)
    return fresh


def unreached_rows(chip: Chip) -> list[str]:
    """Rows that no case gets to, with the reason for the first case."""
    cases = all_cases()
    reached: set[tuple[str, str]] = set()
    for op, each in cases.items():
        taken = [trial for case in each for trial in _trials(chip, case)]
        for variant in chip.variants():
            tried = {trial.row.name for trial in taken if trial.row}
            taken += _in_reserve(variant, op, each, tried)
        reached |= {(op, trial.row.name) for trial in taken if trial.row}
    rows = [row for row in chip.table if cases.get(row.op) and (row.op, row.name) not in reached]
    return [f"{row.name} of {row.op}: {_refusal(chip, row, cases[row.op])}" for row in rows]


def _refusal(chip: Chip, row: OperatorRow, cases: Sequence[Case]) -> str:
    return row.accepts(_Program([Trial(cases[0])]).node(0), chip.target)


def _trials(chip: Chip, case: Case) -> list[Trial]:
    """Rows that take a case; none where the chip has no row for what stands around it."""
    node = _Program([Trial(case)]).node(0)
    rows: Sequence[OperatorRow | None] = chip.rows_for(node) if chip.table else [None]
    stands_alone = case.build is None and chip.table
    if rows and not stands_alone and _refused(chip, case):
        return []
    return [Trial(case, row) for row in rows]


def _refused(chip: Chip, case: Case) -> str:
    """Why a chip has no rows for a case, or ""."""
    try:
        chip.backend.lower(_Program([Trial(case)]).graph, chip.target)
    except SglkError as error:
        return str(error)
    return ""


def _why_absent(chip: Chip, op: str, cases: Sequence[Case]) -> str:
    if not cases:
        return ""
    if not chip.table:
        return _inside(_refused(chip, cases[0]))
    rows = [row for row in chip.table if row.op == op]
    reasons = [f"{row.name}: {_refusal(chip, row, cases)}" for row in rows]
    return "; ".join(reasons) or "the operator table has no row for it"


def _inside(sentence: str) -> str:
    """``chip: no implementation for 1 op(s): pow x1 (REASON)`` without what the report says."""
    return sentence.partition("x1 (")[2].removesuffix(")") or sentence


class _Program:
    """Trials side by side in one graph, each with operands of its own."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = trials
        self.graph = Graph("ops")
        self.leaves: list[list[Value]] = []
        self.results: list[tuple[Value, ...]] = []
        self.starts: list[int] = []
        for number, trial in enumerate(trials):
            self.leaves.append([self._leaf(number, i, trial.case) for i in self._indices(trial)])
            self.starts.append(len(self.graph.nodes))
            self.results.append(trial.case.add_to(self.graph, self.leaves[-1]))
        self.graph.outputs = [value for each in self.results for value in each]

    def _indices(self, trial: Trial) -> range:
        return range(len(trial.case.operands))

    def _leaf(self, number: int, index: int, case: Case) -> Value:
        home = self.graph.param if case.is_weight(index) else self.graph.input
        return home(f"x{number}.{index}", case.types[index])

    def node(self, number: int) -> Node:
        """The node of the op that a trial is about."""
        name = self.trials[number].case.op.name
        return next(n for n in self.graph.nodes[self.starts[number] :] if n.op.name == name)

    def tolerance(self, number: int, target: Target) -> float:
        """By the types of a case, or more where its row says so."""
        trial = self.trials[number]
        slack = trial.row.slack(self.node(number), target) if trial.row else 0.0
        return max(slack, tolerance_of(trial.case.types) if trial.case.types else 0.0)

    @property
    def forced(self) -> dict[Node, OperatorRow]:
        rows = enumerate(trial.row for trial in self.trials)
        return {self.node(number): row for number, row in rows if row is not None}

    def draw(self, rng: np.random.Generator, size: int, weights: bool) -> dict[str, Array]:
        """Arrays of the weights, or of the inputs for one size, by name."""
        return {
            value.name: trial.case.draw(i, rng, {SYMBOL: size})
            for trial, leaves in zip(self.trials, self.leaves, strict=True)
            for i, value in enumerate(leaves)
            if trial.case.is_weight(i) == weights
        }


def _judge(chip: Chip, trials: Sequence[Trial]) -> Iterator[Outcome]:
    """All trials in one program; if anything is raised, each in its own."""
    try:
        yield from [*_run(chip, trials)]
    except Exception as error:  # noqa: BLE001  (third-party code may raise anything)
        if len(trials) > 1:
            half = len(trials) // 2
            yield from _judge(chip, trials[:half])
            yield from _judge(chip, trials[half:])
        elif isinstance(error, SglkError):
            yield Outcome(SECTION, trials[0].name, "failed", str(error))
        else:
            yield crashed(SECTION, trials[0].name, error)


def _run(chip: Chip, trials: Sequence[Trial]) -> Iterator[Outcome]:
    program = _Program(trials)
    rng = np.random.default_rng(7)
    params = program.draw(rng, 1, weights=True)
    reasons: dict[int, str] = {}
    artifact = chip.compile(program.graph, params, forced=program.forced)
    with artifact, chip.loaded(artifact) as executable:
        for size in SIZES:
            inputs = program.draw(rng, size, weights=False)
            for number, reason in _differences(chip, program, executable, params, inputs, size):
                reasons.setdefault(number, f"n = {size}: {reason}")
    for number, trial in enumerate(trials):
        reason = reasons.get(number, "")
        yield Outcome(SECTION, trial.name, "failed" if reason else "ok", reason)


def _differences(
    chip: Chip,
    program: _Program,
    executable: Executable,
    params: Mapping[str, Array],
    inputs: Mapping[str, Array],
    size: int,
) -> Iterator[tuple[int, str]]:
    wanted = iter(interpret(clone(program.graph, {SYMBOL: size}), inputs, params))
    types = {value.name: value.type.dtype for value in program.graph.inputs}
    border = {name: at_border(array, types[name]) for name, array in inputs.items()}
    got = executable.run("forward", border)
    for number, results in enumerate(program.results):
        tolerance = program.tolerance(number, chip.target)
        for value in results:
            reference = np.asarray(next(wanted))
            array = from_border(got[value.name], value.type.dtype)
            if reason := difference(array, reference, tolerance):
                yield number, f"{value.type}: {reason}"


def at_border(array: Array, dtype: DType) -> NDArray[Any]:
    """As a device takes it: contiguous, bf16 as its raw 16 bits."""
    if dtype == BF16:
        bits = round_bf16(array).view(np.uint32) >> np.uint32(16)
        return np.asarray(bits, np.uint16, order="C")
    return np.asarray(array, order="C")


def from_border(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The values of what a device gave."""
    if dtype == BF16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array
