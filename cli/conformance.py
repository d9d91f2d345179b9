"""``sglk conformance TARGET``: what any chip must pass, ours and a third party's."""

from __future__ import annotations

import argparse
import json
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SglkError

if TYPE_CHECKING:
    from ..targets.conformance.chip import Chip
    from ..targets.conformance.outcome import Outcome

SECTIONS = {
    "facts": "the target's data and its operator table agree",
    "ops": "every row of the table against NumPy: types, shapes, strides, sizes",
    "steps": "decoders: page boundaries, chunks, buckets, batches, cached prefixes",
    "device": "memory, threads and lifetimes",
    "errors": "what is wrong is refused in a sentence",
    "engine": "the same answers with and without batches, chunks and prefix cache",
}
MARKS = {"ok": "ok  ", "failed": "FAIL", "absent": "-"}


def make_parser() -> argparse.ArgumentParser:
    lines = "".join(f"  {name:8} {what}\n" for name, what in SECTIONS.items())
    parser = argparse.ArgumentParser(
        description="Check that a target does what the compiler and the runtime rely on.",
        epilog=f"sections:\n{lines}\nExit status 1: something failed.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", help="chip, with arches after a colon: cpu, cuda:sm90")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="device to run on (default: the target's, emulated if it can)",
    )
    parser.add_argument(
        "--section", metavar="NAME", action="append", help="check this one only; may be repeated"
    )
    parser.add_argument(
        "--op", metavar="NAME", action="append", help="in ops, check this one only; may be repeated"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one case for each row, fewer decoders"
    )
    parser.add_argument("--threads", metavar="N", type=int, help="worker threads of a CPU")
    parser.add_argument("--json", action="store_true", help="print JSON, one object in all")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is right as well")
    return parser


def run(options: argparse.Namespace) -> int:
    for name in options.section or ():
        if name not in SECTIONS:
            raise SglkError(f"--section: expected one of {', '.join(SECTIONS)}, got {name!r}")
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="sglk-") as folder:
        chip = _open(options, Path(folder))
        for section in options.section or SECTIONS:
            outcomes = list(_run(section, chip, options))
            found += outcomes
            if not options.json:
                print("\n".join(section_lines(section, outcomes, options.verbose)), flush=True)
    if options.json:
        print(json.dumps(as_record(options.target, found), indent=1))
    else:
        print(last_line(options.target, found))
    return 1 if any(outcome.status == "failed" for outcome in found) else 0


def _open(options: argparse.Namespace, folder: Path) -> Chip:
    from ..targets.backend import HasEmulator, open_backend
    from ..targets.conformance.chip import Chip, KitChoices
    from ..targets.registry import open_device

    name, colon, arches = options.target.partition(":")
    backend = open_backend(name)
    choices = KitChoices(tuple(arches.split(",")) if colon else (), backend.activations)
    backend.check(choices)
    if reason := backend.why_not_here(choices):
        raise SglkError(f"{options.target}: cannot run on this machine: {reason}")
    stand_in = backend.emulator if isinstance(backend, HasEmulator) else name
    return Chip(backend, open_device(options.device or stand_in), folder, choices, options.threads)


def _run(section: str, chip: Chip, options: argparse.Namespace) -> Iterator[Outcome]:
    if section == "engine":
        from ..targets.conformance.outcome import guarded
        from .conformance_engine import check_engine

        return guarded(section, check_engine(chip))
    from ..targets.conformance.kit import run_section

    _check_ops(options.op or ())
    return run_section(section, chip, options.quick, options.op or ())


def _check_ops(names: Sequence[str]) -> None:
    from ..targets.conformance.cases import all_cases

    known = all_cases()
    for name in names:
        if name not in known:
            raise SglkError(f"--op: expected one of {', '.join(sorted(known))}, got {name!r}")


def section_lines(section: str, outcomes: Sequence[Outcome], verbose: bool) -> list[str]:
    """A table of one section: its count, then what is worth a look."""
    counts = Counter(outcome.status for outcome in outcomes)
    parts = [f"{counts['ok']} ok"]
    parts += [f"{counts['failed']} failed"] if counts["failed"] else []
    parts += [f"{counts['absent']} not offered"] if counts["absent"] else []
    lines = [f"{section}: {', '.join(parts)}"]
    for outcome in outcomes:
        if outcome.status == "failed" or (verbose and outcome.status == "ok"):
            lines.append(f"  {MARKS[outcome.status]} {outcome.name}")
            lines += [f"       {outcome.reason}"] if outcome.reason else []
    return [*lines, *_absent_lines(outcomes)]


def _absent_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """What is not offered, together with all else that has the same reason."""
    names: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.status == "absent":
            names.setdefault(outcome.reason, []).append(outcome.name)
    lines = []
    for reason, each in names.items():
        text = f"not offered, {reason}: {', '.join(each)}"
        lines += textwrap.wrap(text, 100, initial_indent="  - ", subsequent_indent="    ")
    return lines


def as_record(target: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """What ``--json`` prints."""
    counts: Counter[str] = Counter(outcome.status for outcome in outcomes)
    return {
        "target": target,
        "passed": not counts["failed"],
        "counts": {status: counts[status] for status in MARKS},
        "outcomes": [vars(outcome) for outcome in outcomes],
    }


def last_line(target: str, outcomes: Sequence[Outcome]) -> str:
    failed = sum(outcome.status == "failed" for outcome in outcomes)
    if not failed:
        return f"{target}: conforms ({len(outcomes)} checks)"
    return f"{target}: does not conform: {failed} of {len(outcomes)} checks failed"
