"""Seconds from the start of a process to its first token, and its peak memory: ours, llama.cpp."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sglk.bench import peers
from sglk.bench.contest import Contender, Result, environment

PROMPT = "The capital of France is"
LLAMA = {"llama.cpp", "llama.cpp-plain"}


def llama_completion() -> str | None:
    """``llama-completion``, or the older ``llama-cli``, beside the benchmark binary."""
    bench = peers.llama_binary()
    places = [Path(bench).parent / n for n in ("llama-completion", "llama-cli")] if bench else []
    return next((str(place) for place in places if place.is_file()), None)


def command_of(contender: Contender, threads: int) -> list[str] | None:
    """The command that prints one token; None for a peer that has no such command."""
    if contender.is_ours:
        ours = [contender.python, "-m", "sglk", "run", contender.model, PROMPT, "--raw"]
        return [*ours, "--max-tokens=1", f"--threads={threads}"]
    binary = llama_completion() if contender.peer in LLAMA else None
    if binary is None:
        return None
    options = ["-no-cnv", "--no-warmup", "--no-display-prompt", "-n", "1", "-c", "512"]
    return [binary, "-m", contender.model, "-p", PROMPT, "-t", str(threads), *options]


def first_output(command: list[str], environment: Mapping[str, str]) -> Result:
    """Runs a command to its end; when its first byte of output came, and its peak memory."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert process.stdout is not None
    with process.stdout:
        is_there = bool(process.stdout.read(1))
        seconds = time.perf_counter() - start
        process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not is_there:
        return {"fault": f"{command[0]}: ended with {process.returncode}, or printed nothing"}
    return {"seconds": seconds, "peak_rss_bytes": usage.ru_maxrss * 1024}


def measure_first_tokens(
    contenders: list[Contender], threads: int, rounds: int
) -> dict[str, Result]:
    """Medians of alternating rounds; files are in the page cache after the first, left out."""
    commands = {c.name: command_of(c, threads) for c in contenders}
    runs: dict[str, list[Result]] = {name: [] for name, command in commands.items() if command}
    binary = llama_completion()
    libraries = f"{Path(binary).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}" if binary else ""
    settings = {**environment(threads), "LD_LIBRARY_PATH": libraries}
    for turn in range(rounds + 1):
        for name, results in runs.items():
            print(f"  {turn}/{rounds} {name}, first token", file=sys.stderr, flush=True)
            command = commands[name]
            assert command is not None
            results.append(first_output(command, settings))
    return {name: _median(results[1:]) for name, results in runs.items()}


def _median(results: list[Result]) -> Result:
    faults = [r["fault"] for r in results if "fault" in r]
    if faults:
        return {"fault": faults[0]}
    keys = ("seconds", "peak_rss_bytes")
    return {key: statistics.median(r[key] for r in results) for key in keys}


def first_token_lines(firsts: dict[str, Result]) -> list[str]:
    lines = ["", "from the start of the process to the first token"] if firsts else []
    for name, row in firsts.items():
        if "fault" in row:
            lines.append(f"  {name}: {row['fault']}")
        else:
            lines.append(
                f"  {name:<24}{row['seconds']:>8.3f} s{row['peak_rss_bytes'] / 1e6:>8.0f} MB peak"
            )
    return lines
