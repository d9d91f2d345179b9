"""Which causal language models of transformers have a row for every op on Kunlun; nothing compiles.

    python bench/coverage_kunlun.py [--only llama,gpt_oss] [--markdown docs/coverage-kunlun.md]

Every model type of `coverage_hf.py`, made tiny by the same rules, goes through the dry run
(`sglk-compile CONFIG --target kunlun --dry-run`). A type is ``supported`` (a kernel of the chip for
every op), has ``fallbacks`` (ops that the host does, named), or is ``refused`` (capture, a pass, or
ops that neither can do: why). ``unbuilt``: the rules make no configuration that transformers takes.
Numbers are not compared here: emulated or not, no kernel runs. Ten minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sglk import knobs
from sglk.bench.coverage_hf import for_people
from sglk.bench.forked import Crash, run_forked
from sglk.bench.tiny_config import causal_types, tiny_config
from sglk.cli.dry_run import lowering_report
from sglk.errors import SglkError

KINDS = ("supported", "fallbacks", "refused", "unbuilt", "crash")
WARM = "llama"
"""The type that the parent reports first: its children have the imports and the tiles chosen."""


@dataclass(frozen=True)
class Row:
    """``reason``: the ops of the host, or why there is no program."""

    status: str
    reason: str = ""
    seconds: float = 0.0


def check(model_type: str, target: str = "kunlun") -> Row:
    """Status and reason of one type."""
    try:
        config = tiny_config(model_type)
    except Exception as error:  # noqa: BLE001 - transformers' own code, of any quality
        return Row("unbuilt", f"{type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory() as folder, knobs.override(verify=False):
        config.save_pretrained(folder)
        try:
            report = lowering_report(folder, target, compare=False)
        except SglkError as error:
            return Row("refused", str(error))
    if report.get("error"):
        return Row("refused", report["error"])
    if report["missing"]:
        return Row("refused", "; ".join(map(_missing, report["missing"])))
    host = ", ".join(f"{op['op']} x{op['count']}" for op in report["on_host"])
    return Row("fallbacks" if host else "supported", host)


def _missing(op: Mapping[str, object]) -> str:
    over = op["passed_over"]
    assert isinstance(over, list)
    reasons = "; ".join(str(each["reason"]) for each in over)
    return f"no row for {op['op']} x{op['count']} ({reasons or 'none in the table'})"


def timed(model_type: str, target: str, limit: float) -> Row:
    start = time.perf_counter()
    row = run_forked(check, model_type, target, limit=limit)
    if isinstance(row, Crash):
        row = Row("crash", row.reason)
    return Row(row.status, row.reason, round(time.perf_counter() - start, 1))


def counts(rows: Mapping[str, Row]) -> str:
    found = collections.Counter(row.status for row in rows.values())
    return ", ".join(f"{found[kind]} {kind}" for kind in KINDS)


def markdown(rows: Mapping[str, Row]) -> str:
    """The table for people."""
    lines = [
        "# Hugging Face causal LMs on Kunlun", "",
        "Made by `python bench/coverage_kunlun.py --markdown docs/coverage-kunlun.md`: a dry run",
        "of every type, tiny by rule, for kunlun:xpu3; no kernel ran. supported: a kernel of the",
        "chip for every op; fallbacks: ops that the host does.", "",
        f"{counts(rows)}; {len(rows)} types.", "",
        "| type | result | ops on the host, or the reason |", "|---|---|---|",
    ]  # fmt: skip
    for name, row in sorted(rows.items()):
        lines.append(f"| {name} | {row.status} | {for_people(row.reason)} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", help="model types, comma-separated")
    parser.add_argument("--target", default="kunlun", help="chip and arch (default: kunlun)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows; kept ones stay")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each type")
    options = parser.parse_args()
    file: Path | None = options.json
    kept = json.loads(file.read_text()) if file and file.exists() and not options.only else {}
    rows = {name: Row(**row) for name, row in kept.items()}
    types = options.only.split(",") if options.only else causal_types()
    check(WARM, options.target)
    for model_type in (t for t in types if t not in rows):
        row = rows[model_type] = timed(model_type, options.target, options.limit)
        text = " ".join(row.reason.split())[:160]
        print(f"{model_type:26} {row.status:9} {row.seconds:6.1f} s  {text}", flush=True)
        if file:
            named = {name: asdict(each) for name, each in rows.items()}
            file.write_text(json.dumps(named, indent=0, sort_keys=True))
    print(counts(rows))
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    return 1 if any(row.status == "crash" for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
