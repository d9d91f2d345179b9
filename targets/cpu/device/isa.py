"""Which compiled variants of an artifact this machine can run; the best one first.

The names are those of targets/tilec; what each needs is read from /proc/cpuinfo, whose flags the
kernel leaves out when the operating system does not save the registers.
"""

from __future__ import annotations

import ctypes
import dataclasses
import platform
import struct
from collections.abc import Callable, Collection
from pathlib import Path

_V3 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_V4_BF16 = _V4 | {"avx512_bf16", "avx512_vnni"}
_AMX = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
_V4_AMX = _V4_BF16 | _AMX
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""Linux on x86-64: ARCH_REQ_XCOMP_PERM of ``arch_prctl`` for the tile registers."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """What an instruction set needs: a machine ("" for any) and processor flags."""

    name: str
    machine: str
    flags: frozenset[str]


VARIANTS = (
    Variant("x86_64_v4_amx", "x86_64", _V4_AMX),
    Variant("x86_64_v4_bf16", "x86_64", _V4_BF16),
    Variant("x86_64_v4", "x86_64", _V4),
    Variant("x86_64_v3", "x86_64", _V3),
    Variant("aarch64", "aarch64", frozenset()),
    Variant("generic", "", frozenset()),
)
"""From the fastest to the slowest."""
_ELF_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}


@dataclasses.dataclass(frozen=True)
class Machine:
    """The processor: what `uname -m` says, and its flags."""

    name: str
    flags: frozenset[str]

    def runs(self, variant: Variant) -> bool:
        """True when nothing that `variant` needs is missing."""
        return variant.machine in ("", self.name) and variant.flags <= self.flags

    @property
    def best(self) -> str:
        """The fastest instruction set."""
        return next(variant.name for variant in VARIANTS if self.runs(variant))


def may_use_tiles() -> bool:
    """Ask Linux for the tile registers: without its leave their first use ends the process."""
    system = ctypes.CDLL(None)
    return bool(system.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def this_machine(
    cpuinfo: Path = Path("/proc/cpuinfo"), may_use_tiles: Callable[[], bool] = may_use_tiles
) -> Machine:
    """The processor we run on; flags that not every core has, or we may not use, do not count."""
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    try:
        text = cpuinfo.read_text()
    except OSError:
        return Machine(name, frozenset())
    per_core = [
        frozenset(line.partition(":")[2].split())
        for line in text.splitlines()
        if line.partition(":")[0].strip() in ("flags", "Features")
    ]
    flags = frozenset.intersection(*per_core) if per_core else frozenset()
    if flags & _AMX and not may_use_tiles():
        flags -= _AMX
    return Machine(name, flags)


def choose(machine: Machine, names: Collection[str]) -> str | None:
    """The fastest of `names` that `machine` runs; None when it runs none."""
    return next((v.name for v in VARIANTS if v.name in names and machine.runs(v)), None)


def library_machine(library: bytes | memoryview) -> str:
    """The machine an ELF library was compiled for; "" when it is no whole 64-bit ELF library.

    The loader of the system trusts the sizes inside: a library cut short would kill the process.
    """
    if len(library) < _ELF.size or bytes(library[:6]) != _ELF_MAGIC:
        return ""
    _, _, number, _, _, table, _, _, _, entry_size, count, _, _, _ = _ELF.unpack_from(library)
    if entry_size != _SEGMENT.size or table + entry_size * count > len(library):
        return ""
    for index in range(count):
        _, _, offset, _, _, size, _, _ = _SEGMENT.unpack_from(library, table + index * entry_size)
        if offset + size > len(library):
            return ""
    return _ELF_MACHINES.get(number, f"ELF machine {number}")
