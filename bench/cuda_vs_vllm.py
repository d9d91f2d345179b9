"""Our artifacts against vLLM on one GPU: same prompts, same figures, alternating cell by cell.

usage: python bench/cuda_vs_vllm.py --sglk llama8b.sglk [--vllm MODEL_DIR] [--rounds 3]
       [--cell decode --cell "first token"] [--demands llama-8b] [--json FILE]

Each runtime is a process of its own and stays loaded; every round asks each of them for each cell
in turn. Without ``--vllm`` only ours runs. vLLM on a machine without a network: `bench/README.md`.
``--demands`` asks for the cells that `cuda_demands.py` names for a model, starts the runtime as
often as there are rounds, and ends with status 1 if a must is missed.
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
from sglk.bench.cuda_demands import DEMANDS, START, cells_of, verdicts

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
    return ours / theirs if cell.unit == "tokens/s" else theirs / ours


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


def open_workers(options: argparse.Namespace) -> list[Worker]:
    """Each runtime with its first token done; ours first."""
    share = "0.4" if options.vllm else "0.8"
    common = ["--device", options.device, "--memory-share", share]
    workers = [Worker("sglk", sys.executable, [options.sglk, *common])]
    if options.vllm:
        workers.append(Worker("vllm", options.python_vllm, [options.vllm, *common]))
    for worker in workers:
        print(f"{worker.name}: first token {worker.start['first_token_s']:.2f} s after the start")
        if worker.start["forbidden"]:
            raise SystemExit(f"{worker.name}: loaded {worker.start['forbidden']}")
    return workers


def measure(
    workers: list[Worker], cells: list[Cell], rounds: int
) -> dict[tuple[str, str], list[float]]:
    """Values by runtime and cell; a round before these warms up."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for cell in cells:
            for worker in workers:
                if cell.needs_steps and worker.name != "sglk":
                    continue
                value = worker.measure(cell)
                if number:
                    found[worker.name, cell.name].append(value)
    return found


def start_again(options: argparse.Namespace, times: int) -> list[float]:
    """Seconds to the first token of new processes of ours, one after the other."""
    alone = argparse.Namespace(**{**vars(options), "vllm": None})
    seconds = []
    for _ in range(times):
        (worker,) = open_workers(alone)
        worker.close()
        seconds.append(float(worker.start["first_token_s"]))
    return seconds


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sglk", metavar="ARTIFACT", required=True)
    parser.add_argument("--vllm", metavar="MODEL_DIR")
    parser.add_argument("--python-vllm", default=sys.executable, help="its interpreter")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cell", action="append", default=[], help="only cells that begin so")
    parser.add_argument("--demands", choices=DEMANDS, help="the model's demands, on an H200")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    cells = cells_of(options.demands) if options.demands else list(all_cells())
    cells = [c for c in cells if not options.cell or c.name.startswith(tuple(options.cell))]
    workers = open_workers(options)
    found = measure(workers, cells, options.rounds)
    for worker in workers:
        worker.close()
    print("\n".join(table_lines(cells, found)))
    kept = True
    if options.demands:
        ours = {cell: values for (name, cell), values in found.items() if name == "sglk"}
        if START in DEMANDS[options.demands]:
            first = float(workers[0].start["first_token_s"])
            ours[START] = [first, *start_again(options, options.rounds - 1)]
        lines, kept = verdicts(options.demands, ours)
        print("\n".join(lines))
    if options.json:
        record = [{"runtime": n, "cell": c, "values": v} for (n, c), v in found.items()]
        options.json.write_text(json.dumps(record, indent=1))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
