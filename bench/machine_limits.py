"""The best that this machine reaches: read bandwidth and arithmetic rates, measured once and kept.

    python -m sglk.bench.machine_limits [--threads N] [-o limits.json] [--again]

`machine_limits.cpp` is compiled with the compiler that builds kernels and run; its figures go into
the kernel cache's folder, by processor, threads and source. `sglk bench --profile --limits FILE`
and `cpu_vs_peers.py` hold their measurements against them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from sglk.cli.limits import Limits, read_limits
from sglk.errors import SglkError
from sglk.targets.tilec.build import KernelCache
from sglk.targets.tilec.compiler import find_compiler

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-w", "-pthread")


def processor_name() -> str:
    """The processor as the system names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    pairs = (line.partition(":") for line in lines)
    values = {key.strip(): value.strip() for key, _, value in pairs}
    words = [values.get(key, "") for key in ("model name", "cpu family", "model", "stepping")]
    return " ".join(filter(None, words)) or platform.processor() or platform.machine()


def get_limits(threads: int, again: bool = False) -> Limits:
    """What is kept for this machine, else (or ``again``) a new measurement."""
    cache = KernelCache()
    compiler = find_compiler()
    source = SOURCE.read_bytes()
    named = f"{processor_name()} {os.cpu_count()} {threads}".encode()
    kept = cache.path(hashlib.sha256(named + source).hexdigest()).with_suffix(".json")
    if kept.is_file() and not again:
        return read_limits(kept)
    text = " ".join((*compiler.command, compiler.version, *FLAGS, processor_name()))
    key = hashlib.sha256(text.encode() + source).hexdigest()
    program = cache.find(key) or cache.put(
        key, lambda path: compiler.run([*FLAGS, str(SOURCE), "-o", str(path)], "machine limits")
    )
    program.chmod(0o755)
    done = subprocess.run([program, str(threads)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SglkError(f"machine limits: the program ended with {done.returncode}: {done.stderr}")
    limits = Limits(processor_name(), threads, **json.loads(done.stdout))
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(asdict(limits)))
    return limits


def table_lines(limits: Limits) -> list[str]:
    """A table for people."""
    lines = [f"{limits.processor}, {limits.threads} threads"]
    for size, rate in limits.read_gb_per_s.items():
        lines.append(f"  read {size:>5} MiB {rate:10.1f} GB/s")
    for kind, rate in limits.tera_per_s.items():
        lines.append(f"  {kind:<14} {rate:10.3f} T/s")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("-o", "--output", type=Path, help="write the figures as JSON too")
    parser.add_argument("--again", action="store_true", help="measure even if figures are kept")
    options = parser.parse_args()
    limits = get_limits(options.threads, options.again)
    if options.output:
        options.output.write_text(json.dumps(asdict(limits)))
    print("\n".join(table_lines(limits)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
