"""Contenders and their measurements: a process each, in rounds that alternate."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from sglk.bench import peers
from sglk.targets.artifact import Artifact

OURS = "sglk"
FIGURES = (
    "prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s", "ttft_s", "itl_s",
    "peak_rss_bytes", "load_s",
)  # fmt: skip
SECONDS = ("ttft_s", "itl_s", "load_s")
Result = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """``concurrency`` requests of ``prompt`` tokens, ``shared`` of them the same in all."""

    prompt: int
    new: int
    concurrency: int
    shared: int = 0

    def __str__(self) -> str:
        shared = f", {self.shared} shared" if self.shared else ""
        return f"{self.concurrency} x {self.prompt} tokens{shared}, {self.new} new"


@dataclass(frozen=True)
class Contender:
    """``python`` is the interpreter, ``model`` what the peer is given, ``bits`` its weights'."""

    name: str
    model: str
    python: str
    bits: int | None = None

    @property
    def peer(self) -> str:
        return self.name.partition(":")[0]

    @property
    def is_ours(self) -> bool:
        return self.peer == OURS

    def command(self, scenario: Scenario, threads: int) -> list[str]:
        sizes = [*map(str, asdict(scenario).values()), str(threads)]
        return [self.python, peers.__file__, self.peer, self.model, *sizes]


def make_contender(name: str, model: str, python: str) -> Contender:
    """``name`` is PEER or PEER:LABEL; the bits come from label or file name: int4, q8_0, bf16."""
    label = name.partition(":")[2] or Path(model).name
    found = re.search(r"(?:^|[^a-z])(?:q|iq|int|bf|f|fp)(\d+)", label.lower())
    bits = int(found[1]) if found else None
    if bits is None and name.partition(":")[0] == OURS and Path(model).exists():
        bits = _bits_of_artifact(model)
    return Contender(name, model, python, bits)


def _bits_of_artifact(path: str) -> int | None:
    """Of the type that most of the weights' bytes have."""
    artifact = Artifact.open(path)
    totals: dict[str, int] = {}
    weights: Any = artifact.manifest["weights"]
    for weight in weights.values():
        values = weight["bytes"] if len(weight["shape"]) > 1 else 0
        totals[weight["dtype"]] = totals.get(weight["dtype"], 0) + values
    artifact.close()
    found = re.search(r"\d+", max(totals, key=totals.__getitem__, default=""))
    return int(found[0]) if found else None


def environment(threads: int) -> dict[str, str]:
    """No library takes more threads, and none asks a hub for what is on disk."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads)), "HF_HUB_OFFLINE": "1"}


def measure(contender: Contender, scenario: Scenario, threads: int) -> Result | str:
    """One measurement, with the process's peak memory; or why there is none."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        command = contender.command(scenario, threads)
        process = subprocess.Popen(
            command, stdout=output, stderr=complaints, env=environment(threads)
        )
        # The peak of the process and of those it waited for: llama.cpp is a grandchild.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        complaints.seek(0)
        lines = [line for line in output if line.startswith("{")]
        if process.returncode or not lines:
            return (complaints.read().strip().splitlines() or [f"status {status}"])[-1]
    record: Result = json.loads(lines[-1])
    return {**record, "peak_rss_bytes": usage.ru_maxrss * 1024}


class Residents:
    """Measures; peers that take a minute to load stay in a process each, until it is closed.

    Such a process has no peak memory of one scenario, so none is reported.
    """

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.communicate()  # the end of its input is the end of its work

    def measure(self, contender: Contender, scenario: Scenario, threads: int) -> Result | str:
        """One measurement, or why there is none."""
        if contender.peer not in peers.RESIDENT:
            return measure(contender, scenario, threads)
        if contender.name not in self._processes:
            self._processes[contender.name] = subprocess.Popen(
                [contender.python, peers.__file__, contender.peer, contender.model],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(threads),
                text=True,
            )
        process = self._processes[contender.name]
        assert process.stdin is not None and process.stdout is not None
        if process.poll() is None:
            process.stdin.write(json.dumps([*asdict(scenario).values(), threads]) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            if line.startswith("{"):
                record: Result = json.loads(line)
                return record
        return f"ended with {process.wait()}"


def compare(
    contenders: list[Contender],
    scenario: Scenario,
    threads: int,
    rounds: int,
    measure: Callable[[Contender, Scenario, int], Result | str] = measure,
) -> Result:
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
    return {"scenario": asdict(scenario), "medians": summary, "faults": faults, "runs": results}


def medians(results: list[Result]) -> Result:
    """Of each figure that was measured at all."""
    figures: Result = {}
    for name in FIGURES:
        values = [r[name] for r in results if r.get(name) is not None]
        figures[name] = statistics.median(values) if values else None
    return {**figures, "rounds": len(results)}
