"""Kernels -> one pack that the emulator runs, and everything the vendor's toolchain needs later.

Each kernel becomes TTIR and is held against the chip's limits before anything is built. The pack
holds emulated kernels; ``sglk finish`` replaces them by the vendor's where its toolchain is, from
the Triton sources and specialisations in ``kernels/<arch>.source.json``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

from ... import knobs
from ...errors import LoweringError
from ..artifact.kernel_pack import write_pack
from ..assemble import Library
from ..kernel import Kernel
from ..tilec import KernelCache
from ..tilec.footprint import Footprint
from ..ttir import kernel_ttir, write_texts
from .capabilities import Chip
from .emulator.build import build_emulated, build_emulator_library
from .emulator.settings import emulated_model
from .legalize import check_kernel, memory_use
from .player import build_player

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]
EMULATOR_MEMBER = "emulator/libxpurt_emulator.so"
PLAYER_MEMBER = "host/xpu_player.so"
SOURCE_FORMAT = 1
TRITON_VERSIONS = "3.0 to 3.6"
"""What the vendor's Triton is; kernels keep to what 3.0 compiles."""


def build_library(
    kernels: Mapping[str, Kernel], chip: Chip, kernel_cache: KernelCache, progress: Progress
) -> Library:
    """All kernels of a program for one architecture."""
    texts: dict[str, str] = {}
    for done, (symbol, kernel) in enumerate(sorted(kernels.items())):
        texts[symbol] = kernel_ttir(kernel, kernel_cache)
        progress("lowering kernels", done + 1, len(kernels))
    if folder := knobs.get().dump:
        write_texts(Path(folder) / "kernels", {f"{s}.ttir": t for s, t in texts.items()})
    refuse_illegal(texts, chip)
    hazards = [name for name in knobs.get().kunlun_hazards.split(",") if name]
    model = emulated_model(chip, hazards)

    def compiled(done: int, total: int) -> None:
        progress("compiling kernels", done, total)

    pack = build_emulated(texts, model, cache=kernel_cache, progress=compiled)
    uses = {symbol: memory_use(text, chip) for symbol, text in texts.items()}
    members = {
        EMULATOR_MEMBER: build_emulator_library(model, cache=kernel_cache),
        PLAYER_MEMBER: build_player(kernel_cache),
        f"kernels/{chip.arch}.source.json": source_record(kernels, texts, uses, chip),
    }
    resources = {symbol: use_record(use, chip) for symbol, use in uses.items()}
    return Library(chip.arch, write_pack(pack), ".pack", resources, members)


def refuse_illegal(texts: Mapping[str, str], chip: Chip) -> None:
    """One error that names every limit that any kernel breaks."""
    lines = [f"{symbol}: {v}" for symbol, text in texts.items() for v in check_kernel(text, chip)]
    if lines:
        more = f"\nand {len(lines) - 8} more" if len(lines) > 8 else ""
        raise LoweringError(f"kunlun:{chip.arch}: " + "\n".join(lines[:8]) + more)


def use_record(use: Footprint, chip: Chip) -> dict[str, object]:
    """What a kernel takes of the memories, by our model of the vendor's lowering."""
    if use.on_engine:
        used, level, most = use.uni_sram, "uni_sram", chip.uni_sram_bytes
    else:
        used, level, most = use.lm, "LM of a core", chip.lm_bytes
    return {
        "path": "sdnn" if use.on_engine else "cluster",
        "memory": level,
        "bytes": used,
        "limit": most,
        "sm_bytes": use.sm,
        "param_bytes": use.params,
        "mark": "modelled",
    }


def source_record(
    kernels: Mapping[str, Kernel],
    texts: Mapping[str, str],
    uses: Mapping[str, Footprint],
    chip: Chip,
) -> bytes:
    """Triton sources, and how each kernel specialises them: what makes the vendor's binaries."""
    record = {
        "format": SOURCE_FORMAT,
        "arch": chip.arch,
        "triton": TRITON_VERSIONS,
        "modules": module_sources(),
        "kernels": {
            symbol: {
                "function": kernel.function,
                "signature": dict(kernel.signature),
                "constants": dict(kernel.constants),
                "options": {"is_sdnn": uses[symbol].on_engine, **dict(kernel.options)},
                "do_not_specialize": [name for name, _ in kernel.signature],
                "ttir": texts[symbol],
            }
            for symbol, kernel in sorted(kernels.items())
        },
    }
    return json.dumps(record, indent=1, allow_nan=False).encode()


def module_sources() -> dict[str, str]:
    """Kernel modules by name: they import only each other and triton."""
    folder = files(f"{__package__.rpartition('.')[0]}.kernels")
    names = sorted(path.name for path in folder.iterdir())
    modules = [name for name in names if name.endswith(".py") and name not in _NO_KERNELS]
    return {name.removesuffix(".py"): (folder / name).read_text() for name in modules}


_NO_KERNELS = ("__init__.py", "ttir.py", "packing.py")
