"""One device: memory, a stream, kernels and launches, over `XreLibrary`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...artifact.kernel_pack import PackedKernel
from .image import kernel_image
from .library import Counters, XreLibrary

D2H, H2D, D2D = 0, 1, 2
MAIN, L3 = 0, 1
ATTRIBUTES = {"model": 4, "main_bytes": 5, "l3_bytes": 6, "clusters": 7, "engines": 8}
CLUSTER_CORES, ENGINE_CORES = 64, 8
"""What a launch asks for: cores of a cluster, control cores of a matrix engine."""
POINTER_ALIGN = 8
"""Bytes, of a pointer among the parameters [inferred]."""


@dataclass(frozen=True)
class Parameter:
    """Where an argument lies in the parameter block; `kind` is p, i, l, f or d."""

    kind: str
    offset: int


class LoadedKernel:
    """A kernel on the device: its handle and the form of its parameter block."""

    def __init__(self, symbol: str, handle: int, meta: Mapping[str, object]) -> None:
        self.symbol = symbol
        self.handle = handle
        self.is_engine = bool(meta["engine"])
        self.parameters = tuple(place_parameters(str(meta["kinds"])))
        last = self.parameters[-1] if self.parameters else None
        self.grid_offset = last.offset + _size(last.kind) if last else 0
        self.block_bytes = self.grid_offset + 12


def place_parameters(kinds: str) -> Sequence[Parameter]:
    """Offsets: pointers and 64-bit numbers aligned, 32-bit numbers right behind each other.

    >>> [p.offset for p in place_parameters("pip")]
    [0, 8, 16]
    """
    at, placed = 0, []
    for kind in kinds:
        size = _size(kind)
        at = -(-at // POINTER_ALIGN) * POINTER_ALIGN if size == 8 else at
        placed.append(Parameter(kind, at))
        at += size
    return placed


def _size(kind: str) -> int:
    return 8 if kind in "pld" else 4


class Xpu:
    """A device of this process. Each thread has a current device, so callers `activate` it."""

    def __init__(self, library: XreLibrary, number: int = 0) -> None:
        self.library = library
        self.number = number
        count = ctypes.c_int()
        library.call("xpu_device_count", ctypes.byref(count))
        if not 0 <= number < count.value:
            raise DeviceError(
                f"{library.where}: expected a device below {count.value}, got {number}"
            )
        self.activate()
        self._stream = ctypes.c_void_p()
        library.call("xpu_stream_create", ctypes.byref(self._stream))
        self._memory: dict[int, int] = {}
        self._host: set[int] = set()

    def activate(self) -> None:
        """Make it the calling thread's device."""
        self.library.call("xpu_set_device", self.number)

    def attribute(self, name: str) -> int:
        """A property of the chip, by name of `ATTRIBUTES`."""
        value = ctypes.c_uint64()
        number = ATTRIBUTES[name]
        self.library.call("xpu_device_get_attr", ctypes.byref(value), number, self.number)
        return int(value.value)

    # ---- memory

    @property
    def used_bytes(self) -> int:
        """Device memory that this object holds."""
        return sum(self._memory.values())

    def allocate(self, num_bytes: int, kind: int = MAIN) -> int:
        """Address of new device memory."""
        pointer = ctypes.c_void_p()
        size = max(1, num_bytes)
        self.library.call("xpu_malloc", ctypes.byref(pointer), size, kind)
        assert pointer.value is not None
        self._memory[pointer.value] = size
        return pointer.value

    def free(self, address: int) -> None:
        """Give device memory back."""
        self.library.call("xpu_free", address)
        self._memory.pop(address, None)

    def host_array(self, num_bytes: int) -> NDArray[np.uint8]:
        """Host memory that the device may copy from and to while the host goes on."""
        pointer = ctypes.c_void_p()
        self.library.call("xpu_host_alloc", ctypes.byref(pointer), max(1, num_bytes), 0)
        assert pointer.value is not None
        self._host.add(pointer.value)
        buffer = (ctypes.c_uint8 * max(1, num_bytes)).from_address(pointer.value)
        return np.ctypeslib.as_array(buffer)

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """Copy an array to the device and wait."""
        plain = np.ascontiguousarray(array)
        if plain.nbytes:
            self.library.call("xpu_memcpy", address, plain.ctypes.data, plain.nbytes, H2D)

    def download(self, array: NDArray[Any], address: int) -> None:
        """Fill a contiguous array from the device and wait."""
        if array.nbytes:
            self.library.call("xpu_memcpy", array.ctypes.data, address, array.nbytes, D2H)

    def upload_async(self, address: int, array: NDArray[Any]) -> None:
        """Copy an array of `host_array`, in the order of the stream."""
        at = array.ctypes.data
        self.library.call("xpu_memcpy_async", address, at, array.nbytes, H2D, self._stream)

    def download_async(self, array: NDArray[Any], address: int) -> None:
        """Fill an array of `host_array`, in the order of the stream."""
        at = array.ctypes.data
        self.library.call("xpu_memcpy_async", at, address, array.nbytes, D2H, self._stream)

    # ---- kernels

    def load_kernel(self, symbol: str, kernel: PackedKernel) -> LoadedKernel:
        """A kernel of a pack, on the device."""
        check_meta(symbol, kernel.meta)
        image = kernel_image(symbol, kernel.meta, kernel.data)
        printf = int(str(kernel.meta.get("printf_offset", 0)))
        engine, handle = int(str(kernel.meta["engine"])), ctypes.c_void_p()
        arguments = (symbol.encode(), image, len(image), engine, printf, ctypes.byref(handle))
        self.library.call("load_binary", *arguments)
        assert handle.value is not None
        return LoadedKernel(symbol, handle.value, kernel.meta)

    def launch(
        self, kernel: LoadedKernel, grid: tuple[int, int, int], arguments: Sequence[int | float]
    ) -> None:
        """Queue one kernel: for tests and single calls; programs use `LaunchList`."""
        block = parameter_block(kernel, grid, arguments)
        clusters, cores = self.shape_of(kernel, grid)
        self.library.call("xpu_launch_argument_set", block, len(block), 0)
        self.library.call("xpu_launch_config", clusters, cores, self._stream)
        self.library.call("xpu_launch_async", kernel.handle)

    def shape_of(self, kernel: LoadedKernel, grid: tuple[int, int, int]) -> tuple[int, int]:
        """Clusters (or engines) and cores of a launch."""
        most = self.attribute("engines" if kernel.is_engine else "clusters")
        programs = grid[0] * grid[1] * grid[2]
        return min(most, max(1, programs)), ENGINE_CORES if kernel.is_engine else CLUSTER_CORES

    def wait(self) -> None:
        """Until everything queued has run; failures of kernels show here."""
        self.library.call("xpu_wait", self._stream)

    @property
    def stream(self) -> int:
        """The handle of the stream."""
        assert self._stream.value is not None
        return self._stream.value

    # ---- what the emulator knows

    def counters(self, kernel: str | None = None) -> dict[str, float]:
        """Counts of the emulator, of one kernel or of all; {} on a chip."""
        if not self.library.is_emulated:
            return {}
        found = Counters()
        name = kernel.encode() if kernel is not None else None
        self.library.call("xpuemu_counters_of", name, ctypes.byref(found))
        return {field[0]: getattr(found, field[0]) for field in Counters._fields_}

    def close(self) -> None:
        """Give everything back, as far as the device still answers; safe to call twice."""
        for address in self._memory:
            self.library.function("xpu_free")(address)
        for address in self._host:
            self.library.function("xpu_host_free")(address)
        if self._stream.value is not None:
            self.library.function("xpu_stream_destroy")(self._stream)
        self._memory, self._host, self._stream = {}, set(), ctypes.c_void_p()


def check_meta(symbol: str, meta: Mapping[str, object]) -> None:
    """Refuse a kernel of a pack whose description cannot be launched by."""
    for key in ("engine", "kinds"):
        if key not in meta:
            raise ArtifactError(f"kernel {symbol}: its meta data lacks {key!r}")
    kinds, odd = meta["kinds"], [k for k in ("engine", "printf_offset") if not _is_whole(meta, k)]
    if odd:
        raise ArtifactError(
            f"kernel {symbol}: {odd[0]}: expected a whole number, got {meta[odd[0]]!r}"
        )
    if not isinstance(kinds, str) or set(kinds) - set(_FORMATS):
        raise ArtifactError(
            f"kernel {symbol}: kinds: expected letters of {''.join(_FORMATS)}, got {kinds!r}"
        )


def _is_whole(meta: Mapping[str, object], key: str) -> bool:
    return isinstance(meta.get(key, 0), int)


_FORMATS = {"p": np.uint64, "l": np.int64, "i": np.int32, "f": np.float32, "d": np.float64}


def parameter_block(
    kernel: LoadedKernel, grid: tuple[int, int, int], arguments: Sequence[int | float]
) -> bytes:
    """All parameters and the grid, as `xpu_launch_argument_set` takes them in one piece."""
    if len(arguments) != len(kernel.parameters):
        raise ArtifactError(
            f"kernel {kernel.symbol}: expected {len(kernel.parameters)} arguments,"
            f" got {len(arguments)}"
        )
    block = np.zeros(kernel.block_bytes, np.uint8)
    for place, value in zip(kernel.parameters, arguments, strict=True):
        number = np.array([value], _FORMATS[place.kind]).view(np.uint8)
        block[place.offset : place.offset + len(number)] = number
    block[kernel.grid_offset :] = np.array(grid, np.int32).view(np.uint8)
    return block.tobytes()
