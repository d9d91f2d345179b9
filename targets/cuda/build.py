"""Kernels -> one pack for each architecture, through Triton and ptxas; no GPU is needed.

Every kernel of every architecture is compiled once: results lie in a content-addressed cache, and
what is missing there is compiled by several processes at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import cast

from ...errors import LoweringError
from ..artifact.kernel_pack import PackedKernel, read_pack, write_pack
from ..assemble import Library
from ..kernel import Kernel
from ..tilec import KernelCache
from .facts import Chip

Progress = Callable[[str, int, int], None]
LAST_PORTABLE = 89
"""Up to this capability PTX runs on newer chips too; Triton's later PTX is for one chip alone."""


FLOATS = {"TRITON_DEFAULT_FP_FUSION": "1"}
"""Products and sums may contract to fma: Triton's default until 3.10, which wants it said."""


@dataclass(frozen=True)
class Job:
    """One kernel for one chip; ``key`` names its place in the cache."""

    kernel: Kernel
    capability: int
    key: str


def build_libraries(
    kernels: Sequence[Kernel],
    chips: Sequence[Chip],
    cache: KernelCache,
    progress: Progress,
    workers: int | None = None,
) -> list[Library]:
    """A pack of cubins for each chip, and one of PTX for chips newer than the newest of them."""
    identity = compiler_identity()
    jobs = {
        (kernel.symbol, chip.capability): _job(kernel, chip.capability, identity)
        for chip in chips
        for kernel in kernels
    }
    _compile_missing(list(jobs.values()), cache, progress, workers or os.cpu_count() or 1)
    made = {
        at: read_pack(cache.path(job.key).read_bytes(), f"kernel cache: {job.kernel.symbol}")
        for at, job in jobs.items()
    }
    libraries = [_library(chip.isa, "cubin", kernels, chip, made) for chip in chips]
    portable = [chip for chip in chips if chip.capability <= LAST_PORTABLE]
    if portable:
        newest = max(portable, key=lambda chip: chip.capability)
        libraries.append(_library(f"ptx_{newest.capability}", "ptx", kernels, newest, made))
    return libraries


def _library(
    isa: str,
    kind: str,
    kernels: Sequence[Kernel],
    chip: Chip,
    made: dict[tuple[str, int], dict[str, PackedKernel]],
) -> Library:
    packed = {k.symbol: made[k.symbol, chip.capability][kind] for k in kernels}
    return Library(isa, write_pack(packed), ".pack", {s: dict(p.meta) for s, p in packed.items()})


def compiler_identity() -> str:
    """What decides the code beside the kernel: the versions of Triton and of its assembler."""
    import triton
    from triton import knobs

    tool = knobs.nvidia.ptxas_blackwell
    return f"triton {triton.__version__} ptxas {tool.version} format 1"


def _job(kernel: Kernel, capability: int, identity: str) -> Job:
    """A kernel's text and that of all functions it calls are part of its ``cache_key``."""
    source = kernel.load().cache_key
    text = f"{identity} sm_{capability} {source} {kernel.key}"
    return Job(kernel, capability, f"{hashlib.sha256(text.encode()).hexdigest()}.cuda")


def _compile_missing(
    jobs: Sequence[Job], cache: KernelCache, progress: Progress, workers: int
) -> None:
    missing = list({job.key: job for job in jobs if cache.find(job.key) is None}.values())
    cache.hits += len(jobs) - len(missing)
    cache.misses += len(missing)
    progress("compiling kernels", 0, len(missing))
    if not missing:
        return
    count = min(workers, len(missing))
    with tempfile.TemporaryDirectory(prefix="sglk-") as scratch:
        processes: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        started = [_start_worker(Path(scratch)) for _ in range(count)]
        try:
            for process in started:
                processes.put(process)
            _run_jobs(missing, cache, progress, processes, count)
        finally:
            for process in started:
                process.kill()
                process.communicate()


def _run_jobs(
    missing: Sequence[Job],
    cache: KernelCache,
    progress: Progress,
    processes: SimpleQueue[subprocess.Popen[str]],
    count: int,
) -> None:
    errors: list[str] = []
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(_compile_one, job, cache, processes) for job in missing]
        for done, future in enumerate(as_completed(futures), start=1):
            if error := future.result():
                errors.append(error)
            progress("compiling kernels", done, len(missing))
    if errors:
        raise LoweringError(
            f"cuda: {len(errors)} of {len(missing)} kernels cannot be compiled: {errors[0]}"
        )


def _compile_one(
    job: Job, cache: KernelCache, processes: SimpleQueue[subprocess.Popen[str]]
) -> str:
    """Let a free process compile it into the cache; what went wrong, or ""."""
    process = processes.get()
    answer = {"error": ""}

    def make(path: Path) -> None:
        nonlocal answer
        answer = _ask(process, job, path)
        if answer["error"]:
            raise _NotMadeError

    try:
        cache.put(job.key, make)
    except _NotMadeError:
        return answer["error"]
    finally:
        processes.put(process)
    return ""


class _NotMadeError(Exception):
    """The kernel could not be compiled: nothing goes into the cache."""


def _ask(process: subprocess.Popen[str], job: Job, path: Path) -> dict[str, str]:
    kernel = job.kernel
    request = {
        "function": kernel.function,
        "signature": kernel.signature,
        "constants": kernel.constants,
        "options": kernel.options,
        "capability": job.capability,
        "path": str(path),
    }
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:
        line = ""
    if not line:
        return {"error": f"{kernel.function}: the compiling process ended (out of memory?)"}
    return cast("dict[str, str]", json.loads(line))


def _start_worker(scratch: Path) -> subprocess.Popen[str]:
    """Its Triton cache is ours to throw away: `KernelCache` keeps what is needed."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", f"{__package__}.triton_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(scratch / "triton"), **FLOATS},
    )
