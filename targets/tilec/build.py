"""Kernels to one shared library, through a content-addressed cache of object files."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ... import knobs
from ...errors import LoweringError
from .compiler import INCLUDE, Compiler, find_compiler
from .isa import Isa
from .lower import CppKernel

Progress = Callable[[int, int], None]
"""Called with (objects done, objects in all)."""


def default_cache_folder() -> Path:
    chosen = knobs.get().cache
    return Path(chosen) if chosen else Path.home() / ".cache" / "sglk" / "kernels"


@dataclasses.dataclass
class KernelCache:
    """Files named by the hash of everything they were made from; written whole or not at all."""

    folder: Path = dataclasses.field(default_factory=default_cache_folder)
    hits: int = 0
    misses: int = 0

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def find(self, key: str) -> Path | None:
        path = self.path(key)
        return path if path.exists() else None

    def put(self, key: str, make: Callable[[Path], None]) -> Path:
        """Run `make` on a temporary name and move the file into place."""
        try:
            return self._put(self.path(key), make)
        except OSError as error:
            raise LoweringError(
                f"kernel cache: expected a writable folder with space, got {self.folder} ({error}; "
                "set SGLK_CACHE)"
            ) from error

    def _put(self, path: Path, make: Callable[[Path], None]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            make(temporary)
            temporary.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        return path


@dataclasses.dataclass(frozen=True)
class _Unit:
    """One C++ text and the flags it is compiled with."""

    name: str
    source: str
    flags: tuple[str, ...]
    key: str
    is_kernel: bool


def build(
    kernels: Sequence[CppKernel],
    isa: Isa,
    extra_sources: Sequence[Path] = (),
    cache: KernelCache | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> bytes:
    """The shared library of all kernels (and extra C++ files) for one ISA.

    Objects already in the cache are not compiled again; the others are compiled in parallel.
    """
    cache = cache or KernelCache()
    compiler = find_compiler()
    _refuse_twins(kernels)
    units = [_unit(compiler, isa, k.symbol, k.source, k.headers) for k in kernels]
    units += [
        _unit(compiler, isa, path.name, path.read_text(), path.parent, is_kernel=False)
        for path in extra_sources
    ]
    objects = _compile_all(compiler, units, cache, progress, workers or _cores())
    key = _hash(compiler.version, *compiler.link_flags(), *(unit.key for unit in units)) + ".so"
    library = cache.find(key)
    if library is None:
        library = cache.put(key, lambda to: _link(compiler, isa, objects, to))
    return library.read_bytes()


def _refuse_twins(kernels: Sequence[CppKernel]) -> None:
    seen: dict[str, str] = {}
    for kernel in kernels:
        if seen.setdefault(kernel.symbol, kernel.source) != kernel.source:
            raise LoweringError(f"tilec: expected distinct symbols, got two of {kernel.symbol!r}")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _unit(
    compiler: Compiler,
    isa: Isa,
    name: str,
    source: str,
    folder: Path | None,
    is_kernel: bool = True,
) -> _Unit:
    """``folder`` has headers beside ours; a kernel starts with ``tilec.h``."""
    flags = (*compiler.compile_flags(isa), *((f"-I{folder}",) if folder else ()))
    headers = [path.read_text() for path in sorted(INCLUDE.glob("*.h"))]
    if folder is not None:
        headers += [path.read_text() for path in sorted(folder.glob("*.h"))]
    portable = [flag for flag in flags if not flag.startswith("-I")]
    key = _hash(*compiler.command[-2:], compiler.version, *portable, *headers, source) + ".o"
    return _Unit(name, source, flags, key, is_kernel)


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def _compile_all(
    compiler: Compiler,
    units: Sequence[_Unit],
    cache: KernelCache,
    progress: Progress | None,
    workers: int,
) -> list[Path]:
    wanted = {unit.key: unit for unit in units}
    found = {key: path for key in wanted if (path := cache.find(key))}
    missing = [unit for key, unit in wanted.items() if key not in found]
    header = _precompiled_header(compiler, missing, cache)
    cache.hits += len(found)
    cache.misses += len(missing)
    done = len(found)
    if progress:
        progress(done, len(wanted))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        jobs = {pool.submit(_compile, compiler, unit, cache, header): unit for unit in missing}
        try:
            for job in concurrent.futures.as_completed(jobs):
                found[jobs[job].key] = job.result()
                done += 1
                if progress:
                    progress(done, len(wanted))
        except BaseException:  # an interrupt too: the pool would go on with all that wait
            pool.shutdown(cancel_futures=True)
            raise
    return [found[key] for key in wanted]


_AGAIN = '#include_next "tilec.h"\n'
"""What stands beside ``tilec.h.gch``: GCC takes the compiled form for the first include only."""


def _precompiled_header(
    compiler: Compiler, missing: Sequence[_Unit], cache: KernelCache
) -> tuple[str, ...]:
    """The flag that finds ``tilec.h.gch``; nothing for other compilers."""
    kernels = [unit for unit in missing if unit.is_kernel]
    if not compiler.is_gcc or not kernels:
        return ()
    flags = kernels[0].flags
    headers = [path.read_text() for path in sorted(INCLUDE.glob("*.h"))]
    folder = f"{_hash(*compiler.command, compiler.version, *flags, *headers, _AGAIN)}.pch"
    path = cache.find(f"{folder}/tilec.h.gch")
    if path is None:
        source = str(INCLUDE / "tilec.h")
        cache.put(f"{folder}/tilec.h", lambda to: _write(_AGAIN, to))

        def make(to: Path) -> None:
            compiler.run([*flags, "-x", "c++-header", source, "-o", str(to)], "tilec.h")

        path = cache.put(f"{folder}/tilec.h.gch", make)
    return (f"-I{path.parent}",)


def _write(text: str, to: Path) -> None:
    to.write_text(text)


def _compile(compiler: Compiler, unit: _Unit, cache: KernelCache, header: tuple[str, ...]) -> Path:
    include = header if unit.is_kernel else ()

    def make(to: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, result = Path(folder) / "kernel.cpp", Path(folder) / "kernel.o"
            source.write_text(unit.source)
            compiler.run([*include, *unit.flags, "-c", str(source), "-o", str(result)], unit.name)
            to.write_bytes(result.read_bytes())

    return cache.put(unit.key, make)


def _link(compiler: Compiler, isa: Isa, objects: list[Path], to: Path) -> None:
    target = isa.zig if compiler.is_zig else isa.gcc
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        arguments = [*target, *map(str, objects), *compiler.link_flags(), "-o", str(library)]
        compiler.run(arguments, "link")
        to.write_bytes(library.read_bytes())
