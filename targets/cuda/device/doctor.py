"""Is this machine ready to run artifacts on an NVIDIA GPU?"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...machine import Check, Finding, Machine, Wanted
from .arch import best_of

LIBRARY = "libcuda.so.1"
LEAST_CUDA = (12, 0)
"""Version of CUDA that the driver must support: tensor maps and clusters are from 12.0."""
FIELDS = (
    "index", "name", "driver_version", "compute_cap", "memory.total", "memory.free",
    "mig.mode.current", "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip


class Gpu(NamedTuple):
    """A line of nvidia-smi; sizes in MiB."""

    number: int
    name: str
    driver: str
    capability: tuple[int, int]
    total: int
    free: int
    mig: str
    errors: str


def gpus(machine: Machine) -> list[Gpu]:
    """All GPUs that nvidia-smi lists; lines that it cannot read are left out."""
    query = f"--query-gpu={','.join(FIELDS)}"
    text = machine.output("nvidia-smi", query, "--format=csv,noheader,nounits") or ""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        numbers = [parts[i] for i in (0, 4, 5)] if len(parts) == len(FIELDS) else ["?"]
        if all(n.isdecimal() for n in numbers) and re.fullmatch(r"\d+\.\d+", parts[3]):
            major, minor = map(int, parts[3].split("."))
            index, total, free = map(int, numbers)
            found.append(Gpu(index, parts[1], parts[2], (major, minor), total, free, *parts[6:]))
    return found


def visible(machine: Machine) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves; names that are no numbers count as all."""
    found = gpus(machine)
    chosen = machine.variable("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    numbers = [part.strip() for part in chosen.split(",") if part.strip()]
    if not all(n.isdecimal() for n in numbers):
        return found
    by_index = {str(gpu.number): gpu for gpu in found}
    return [by_index[n] for n in numbers if n in by_index]


def nodes(machine: Machine, wanted: Wanted) -> Finding:
    found = machine.names("/dev/nvidia[0-9]*")
    if not found:
        return Finding(
            "fail",
            "no NVIDIA GPU: expected /dev/nvidia0 and up, got none",
            "load the kernel driver (modprobe nvidia), or start the container with --gpus all",
        )
    refused = [path for path in (*found, "/dev/nvidiactl") if not machine.may_use(path)]
    if refused:
        return Finding(
            "fail", f"no permission for {', '.join(refused)}", "join the group that owns it"
        )
    return Finding("ok", ", ".join(found))


def library(machine: Machine, wanted: Wanted) -> Finding:
    found = machine.numbers(LIBRARY, "cuDriverGetVersion", 1)
    if found is None:
        return Finding(
            "fail", f"cannot load {LIBRARY}", "install the driver, or mount it into the container"
        )
    if not found:
        return Finding("fail", f"{LIBRARY}: cuDriverGetVersion failed", "reinstall the driver")
    version = (found[0] // 1000, found[0] % 1000 // 10)
    evidence = f"{LIBRARY} supports CUDA {version[0]}.{version[1]}"
    if version < LEAST_CUDA:
        return Finding("fail", f"{evidence}, 12.0 is needed", "install a driver of 525 or newer")
    return Finding("ok", evidence)


def tool(machine: Machine, wanted: Wanted) -> Finding:
    found = gpus(machine)
    if not found:
        return Finding(
            "warn",
            "nvidia-smi gives no GPU: memory, MIG and errors are not checked",
            "install nvidia-utils, or mount nvidia-smi into the container",
        )
    lines = {f"{g.name}, driver {g.driver}" for g in found}
    return Finding("ok", f"{len(found)} x {'; '.join(sorted(lines))}")


def selection(machine: Machine, wanted: Wanted) -> Finding | None:
    chosen = machine.variable("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return None
    numbers = [part.strip() for part in chosen.split(",") if part.strip()]
    if not numbers or numbers[0] == "-1":
        return Finding(
            "fail", f"CUDA_VISIBLE_DEVICES={chosen!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        )
    count = len(machine.names("/dev/nvidia[0-9]*"))
    wrong = [n for n in numbers if n.isdecimal() and int(n) >= count]
    if wrong:
        return Finding(
            "fail",
            f"CUDA_VISIBLE_DEVICES={chosen} names {', '.join(wrong)} of {count} GPUs",
            f"use 0 to {count - 1}",
        )
    return Finding("ok", f"CUDA_VISIBLE_DEVICES={chosen}")


def capability(machine: Machine, wanted: Wanted) -> Finding | None:
    found = visible(machine)
    if not found:
        return None
    have = ", ".join(sorted({f"{a}.{b}" for a, b in (g.capability for g in found)}))
    if not wanted.isas:
        return Finding("ok", f"compute capability {have}")
    evidence = f"compute capability {have}; the artifact has {', '.join(wanted.isas)}"
    chip = found[0].capability
    if best_of(wanted.isas, chip) is None:
        return Finding("fail", evidence, f"compile it with --target cuda:sm{chip[0]}{chip[1]}")
    return Finding("ok", evidence)


def partitions(machine: Machine, wanted: Wanted) -> Finding | None:
    on = [gpu for gpu in visible(machine) if gpu.mig == "Enabled"]
    if not on:
        return None
    return Finding(
        "warn",
        f"MIG is on for GPU {on[0].number}: a process sees one slice of its memory and cores",
        "name the slice: CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L lists them)",
    )


def memory(machine: Machine, wanted: Wanted) -> Finding | None:
    found = visible(machine)
    if not found:
        return None
    gpu = found[0]
    evidence = f"GPU {gpu.number}: {gpu.free} of {gpu.total} MiB are free"
    if wanted.weight_bytes > gpu.free << 20:
        need = f"{wanted.weight_bytes / 2**20:.0f} MiB of weights"
        return Finding("fail", f"{evidence}, {need}", "end other processes, or take a larger GPU")
    if gpu.free < gpu.total // 2:
        return Finding("warn", evidence, "nvidia-smi lists the processes that use the rest")
    return Finding("ok", evidence)


def errors(machine: Machine, wanted: Wanted) -> Finding | None:
    bad = [gpu for gpu in visible(machine) if gpu.errors.isdecimal() and int(gpu.errors)]
    if not bad:
        return None
    return Finding(
        "fail",
        f"GPU {bad[0].number}: {bad[0].errors} uncorrected memory errors",
        "reset the GPU or reboot; if they come back, replace it",
    )


def bindings(machine: Machine, wanted: Wanted) -> Finding:
    found = machine.package("cuda-bindings")
    if found is None:
        return Finding(
            "fail", "the Python package cuda-bindings is missing", "pip install 'sglk[cuda]'"
        )
    return Finding("ok", f"cuda-bindings {found}")


CHECKS = (
    Check("device nodes", nodes),
    Check("driver library", library, needs="device nodes"),
    Check("nvidia-smi", tool, needs="device nodes"),
    Check("visible devices", selection, needs="device nodes"),
    Check("compute capability", capability, needs="visible devices"),
    Check("MIG", partitions, needs="visible devices"),
    Check("memory", memory, needs="visible devices"),
    Check("memory errors", errors, needs="visible devices"),
    Check("bindings", bindings),
)
