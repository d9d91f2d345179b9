"""The kernels of a pack: loaded when first needed, with what a launch must know about each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....errors import ArtifactError
from ...artifact.kernel_pack import PackedKernel
from ...artifact.schema import as_choice, as_int, as_list, as_text, shorten
from .driver import Driver, Grid, Handle

THREADS_PER_WARP = 32
MAX_CTAS = 16
POINTER, I32, I64, F32 = range(4)
"""Kinds of argument."""
_KINDS = {
    "i32": I32, "u32": I32, "i1": I32, "i8": I32, "i16": I32, "i64": I64, "u64": I64, "fp32": F32,
}  # fmt: skip
KIND_NAMES = ("pointer", "i32", "i64", "f32")


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel."""

    symbol: str
    function: Handle
    kinds: tuple[int, ...]
    """Of the arguments that a call gives; two pointers to scratch memory follow them."""
    num_threads: int
    shared_bytes: int
    scratch: int
    """Bytes of scratch memory for each program."""
    num_ctas: int
    is_dependent: bool

    def grid(self, x: int, y: int, z: int) -> Grid:
        """A launch of this many programs."""
        return Grid(x, y, z, self.num_threads, self.shared_bytes, self.num_ctas, self.is_dependent)


class KernelTable:
    """Kernels by symbol."""

    def __init__(self, driver: Driver, pack: Mapping[str, PackedKernel], where: str) -> None:
        self._driver = driver
        self._pack = pack
        self._where = where
        self._kernels: dict[str, Kernel] = {}
        self._modules: dict[bytes, Handle] = {}

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._pack

    def __getitem__(self, symbol: str) -> Kernel:
        kernel = self._kernels.get(symbol)
        if kernel is None:
            kernel = self._kernels[symbol] = self._load(symbol)
        return kernel

    def check(self, symbols: Sequence[str]) -> None:
        """Refuse a program that calls a kernel which is not here."""
        missing = [symbol for symbol in symbols if symbol not in self._pack]
        if missing:
            raise ArtifactError(
                f"{self._where}: expected the kernel {missing[0]}, got {len(self._pack)} others"
                " (compile the model again)"
            )

    def scratch_bytes(self, symbol: str) -> int:
        """Scratch memory for each program of a kernel, which need not be loaded."""
        where, meta = f"{self._where}: {symbol}", self._pack[symbol].meta
        num_ctas = as_int(where, meta.get("num_ctas", 1), 1, MAX_CTAS)
        return _size(where, meta, "global_scratch") * num_ctas

    def starts_early(self, symbol: str) -> bool:
        """Whether a kernel, which need not be loaded, may start while the one before it ends."""
        return self._pack[symbol].meta.get("pdl", False) is True

    def _load(self, symbol: str) -> Kernel:
        self.check([symbol])
        where = f"{self._where}: {symbol}"
        packed = self._pack[symbol]
        meta = packed.meta
        entry = as_text(f"{where}: entry", meta.get("entry", symbol), limit=1024)
        shared = _size(where, meta, "shared")
        if _size(where, meta, "profile_scratch"):
            raise ArtifactError(f"{where}: expected a kernel without profiling, got one with")
        return Kernel(
            symbol=symbol,
            function=self._driver.function(self._module(where, packed), entry, shared),
            kinds=_kinds(where, meta.get("params")),
            num_threads=THREADS_PER_WARP * as_int(where, meta.get("num_warps"), 1, 32),
            shared_bytes=shared,
            scratch=self.scratch_bytes(symbol),
            num_ctas=as_int(where, meta.get("num_ctas", 1), 1, MAX_CTAS),
            is_dependent=self.starts_early(symbol),
        )

    def _module(self, where: str, packed: PackedKernel) -> Handle:
        """Equal code is loaded once: packs keep it at one place."""
        as_choice(f"{where}: kind", packed.meta.get("kind", "cubin"), ("cubin", "ptx"))
        code = bytes(packed.data)
        key = hashlib.sha256(code).digest()
        if key not in self._modules:
            self._modules[key] = self._driver.load_module(code, where)
        return self._modules[key]


def _size(where: str, meta: Mapping[str, object], key: str) -> int:
    """Bytes; also accepts (bytes, alignment), as Triton has it."""
    value = meta.get(key, 0)
    if isinstance(value, list) and len(value) == 2:
        value = value[0]
    return as_int(f"{where}: {key}", value, high=1 << 31)


def _kinds(where: str, value: object) -> tuple[int, ...]:
    return tuple(
        _kind(where, as_text(f"{where}: params", item))
        for item in as_list(f"{where}: params", value)
    )


def _kind(where: str, text: str) -> int:
    if text.startswith("*"):
        return POINTER
    if text not in _KINDS:
        raise ArtifactError(
            f"{where}: expected parameters of the kinds pointer, {', '.join(_KINDS)},"
            f" got {shorten(text)} (upgrade sglk)"
        )
    return _KINDS[text]
