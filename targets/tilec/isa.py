"""The machines a kernel library is built for, and which of them this one can run."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import platform
from pathlib import Path

from ...errors import LoweringError


@dataclasses.dataclass(frozen=True)
class Isa:
    """`gcc` are the flags of g++ and clang++, `zig` those of ``zig c++``."""

    name: str
    machine: str
    gcc: tuple[str, ...]
    zig: tuple[str, ...]
    cpu_flags: frozenset[str]
    """What ``/proc/cpuinfo`` must list."""


_V3 = frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"))
_V4 = _V3 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
_BF16 = _V4 | {"avx512_bf16", "avx512_vnni"}
_TILES = frozenset(("amx_tile", "amx_bf16", "amx_int8"))
_AMX = _BF16 | _TILES
_ZIG_ARM = ("-target", "aarch64-linux-gnu")
_WIDE = "-mprefer-vector-width=512"
_AMX_FLAGS = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")

ISAS = {
    isa.name: isa
    for isa in (
        Isa("generic", "", (), (), frozenset()),
        Isa("aarch64", "aarch64", ("-march=armv8-a",), _ZIG_ARM, frozenset()),
        Isa("x86_64_v3", "x86_64", ("-march=x86-64-v3",), ("-mcpu=x86_64_v3",), _V3),
        Isa("x86_64_v4", "x86_64", ("-march=x86-64-v4", _WIDE), ("-mcpu=x86_64_v4", _WIDE), _V4),
        Isa(
            "x86_64_v4_bf16",
            "x86_64",
            ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", _WIDE),
            ("-mcpu=x86_64_v4+avx512bf16+avx512vnni", _WIDE),
            _BF16,
        ),
        Isa(
            "x86_64_v4_amx",
            "x86_64",
            ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", *_AMX_FLAGS, _WIDE),
            ("-mcpu=x86_64_v4+avx512bf16+avx512vnni+amx_tile+amx_bf16+amx_int8", _WIDE),
            _AMX,
        ),
    )
}


def isa_named(name: str) -> Isa:
    if name not in ISAS:
        raise LoweringError(f"tilec: expected an ISA among {', '.join(ISAS)}, got {name!r}")
    return ISAS[name]


def cpu_flags() -> frozenset[str]:
    """Feature flags of the first core; empty where ``/proc/cpuinfo`` names none.

    Without those of tile registers where Linux does not lend them: using one ends the process.
    """
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return frozenset()
    for line in info.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            flags = frozenset(line.split(":", 1)[1].split())
            return flags if not flags & _TILES or _lends_tiles() else flags - _TILES
    return frozenset()


@functools.cache
def _lends_tiles() -> bool:
    """``arch_prctl(ARCH_REQ_XCOMP_PERM, tile data)``; run-time code asks in cpu/device/isa.py."""
    return bool(ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0)


def isa_supported(name: str) -> bool:
    """Whether this machine runs code built for the ISA."""
    isa = isa_named(name)
    return isa.machine in ("", platform.machine()) and isa.cpu_flags <= cpu_flags()


def native_isa() -> Isa:
    """The best ISA this machine runs."""
    order = ("x86_64_v4_amx", "x86_64_v4_bf16", "x86_64_v4", "x86_64_v3", "aarch64", "generic")
    return next(ISAS[name] for name in order if isa_supported(name))
