"""``sglk tune model.sglk -o times.json``: which kernels are fastest on this chip.

The artifact must have been compiled with ``--candidates``; ``sglk-compile --tuning times.json``
reads the result. Like every command that runs something it needs the slim runtime alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import DeviceError
from ..targets.artifact import Artifact
from ..targets.device import Tunes
from ..targets.registry import open_device
from .sizes import parse_number

PARTS = ("linear", "normed")
SIZES = ("n", "k", "gated", "m")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure the ways to compute each product that an artifact holds.",
        epilog="Needs an artifact of `sglk-compile --candidates`; `sglk-compile --tuning FILE` "
        "chooses by what this writes.",
    )
    parser.add_argument("artifact", help="an .sglk file or folder")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="tuning.json", help="file to write (tuning.json)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="device to measure on (default: the artifact's target)"
    )
    parser.add_argument(
        "--rows", metavar="N,...", help="only products of so many rows (default: of all there are)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no table")
    return parser


def run(options: argparse.Namespace) -> int:
    from .progress import ProgressBars

    with Artifact.open(options.artifact) as artifact:
        target: Any = artifact.manifest["target"]
        device = open_device(options.device or str(target["name"]))
        if not isinstance(device, Tunes):
            raise DeviceError(
                f"{device.name}: expected a device whose kernels are chosen by measured times, as"
                " those of cuda are (nothing is tuned here)"
            )
        texts = options.rows.split(",") if options.rows else ()
        rows = [parse_number("--rows", text) for text in texts]
        with ProgressBars() as bars:
            content, refused = device.tune(artifact, _silent if options.quiet else bars, rows)
    Path(options.output).write_text(as_text(content), encoding="utf-8")
    records: Any = content["linear"]
    if not options.quiet:
        print("\n".join(table_lines(records)))
    print(f"{options.output}: {len(records)} times, {refused} ways refused")
    return 0


def as_text(content: Mapping[str, Any]) -> str:
    """JSON with a record a line: two files are easily compared."""
    head = {name: value for name, value in content.items() if name not in PARTS}
    parts = [json.dumps(head)[1:-1]] + [
        f'"{name}": [' + ",".join(f"\n{json.dumps(each)}" for each in content[name]) + "]"
        for name in PARTS
    ]
    return "{" + ", ".join(parts) + "}\n"


def table_lines(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fastest way of each product, and by how much it beats the next."""
    lines = ["form            n       k   rows         us   next  kernel"]
    for _, group in groupby(records, key=lambda r: (r.get("form"), *(r[s] for s in SIZES))):
        best, *others = group
        n = f"2x{best['n']}" if best["gated"] else str(best["n"])
        ahead = f"{others[0]['us'] / max(best['us'], 1e-3):.2f}x" if others else "-"
        lines.append(
            f"{best.get('form', 'bf16'):8}{n:>9}{best['k']:8d}{best['m']:7d}{best['us']:11.2f}"
            f"{ahead:>7}  {best['kernel']}"
        )
    return lines


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
