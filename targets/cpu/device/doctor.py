"""Is this machine ready to run artifacts on its CPU, and to compile for it?"""

from __future__ import annotations

import re

from ...machine import Check, Finding, Machine, Wanted
from .isa import VARIANTS
from .isa import Machine as Processor

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
COMPILERS = ("c++", "g++", "clang++")
_AMX = frozenset({"amx_tile", "amx_bf16", "amx_int8"})


def _processor(machine: Machine) -> Processor:
    """As the device sees it: flags that every core has."""
    name = (machine.output("uname", "-m") or "").strip()
    lines = (machine.read("/proc/cpuinfo") or "").splitlines()
    per_core = [
        frozenset(line.partition(":")[2].split())
        for line in lines
        if line.partition(":")[0].strip() in ("flags", "Features")
    ]
    return Processor(name, frozenset.intersection(*per_core) if per_core else frozenset())


def instruction_set(machine: Machine, wanted: Wanted) -> Finding:
    processor = _processor(machine)
    if not processor.flags:
        return Finding("warn", "cannot read /proc/cpuinfo", "mount /proc")
    runs = {variant.name for variant in VARIANTS if processor.runs(variant)}
    evidence = f"{processor.name}, best instruction set {processor.best}"
    if wanted.isas and not runs & set(wanted.isas):
        return Finding(
            "fail",
            f"{evidence}; the artifact has {', '.join(wanted.isas)}",
            f"compile it with --target cpu:{processor.best}",
        )
    if processor.best == "generic":
        return Finding("warn", f"{evidence}: scalar code, slow", "use a CPU with AVX2 or NEON")
    return Finding("ok", evidence)


def tiles(machine: Machine, wanted: Wanted) -> Finding | None:
    if not _processor(machine).flags >= _AMX:
        return None
    if machine.system_call(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA):
        return Finding(
            "warn",
            "the CPU has AMX, Linux refuses its tile registers",
            "Linux 5.16 or newer; in a container or VM, allow arch_prctl and expose AMX",
        )
    return Finding("ok", "AMX, and Linux grants its tile registers")


def huge_pages(machine: Machine, wanted: Wanted) -> Finding | None:
    text = machine.read("/sys/kernel/mm/transparent_hugepage/enabled")
    if text is None:
        return None
    chosen = re.search(r"\[(\w+)\]", text)
    mode = chosen[1] if chosen else text.strip()
    if mode == "never":
        return Finding(
            "warn",
            "transparent huge pages are off: reading weights takes a few per cent longer",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return Finding("ok", f"transparent huge pages: {mode}")


def cores(machine: Machine, wanted: Wanted) -> Finding:
    """A quota below the cores would stop threads that spin while others compute."""
    count = machine.number_of_cores()
    quota, _, period = (machine.read("/sys/fs/cgroup/cpu.max") or "max").partition(" ")
    if quota == "max" or not period:
        return Finding("ok", f"{count} cores, no quota")
    allowed = int(quota) / int(period)
    evidence = f"{count} cores, a quota of {allowed:g}"
    if allowed < 1:
        return Finding("warn", evidence, "give the container at least one whole core")
    if allowed < count:
        return Finding("note", f"{evidence}: {int(allowed)} threads will be used")
    return Finding("ok", evidence)


def memory(machine: Machine, wanted: Wanted) -> Finding:
    text = machine.read("/proc/meminfo") or ""
    match = re.search(r"MemAvailable:\s+(\d+) kB", text)
    if match is None:
        return Finding("warn", "cannot read /proc/meminfo", "mount /proc")
    free = int(match[1]) << 10
    limit = (machine.read("/sys/fs/cgroup/memory.max") or "max").strip()
    free = min(free, int(limit)) if limit.isdecimal() else free
    evidence = f"{free / 2**30:.1f} GiB of memory"
    if free < wanted.weight_bytes:
        need = f"{wanted.weight_bytes / 2**30:.1f} GiB of weights"
        return Finding("fail", f"{evidence}, {need}", "free memory, or take a smaller model")
    return Finding("ok", evidence)


def governor(machine: Machine, wanted: Wanted) -> Finding | None:
    text = machine.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if text is None:
        return None
    if text.strip() == "powersave" and "intel_pstate" not in (
        machine.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver") or ""
    ):
        return Finding(
            "warn", "frequency governor powersave", "cpupower frequency-set -g performance"
        )
    return Finding("ok", f"frequency governor {text.strip()}")


def compiler(machine: Machine, wanted: Wanted) -> Finding:
    """Only compiling needs one."""
    names = [machine.variable("CXX") or "", *COMPILERS]
    for name in filter(None, names):
        if text := machine.output(name, "--version"):
            return Finding("ok", f"{name}: {text.splitlines()[0]}")
    if found := machine.package("ziglang"):
        return Finding("ok", f"ziglang {found}")
    return Finding(
        "warn",
        "no C++ compiler: artifacts run, none can be compiled",
        "install g++ or clang++, or pip install ziglang",
    )


CHECKS = (
    Check("instruction set", instruction_set),
    Check("AMX", tiles),
    Check("cores", cores),
    Check("memory", memory),
    Check("huge pages", huge_pages),
    Check("frequency", governor),
    Check("compiler", compiler),
)
