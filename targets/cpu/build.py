"""Kernels -> shared libraries, one per instruction set: Triton to TTIR, tilec to C++, C++ to code.

TTIR and objects come from a content-addressed cache, so a second compile builds only what changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from ... import knobs
from ..kernel import NATIVE, Kernel
from ..tilec import CppKernel, KernelCache, build, isa_named, translate
from ..ttir import kernel_ttir, write_texts

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]
PLAYER = ("player.cpp",)
"""Native sources that go into every library beside the kernels."""


def build_library(
    kernels: Sequence[Kernel], isa: str, kernel_cache: KernelCache, progress: Progress
) -> bytes:
    """The shared library of all kernels and the player for one instruction set."""
    sources: list[CppKernel] = []
    for done, kernel in enumerate(kernels):
        sources.append(_translate(kernel, kernel_cache))
        progress("lowering kernels", done + 1, len(kernels))
    native = files(__package__) / "native"
    extra = [Path(str(native / name)) for name in PLAYER]

    def compiled(done: int, total: int) -> None:
        progress("compiling kernels", done, total)

    return build(sources, isa_named(isa), extra, kernel_cache, progress=compiled)


def native_kernel(kernel: Kernel) -> CppKernel:
    """The C++ that makes a hand-written template of ``native/kernels`` for one set of constants."""
    name = kernel.function.removeprefix(NATIVE)
    types = {bool: "bool", int: "int", float: "float"}
    members = "".join(
        f"  static constexpr {types[type(value)]} {key} = {_cpp(value)};\n"
        for key, value in kernel.constants
    )
    source = (
        f'#include "tilec.h"\n#include "{name}.h"\n'
        f"namespace {{\nstruct Constants {{\n{members}}};\n}}  // namespace\n"
        f'extern "C" void {kernel.symbol}(const int64_t* args, const int32_t* grid, '
        f"int64_t begin, int64_t end) {{\n  {name}<Constants>(args, grid, begin, end);\n}}\n"
    )
    folder = Path(str(files(__package__) / "native" / "kernels"))
    kinds = [kind for _, kind in kernel.signature]
    params = tuple(f"!tt.ptr<{kind[1:]}>" if kind.startswith("*") else kind for kind in kinds)
    return CppKernel(kernel.symbol, source, params, folder)


def _cpp(value: object) -> str:
    """A constant as C++ text.

    >>> _cpp(True), _cpp(64), _cpp(0.5)
    ('true', '64', '0.5f')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value!r}f" if isinstance(value, float) else repr(value)


def _translate(kernel: Kernel, kernel_cache: KernelCache) -> CppKernel:
    if kernel.is_native:
        return native_kernel(kernel)
    ttir = kernel_ttir(kernel, kernel_cache)
    made = translate(ttir, kernel.symbol)
    log.debug("kernel %s: %s %s", kernel.symbol, kernel.function, dict(kernel.constants))
    if folder := knobs.get().dump:
        texts = {f"{kernel.symbol}.ttir": ttir, f"{kernel.symbol}.cpp": made.source}
        write_texts(Path(folder) / "kernels", texts)
    return made
