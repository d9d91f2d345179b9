"""The player that walks a step's launches, compiled for the machine that drives the chip."""

from __future__ import annotations

from pathlib import Path

from ..tilec import KernelCache, build, isa_named
from ..tilec.lower import CppKernel

NATIVE = Path(__file__).parent / "device" / "native"


def build_player(cache: KernelCache | None = None) -> bytes:
    """The shared library; goes into the artifact as ``host/xpu_player.so``."""
    source = (NATIVE / "player.cpp").read_text()
    unit = CppKernel("sglk_xpu_play", source, (), NATIVE)
    return build([unit], isa_named("generic"), (), cache)
