"""`Driver` without a GPU: records what it is asked for, and runs kernels that are given as Python.

Device memory is host memory, full of 0xA5 until it is written. A launch calls the function that
stands for its entry, if there is one, with the words of its arguments; a graph replays launches.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from .driver import Chip, Grid, Handle, Pinned
from .error_text import describe

ALIGNMENT = 256
POISON = 0xA5
H200 = Chip("null", (9, 0), 232448, 132, 13000)
Kernel = Callable[[Grid, Sequence[int]], None]
"""Gets the grid and one 64-bit word for each argument."""


@dataclass(frozen=True)
class Record:
    """One call that queues work or changes what is allocated."""

    kind: str
    what: str = ""
    num_bytes: int = 0
    grid: Grid | None = None
    words: tuple[int, ...] = ()


@dataclass
class _Launch:
    entry: str
    grid: Grid
    arguments: int
    num_arguments: int


@dataclass
class NullDriver:
    """Implements `Driver`; `records` is what a test looks at."""

    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    chip: Chip = H200
    total_bytes: int = 1 << 32
    where: str = "cuda:null"
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._threads = {threading.get_ident()}
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._captured: list[_Launch] | None = None
        self.is_open = True

    @property
    def allocated_bytes(self) -> int:
        """Memory in use, device and pinned."""
        return sum(memory.nbytes - ALIGNMENT for memory in self._memory.values())

    def of(self, kind: str) -> list[Record]:
        """Records of one kind, in order."""
        return [record for record in self.records if record.kind == kind]

    def use(self) -> None:
        if not self.is_open:
            raise DeviceError(f"{self.where}: it is closed (open the device again)")
        self._threads.add(threading.get_ident())

    def _check_thread(self, what: str) -> None:
        """A driver knows the context of a thread that has entered it."""
        if threading.get_ident() not in self._threads:
            name = "CUDA_ERROR_INVALID_CONTEXT"
            raise DeviceError(describe(self.where, what, name, "invalid device context"))

    def close(self) -> None:
        self.is_open = False

    def free_bytes(self) -> tuple[int, int]:
        return self.total_bytes - self.allocated_bytes, self.total_bytes

    def _take(self, kind: str, num_bytes: int, what: str) -> tuple[int, NDArray[np.uint8]]:
        self._check_thread(kind)
        if num_bytes > self.free_bytes()[0]:
            name = "CUDA_ERROR_OUT_OF_MEMORY"
            raise DeviceError(describe(self.where, f"allocate {what}", name, "out of memory"))
        memory = np.full(num_bytes + ALIGNMENT, POISON, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        address = memory.ctypes.data + start
        self._memory[address] = memory
        self.records.append(Record(kind, what, num_bytes))
        return address, memory[start : start + num_bytes]

    def allocate(self, num_bytes: int, what: str) -> int:
        return self._take("allocate", num_bytes, what)[0]

    def free(self, address: int) -> None:
        del self._memory[address]
        self.records.append(Record("free"))

    def allocate_pinned(self, num_bytes: int, what: str) -> Pinned:
        return Pinned(*self._take("pin", num_bytes, what))

    def free_pinned(self, pinned: Pinned) -> None:
        self.free(pinned.address)

    def _copy(self, kind: str, target: int, source: int, num_bytes: int) -> None:
        self._check_thread(kind)
        self._check_not_capturing(kind)
        ctypes.memmove(target, source, num_bytes)
        self.records.append(Record(kind, num_bytes=num_bytes))

    def copy_in(self, address: int, source: int, num_bytes: int, stream: Handle) -> None:
        self._copy("copy in", address, source, num_bytes)

    def copy_out(self, target: int, address: int, num_bytes: int, stream: Handle) -> None:
        self._copy("copy out", target, address, num_bytes)

    def set_bytes(self, address: int, value: int, num_bytes: int, stream: Handle) -> None:
        self._check_not_capturing("set")
        ctypes.memset(address, value, num_bytes)
        self.records.append(Record("set", num_bytes=num_bytes))

    def load_module(self, code: bytes, what: str) -> Handle:
        self.records.append(Record("module", what, len(code)))
        return what

    def function(self, module: Handle, entry: str, shared_bytes: int) -> Handle:
        self.records.append(Record("function", entry, shared_bytes))
        return entry

    def prepare(
        self, function: Handle, grid: Grid, arguments: int, num_arguments: int, stream: Handle
    ) -> Handle:
        return _Launch(str(function), grid, arguments, num_arguments)

    def launch(self, launches: Sequence[Handle]) -> None:
        self._check_thread("launch")
        for launch in cast("Sequence[_Launch]", launches):
            if self._captured is not None:
                self._captured.append(launch)
            else:
                self._run(launch)

    def _run(self, launch: _Launch) -> None:
        pointers = (ctypes.c_uint64 * launch.num_arguments).from_address(launch.arguments)
        words = tuple(ctypes.c_int64.from_address(pointer).value for pointer in pointers)
        self.records.append(Record("launch", launch.entry, grid=launch.grid, words=words))
        if launch.entry in self.kernels:
            self.kernels[launch.entry](launch.grid, words)

    def make_stream(self) -> Handle:
        self._check_thread("make a stream")
        return "stream"

    def free_stream(self, stream: Handle) -> None:
        pass

    def synchronize(self, stream: Handle) -> None:
        self._check_not_capturing("synchronize")
        self.records.append(Record("synchronize"))

    def make_event(self, has_time: bool = False) -> Handle:
        return "event"

    def free_event(self, event: Handle) -> None:
        pass

    def record(self, event: Handle, stream: Handle) -> None:
        self.records.append(Record("record"))

    def wait(self, event: Handle) -> None:
        self._check_thread("wait")
        self.records.append(Record("wait"))

    def milliseconds(self, start: Handle, end: Handle) -> float:
        return 0.0

    def begin_capture(self, stream: Handle) -> None:
        self._check_not_capturing("capture")
        self._captured = []

    def end_capture(self, stream: Handle) -> Handle:
        captured, self._captured = self._captured, None
        if captured is None:
            raise DeviceError(f"{self.where}: end a capture: none was begun")
        self.records.append(Record("capture", num_bytes=len(captured)))
        return captured

    def abandon_capture(self, stream: Handle) -> None:
        self._captured = None

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        self.records.append(Record("graph"))
        for launch in cast("list[_Launch]", graph):
            self._run(launch)

    def free_graph(self, graph: Handle) -> None:
        self.records.append(Record("free graph"))

    def _check_not_capturing(self, what: str) -> None:
        if self._captured is not None:
            name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            raise DeviceError(describe(self.where, what, name, "not within a capture"))
