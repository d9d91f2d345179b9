"""Kernels and the library of the emulator, compiled through tilec's cache of objects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ....errors import LoweringError
from ...artifact.kernel_pack import PackedKernel
from ...tilec import (
    EmulatedKernel,
    KernelCache,
    MemoryModel,
    build,
    isa_named,
    isa_supported,
    native_isa,
    translate_emulated,
)
from ...tilec.build import Progress
from ...tilec.emulation import HEADERS
from ...tilec.lower import CppKernel

NATIVE = Path(__file__).parent / "native"
KINDS = {"f32": "f", "f64": "d", "i64": "l", "i32": "i", "i16": "i", "i8": "i", "i1": "i"}
"""Letters of a header's `kinds`: how a parameter lies in the parameter block; ``p``: pointer."""
MAX_BROKEN = 800
"""Characters; `check_use` of native/image.h has room for them."""
DEVICE_SETTINGS = {
    "clusters": "clusters",
    "cores": "cores",
    "engines": "engines",
    "lm_bytes": "lm_bytes",
    "sm_bytes": "sm_bytes",
    "uni_sram_bytes": "uni_sram_bytes",
    "param_bytes": "param_bytes",
    "pointer_align": "pointer_align",
}
"""Setting of the library -> number of the model."""


def host_isa() -> str:
    """The instruction set of emulated kernels: one that most machines run; bits are the same."""
    return "x86_64_v3" if isa_supported("x86_64_v3") else native_isa().name


def build_emulated(
    kernels: Mapping[str, str],
    model: MemoryModel,
    *,
    isa: str = "",
    cache: KernelCache | None = None,
    progress: Progress | None = None,
    strict: bool = True,
) -> dict[str, PackedKernel]:
    """TTIR by symbol -> packed kernels by symbol; all share one piece of code.

    A kernel that breaks a limit of the chip is refused; with ``strict=False`` it is built, and the
    emulator refuses to load it.
    """
    made = {symbol: translate_emulated(text, symbol, model) for symbol, text in kernels.items()}
    if strict:
        refuse_broken(made)
    if not made:
        return {}
    host = isa_named(isa or host_isa())
    code = build([kernel.cpp for kernel in made.values()], host, (), cache, progress)
    digest = f"{fnv1a(code):016x}"
    return {
        symbol: PackedKernel(_meta(symbol, kernel, model, host.name, digest), code)
        for symbol, kernel in made.items()
    }


def refuse_broken(kernels: Mapping[str, EmulatedKernel]) -> None:
    """One error that names every limit that any kernel breaks."""
    lines = [f"{symbol}: {text}" for symbol, k in kernels.items() for text in k.broken]
    if lines:
        more = f" and {len(lines) - 8} more" if len(lines) > 8 else ""
        raise LoweringError("\n".join(lines[:8]) + more)


def _meta(
    symbol: str, kernel: EmulatedKernel, model: MemoryModel, isa: str, digest: str
) -> dict[str, object]:
    use = kernel.use
    return {
        "kind": "emulated",
        "symbol": symbol,
        "engine": int(use.on_engine),
        "params": list(kernel.cpp.params),
        "kinds": "".join(map(_kind, kernel.cpp.params)),
        "param_bytes": use.params,
        "lm_bytes": use.lm,
        "sm_bytes": use.sm,
        "uni_sram_bytes": use.uni_sram,
        "alive": list(use.parts),
        "broken": _plain("; ".join(kernel.broken)),
        "costs": [dict(cost) for cost in kernel.costs],
        "trips": list(kernel.trips),
        "hazards": sorted(model.hazards),
        "isa": isa,
        "digest": digest,
    }


def _plain(text: str) -> str:
    """Text that the emulator's reader of headers takes as it is."""
    return text.replace('"', "'").replace("\\", "/")[:MAX_BROKEN]


def _kind(param: str) -> str:
    return "p" if param.startswith("!tt.ptr") else KINDS[param]


def fnv1a(data: bytes) -> int:
    """The emulator's digest of code: against accidents, not against attackers.

    >>> hex(fnv1a(b"a"))
    '0xaf63dc4c8601ec8c'
    """
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def build_emulator_library(model: MemoryModel, *, cache: KernelCache | None = None) -> bytes:
    """The shared library, with the numbers of a chip as its settings."""
    numbers = {name: getattr(model, field) for name, field in DEVICE_SETTINGS.items()}
    text = ",".join(
        f"{name}={float(value):.17g}" for name, value in (*numbers.items(), *model.rates)
    )
    shared = hashlib.sha256((HEADERS / "emulation.h").read_bytes()).hexdigest()
    sources = hashlib.sha256((NATIVE / "emulator.cpp").read_bytes()).hexdigest()
    source = (
        f"// {shared} {sources}\n"
        f'static const char XPU_DEFAULTS[] = "{text}";\n#include "emulator.cpp"\n'
    )
    unit = CppKernel("xpurt_emulator", source, (), NATIVE)
    return build([unit], isa_named("generic"), (), cache)
