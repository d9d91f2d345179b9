"""How much of ONNX compiles and is right: `python bench/coverage_onnx.py`.

The tests of the installed onnx: every node test, those of ops written out as functions ("expanded")
apart, and the model tests whose data come with the wheel. Each runs through `sglk.onnx_backend` and
is compared by onnx's own rule; with ``--compiled`` from an artifact for the CPU, without on the
reference interpreter of the same graph. A test is

- pass: the right numbers, with at least one input that was an input of the graph (tests that need
  more than onnx's tolerance, one rounding of the largest value, are listed);
- folded: the right numbers, but every input decides a shape and was compiled in;
- refused: a sentence says what is not supported, before any work;
- wrong: other numbers; error: anything else that is raised.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.runner import Runner
from sglk.bench.onnx_cases import SUITES, Case, cases
from sglk.errors import SglkError
from sglk.onnx_backend import SglkBackend

ROUNDING = 2.0**-23
"""Of float32, relative."""
VERDICTS = ("pass", "folded", "refused", "wrong", "error", "excepted")


@dataclass
class Row:
    """One test: what became of it, and why."""

    name: str
    suite: str
    op: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0


@dataclass
class Tally:
    """One suite."""

    verdicts: Counter[str] = field(default_factory=Counter)

    @property
    def counted(self) -> int:
        return self.verdicts.total() - self.verdicts["excepted"]


def check(case: Case, compiled: bool) -> Row:
    start = time.perf_counter()
    verdict, reason = _verdict(case, compiled)
    return Row(case.name, case.suite, case.op, verdict, reason, time.perf_counter() - start)


def _verdict(case: Case, compiled: bool) -> tuple[str, str]:
    if case.excepted:
        return "excepted", case.excepted
    try:
        prepared = SglkBackend.prepare(case.model, interpret=not compiled)
        folded, notes = False, ""
        for inputs, wanted in case.data_sets():
            found = prepared.run(inputs)
            folded = prepared.specialised >= set(prepared.input_names[: len(inputs)])
            notes = compare(case, list(found), wanted) or notes
    except SglkError as error:
        return "refused", str(error)
    except AssertionError as error:
        text = " ".join(str(error).split())
        return ("wrong" if text else "error"), text or "an assertion"
    except Exception as error:  # noqa: BLE001 - a crash is a line of the table, not the end of it
        return "error", f"{type(error).__name__}: {error}"
    return ("folded" if folded else "pass"), notes


def compare(case: Case, found: list[Any], wanted: list[Any]) -> str:
    """By onnx's rule. Where that fails, once more with one rounding of the largest wanted value:
    sums that cancel differ by as much in another order, and onnx's numbers have such zeros."""
    wanted, found = flat(wanted), flat(found)
    try:
        Runner.assert_similar_outputs(wanted, found, case.rtol, case.atol)
    except AssertionError:
        arrays = [x for x in wanted if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size]
        largest = max((float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in arrays), default=0)
        if largest * ROUNDING <= case.atol:
            raise
        Runner.assert_similar_outputs(wanted, found, case.rtol, largest * ROUNDING)
        return "within a rounding of its largest value"
    return ""


def flat(values: list[Any]) -> list[Any]:
    """Elements of sequences side by side: onnx's runner takes rows of arrays for outputs there."""
    return [x for v in values for x in (v if isinstance(v, list) else [v])]


def rows_of(options: argparse.Namespace, compiled: bool) -> Iterator[Row]:
    for case in cases(options.suite or SUITES):
        if not options.only or any(word in case.name for word in options.only):
            yield check(case, compiled)


def table(rows: list[Row]) -> list[str]:
    """A line per suite."""
    lines = [f"| suite | tests | {' | '.join(VERDICTS)} | pass of counted |", "|---" * 9 + "|"]
    for suite in dict.fromkeys(row.suite for row in rows):
        tally = Tally(Counter(row.verdict for row in rows if row.suite == suite))
        share = 100 * tally.verdicts["pass"] / max(tally.counted, 1)
        counts = " | ".join(str(tally.verdicts[v]) for v in VERDICTS)
        lines.append(f"| {suite} | {tally.verdicts.total()} | {counts} | {share:.1f} % |")
    return lines


def by_reason(rows: list[Row], verdict: str) -> list[str]:
    """Ops with their counts and the first reason, most frequent first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.verdict == verdict:
            found.setdefault(row.op, []).append(row)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [f"{op} x{len(of)}: {short(of[0].reason)}".removesuffix(": ") for op, of in ordered]


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) < 200 else f"{line[:197]}..."


def document(boards: dict[str, list[Row]]) -> str:
    """The text of docs/coverage-onnx.md: a table per tier, and the reasons of the first one."""
    parts = [
        "# ONNX backend tests",
        "",
        f"The tests of onnx {onnx.__version__}, made by `python bench/coverage_onnx.py --page "
        "docs/coverage-onnx.md`. What the columns mean is said in `bench/coverage_onnx.py`.",
    ]
    for tier, rows in boards.items():
        parts += ["", f"## {tier[:1].upper()}{tier[1:]}", "", *table(rows)]
    rows = next(iter(boards.values()))
    noted = [row for row in rows if row.verdict == "pass" and row.reason]
    parts += ["", f"Passed within a rounding of the largest value: {len(noted)}"]
    parts += [f"({', '.join(row.name for row in noted)})."] if noted else []
    for verdict in ("wrong", "error", "refused", "folded", "excepted"):
        lines = by_reason(rows, verdict)
        parts += ["", f"## {verdict}: {sum(r.verdict == verdict for r in rows)}", ""]
        parts += [f"- {line}" for line in lines] or ["none"]
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="tests whose names hold one of these")
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this one")
    parser.add_argument("--compiled", action="store_true", help="compile and run artifacts")
    parser.add_argument("--all", action="store_true", help="print every test, not only the rest")
    parser.add_argument("--json", type=Path, help="write every row")
    parser.add_argument("--page", type=Path, help="run both tiers and write their page")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    boards: dict[str, list[Row]] = {}
    for compiled in (True, False) if options.page else (options.compiled,):
        tier = "compiled for the CPU" if compiled else "on the reference interpreter"
        boards[tier] = run(options, compiled)
        if options.json:
            record = {name: [vars(row) for row in rows] for name, rows in boards.items()}
            options.json.write_text(json.dumps(record, indent=1))
    if options.page:
        options.page.write_text(document(boards))
    failed = [r for rows in boards.values() for r in rows if r.verdict in ("wrong", "error")]
    return 1 if failed else 0


def run(options: argparse.Namespace, compiled: bool) -> list[Row]:
    rows: list[Row] = []
    for row in rows_of(options, compiled):
        rows.append(row)
        if options.all or row.verdict in ("wrong", "error"):
            print(f"{row.name:60} {row.verdict:9} {short(row.reason)}", flush=True)
    print("\n".join(table(rows)))
    for verdict in ("wrong", "error", "refused", "folded"):
        for line in by_reason(rows, verdict):
            print(f"{verdict}: {line}", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
