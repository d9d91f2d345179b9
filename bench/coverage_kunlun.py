"""Which causal language models of transformers have a row for every op on Kunlun; nothing compiles.

    python bench/coverage_kunlun.py [--only llama,gpt_oss] [--json FILE] [--limit SECONDS]

Every model type of `coverage_hf.py`, made tiny by the same rules, goes through the dry run
(`sglk-compile CONFIG --target kunlun --dry-run`). A type is ``supported`` (rows of Kunlun's own
for every op), ``fallbacks`` (some ops by the plain rows that all chips share, named), ``missing``
(ops without a row, named), ``refused`` (capture or a pass says why), or ``crash``. Numbers are not
compared here: emulated or not, no kernel runs.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from sglk.bench.tiny_config import causal_types, tiny_config
from sglk.cli.dry_run import lowering_report
from sglk.frontend import capture  # noqa: F401 - imported once, before the processes fork
from sglk.passes import pipeline  # noqa: F401
from transformers import AutoModelForCausalLM  # noqa: F401

KINDS = ("supported", "fallbacks", "missing", "refused", "crash", "unbuilt")
SHARED = "triton-"
"""What names of rows that all chips share begin with."""


def check(model_type: str) -> dict[str, Any]:
    """Status and reason of one type."""
    try:
        config = tiny_config(model_type)
    except Exception as error:  # noqa: BLE001 - transformers' own code, of any quality
        return {"status": "unbuilt", "reason": f"{type(error).__name__}: {error}"}
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        report = lowering_report(folder, "kunlun", compare=False)
    if report.get("error"):
        return {"status": "refused", "reason": report["error"]}
    missing = [
        f"{op['op']} ({'; '.join(over['reason'] for over in op['passed_over']) or 'no row'})"
        for op in report["missing"]
    ]
    if missing:
        return {"status": "missing", "reason": "; ".join(missing)}
    shared = sorted({op["row"] for op in report["ops"] if str(op["row"]).startswith(SHARED)})
    return {"status": "fallbacks" if shared else "supported", "reason": ", ".join(shared)}


def isolated(model_type: str, limit: float) -> dict[str, Any]:
    """`check` in a forked process: a crash or a hang is a row."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, model_type))
    process.start()
    sender.close()
    try:
        if receiver.poll(limit):
            row: dict[str, Any] = receiver.recv()
            return row
        return {"status": "crash", "reason": f"not done after {limit:g} s"}
    except EOFError:
        return {"status": "crash", "reason": "the process died"}
    finally:
        process.kill()
        process.join()


def _child(sender: Any, model_type: str) -> None:
    import logging
    import warnings

    import torch
    from sglk.errors import SglkError

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        row = check(model_type)
    except SglkError as error:
        row = {"status": "refused", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - a crash is a row
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        row = {"status": "crash", "reason": f"{type(error).__name__}: {error} at {where}"}
    sender.send(row)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", help="model types, comma-separated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows; kept ones stay")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each type")
    options = parser.parse_args()
    file: Path | None = options.json
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file and file.exists() else {}
    types = options.only.split(",") if options.only else causal_types()
    for model_type in types:
        if model_type in rows and not options.only:
            continue
        start = time.perf_counter()
        row = isolated(model_type, options.limit)
        rows[model_type] = row
        text = " ".join(row["reason"].split())[:160]
        seconds = time.perf_counter() - start
        print(f"{model_type:26} {row['status']:9} {seconds:6.1f} s  {text}", flush=True)
        if file:
            file.write_text(json.dumps(rows, indent=0, sort_keys=True))
    found = collections.Counter(rows[t]["status"] for t in types)
    print(", ".join(f"{found[kind]} {kind}" for kind in KINDS))
    return 1 if found["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
