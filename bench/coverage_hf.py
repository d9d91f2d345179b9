"""Which causal language models of transformers compile, and give transformers' logits.

    python bench/coverage_hf.py                        # cheap tier: passes and the interpreter
    python bench/coverage_hf.py --full                 # kernels for this CPU too
    python bench/coverage_hf.py --only gpt_oss,mixtral --force
    python bench/coverage_hf.py --retry refused,wrong,crash

Every model type of the installed transformers is made tiny and random by rule (`tiny_config`) and
compared with transformers in fp32 on prompts of 1, 17 and 130 tokens, in chunks, resumed and in
mixed batches. Each runs in a process of its own with a time limit, so that a crash or a hang is one
row. Rows are kept in a JSON file; a later run does what has no row yet, what ``--retry`` names, and
with ``--force`` everything.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglk.bench.coverage_case import Row, check
from sglk.bench.forked import Crash, run_forked
from sglk.bench.tiny_config import causal_types
from sglk.frontend import capture  # noqa: F401 - imported once, before the processes fork
from sglk.passes import pipeline  # noqa: F401
from transformers import AutoModelForCausalLM  # noqa: F401

KINDS = ("pass", "wrong", "crash", "refused", "unbuilt", "excluded")


def main() -> int:
    options = _options()
    cache = Path(options.cache or f"coverage-{'full' if options.full else 'cheap'}.json")
    rows: dict[str, dict[str, Any]] = json.loads(cache.read_text()) if cache.exists() else {}
    types = options.only.split(",") if options.only else causal_types()
    retry = set(options.retry.split(",")) if options.retry else set()
    wanted = [t for t in types if options.force or t not in rows or rows[t]["status"] in retry]
    for number, model_type in enumerate(wanted, 1):
        start = time.perf_counter()
        row = isolated(model_type, options.full, options.limit)
        rows[model_type] = {**asdict(row), "seconds": round(time.perf_counter() - start, 1)}
        cache.write_text(json.dumps(rows, indent=0, sort_keys=True))
        print(f"{number}/{len(wanted)} {_line(rows[model_type])}", flush=True)
    print(table([rows[t] for t in types if t in rows]))
    if options.markdown:
        tier = "--full" if options.full else ""
        Path(options.markdown).write_text(markdown([rows[t] for t in sorted(rows)], tier))
    return 0 if all(rows[t]["status"] not in ("wrong", "crash") for t in types) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Coverage of Hugging Face causal LMs.")
    parser.add_argument("--full", action="store_true", help="compile kernels")
    parser.add_argument("--only", help="model types, comma-separated")
    parser.add_argument("--retry", help="statuses to run again, comma-separated")
    parser.add_argument("--force", action="store_true", help="run what has a row too")
    parser.add_argument("--cache", help="JSON file of rows")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each type")
    parser.add_argument("--markdown", help="write the summary there")
    return parser.parse_args()


def isolated(model_type: str, full: bool, limit: float) -> Row:
    """`check` in a forked process: torch and transformers are imported once."""
    row = run_forked(check, model_type, full, limit=limit)
    return Row(model_type, "crash", row.reason) if isinstance(row, Crash) else row


# The table ----------------------------------------------------------------------------------


def _line(row: dict[str, Any]) -> str:
    detail = f"{row['error']:.1e}" if row["status"] == "pass" else _short(row["reason"])
    return f"{row['model_type']:26} {row['status']:9} {row['seconds']:6.1f} s  {detail}"


def _short(reason: str) -> str:
    return " ".join(reason.split())[:200]


def for_people(reason: str) -> str:
    """In a cell of a table: without the names of the model and of folders, which the row has."""
    text = re.sub(r"^(/\S+|[\w-]+): ", "", " ".join(reason.split())).replace("|", "/")
    captured = re.compile(r"expected a model that can be captured .* fake tensors: (.*)")
    if found := captured.fullmatch(text):
        text = found[1]
    return text if len(text) <= 300 else f"{text[:297]}..."


def reason_class(reason: str) -> str:
    """Reasons that differ in names and numbers only are one class."""
    text = re.sub(r"%\S+|\d+|'[^']*'|\w+\.py:\S*", "_", " ".join(reason.split()))
    return re.sub(r"^[\w-]+: ", "", text)[:90]


def counts(rows: list[dict[str, Any]]) -> str:
    found = collections.Counter(row["status"] for row in rows)
    included = sum(n for kind, n in found.items() if kind != "excluded")
    parts = [f"{found[kind]} {kind}" for kind in KINDS]
    return f"{', '.join(parts)}; {included} generate text left to right"


def table(rows: list[dict[str, Any]]) -> str:
    bad = [r for r in rows if r["status"] not in ("pass", "excluded")]
    classes = collections.Counter((r["status"], reason_class(r["reason"])) for r in bad)
    lines = [f"{n:4} {status:8} {text}" for (status, text), n in classes.most_common()]
    return "\n".join([counts(rows), *lines])


def markdown(rows: list[dict[str, Any]], tier: str) -> str:
    """The summary for people: counts, and a line for each type."""
    words = ["python bench/coverage_hf.py", tier, "--markdown docs/coverage-hf.md"]
    command = " ".join(word for word in words if word)
    head = ["# Hugging Face causal LMs", "", f"Made by `{command}`.", "", counts(rows) + ".", ""]
    body = ["| type | result | reason |", "|---|---|---|"]
    for row in rows:
        reason = "" if row["status"] == "pass" else for_people(row["reason"])
        body.append(f"| {row['model_type']} | {row['status']} | {reason} |")
    return "\n".join([*head, *body, ""])


if __name__ == "__main__":
    sys.exit(main())
