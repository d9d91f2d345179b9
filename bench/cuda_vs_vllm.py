"""Our artifacts against vLLM on one GPU: same prompts, same figures, alternating cell by cell.

usage: python bench/cuda_vs_vllm.py --sglk llama8b.sglk [--vllm MODEL_DIR] [--rounds 3]
       [--cell decode --cell "first token"] [--json FILE]

Each runtime is a process of its own and stays loaded; every round asks each of them for each cell
in turn. Without ``--vllm`` only ours runs. vLLM on a machine without a network: `bench/README.md`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from sglk.bench.cuda_cells import Cell, all_cells

WORKER = Path(__file__).with_name("cuda_worker.py")


class Worker:
    """A runtime in its own process."""

    def __init__(self, name: str, python: str, arguments: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, str(WORKER), name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.start = self._read()

    def measure(self, cell: Cell) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{cell.name}\n")
        self._process.stdin.flush()
        return float(self._read()["value"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@@"):
                record: dict[str, Any] = json.loads(line[2:])
                return record
        raise SystemExit(f"{self.name}: its process ended (see its messages above)")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def better(cell: Cell, ours: float, theirs: float) -> float:
    """How many times as good ours is."""
    return theirs / ours if cell.unit == "ms" else ours / theirs


def table_lines(cells: list[Cell], found: dict[tuple[str, str], list[float]]) -> list[str]:
    """A line for each cell: the median of each runtime, all rounds of ours, the ratio."""
    names = list(dict.fromkeys(name for name, _ in found))
    lines = [f"{'':28}" + "".join(f"{name:>12}" for name in names) + f"{'ratio':>8}  ours, all"]
    for cell in cells:
        rounds = {name: found[name, cell.name] for name in names if (name, cell.name) in found}
        if "sglk" not in rounds:
            continue
        medians = {name: statistics.median(values) for name, values in rounds.items()}
        text = "".join(f"{medians.get(name, float('nan')):12.4g}" for name in names)
        ratio = better(cell, medians["sglk"], medians["vllm"]) if "vllm" in medians else 0
        shown = f"{ratio:8.2f}" if ratio else " " * 8
        each = " ".join(f"{value:.4g}" for value in rounds["sglk"])
        lines.append(f"{cell.name:28}{text}{shown}  {each}  {cell.unit}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sglk", metavar="ARTIFACT", required=True)
    parser.add_argument("--vllm", metavar="MODEL_DIR")
    parser.add_argument("--python-vllm", default=sys.executable, help="its interpreter")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cell", action="append", default=[], help="only cells that begin so")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cells = [c for c in all_cells() if not options.cell or c.name.startswith(tuple(options.cell))]
    share = "0.4" if options.vllm else "0.8"
    common = ["--device", options.device, "--memory-share", share]
    workers = [Worker("sglk", sys.executable, [options.sglk, *common])]
    if options.vllm:
        workers.append(Worker("vllm", options.python_vllm, [options.vllm, *common]))
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for worker in workers:
        print(f"{worker.name}: first token {worker.start['first_token_s']:.2f} s after the start")
        if worker.start["forbidden"]:
            raise SystemExit(f"{worker.name}: loaded {worker.start['forbidden']}")
    for number in range(options.rounds + 1):  # the first warms up
        for cell in cells:
            for worker in workers:
                value = worker.measure(cell)
                if number:
                    found[worker.name, cell.name].append(value)
    for worker in workers:
        worker.close()
    print("\n".join(table_lines(cells, found)))
    if options.json:
        record = [{"runtime": n, "cell": c, "values": v} for (n, c), v in found.items()]
        options.json.write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
