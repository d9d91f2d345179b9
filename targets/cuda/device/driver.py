"""What the rest of this package asks of a GPU: `CudaDriver` does it, `NullDriver` records it.

Addresses are plain numbers. Every other handle is an object of the driver that only the driver
looks into. All work is queued on a stream; the order within a stream is the order of the calls.
Whatever fails raises `DeviceError` with what was tried and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Handle = object
"""A stream, event, function, graph or launch: only its driver knows what it is."""


@dataclass(frozen=True)
class Grid:
    """How a kernel is started: programs, threads of each, and what it may use."""

    x: int
    y: int
    z: int
    num_threads: int
    shared_bytes: int = 0
    num_ctas: int = 1
    """Blocks of a cluster that share one program."""
    is_dependent: bool = False
    """May start before the kernel ahead of it has ended (programmatic dependent launch)."""


@dataclass(frozen=True)
class Pinned:
    """Host memory that the device copies from and to without a detour."""

    address: int
    array: NDArray[np.uint8]


@dataclass(frozen=True)
class Chip:
    """Facts of the device in use."""

    name: str
    capability: tuple[int, int]
    """(9, 0) is sm_90."""
    shared_bytes: int
    """Shared memory that one block may have."""
    num_processors: int
    driver_version: int
    """13000 is CUDA 13.0."""

    @property
    def arch(self) -> str:
        """As compilers call it.

        >>> Chip("H200", (9, 0), 232448, 132, 13000).arch
        'sm_90'
        """
        return f"sm_{self.capability[0]}{self.capability[1]}"


class Driver(Protocol):
    """One device with its context."""

    where: str
    """What errors start with: ``cuda:0``."""
    chip: Chip

    def use(self) -> None:
        """Make the device current in the calling thread; every thread that comes in calls it."""

    def close(self) -> None:
        """Give up the context; safe to call twice."""

    def free_bytes(self) -> tuple[int, int]:
        """Memory that is free, and all there is."""

    def allocate(self, num_bytes: int, what: str) -> int:
        """Device memory, aligned to 256 bytes; its content is undefined."""

    def free(self, address: int) -> None:
        """Give `allocate`d memory back."""

    def allocate_pinned(self, num_bytes: int, what: str) -> Pinned:
        """Pinned host memory."""

    def free_pinned(self, pinned: Pinned) -> None:
        """Give pinned memory back; its array must not be touched again."""

    def copy_in(self, address: int, source: int, num_bytes: int, stream: Handle) -> None:
        """Queue a copy from pinned host memory to the device."""

    def copy_out(self, target: int, address: int, num_bytes: int, stream: Handle) -> None:
        """Queue a copy from the device to pinned host memory."""

    def set_bytes(self, address: int, value: int, num_bytes: int, stream: Handle) -> None:
        """Queue writing one byte value over a range."""

    def load_module(self, code: bytes, what: str) -> Handle:
        """Load a cubin, or PTX that the driver compiles now."""

    def function(self, module: Handle, entry: str, shared_bytes: int) -> Handle:
        """A kernel of a module, allowed this much dynamic shared memory."""

    def prepare(
        self, function: Handle, grid: Grid, arguments: int, num_arguments: int, stream: Handle
    ) -> Handle:
        """A launch for `launch`; `arguments` is the address of an array of argument addresses."""

    def launch(self, launches: Sequence[Handle]) -> None:
        """Queue prepared launches in order."""

    def make_stream(self) -> Handle:
        """A stream that does not wait for the default one."""

    def free_stream(self, stream: Handle) -> None:
        """Give a stream back."""

    def synchronize(self, stream: Handle) -> None:
        """Wait until all work queued on a stream is done."""

    def make_event(self, has_time: bool = False) -> Handle:
        """An event, not recorded yet; with `has_time` for `milliseconds`."""

    def free_event(self, event: Handle) -> None:
        """Give an event back."""

    def record(self, event: Handle, stream: Handle) -> None:
        """Mark this place in a stream's work."""

    def wait(self, event: Handle) -> None:
        """Wait until the work before a recorded event is done."""

    def milliseconds(self, start: Handle, end: Handle) -> float:
        """Time between two recorded events; waits for the second."""

    def begin_capture(self, stream: Handle) -> None:
        """From now on the stream's work is noted, not done."""

    def end_capture(self, stream: Handle) -> Handle:
        """The noted work as a graph that is ready to launch."""

    def abandon_capture(self, stream: Handle) -> None:
        """End a capture that failed and forget it; raises nothing."""

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        """Queue a graph."""

    def free_graph(self, graph: Handle) -> None:
        """Give a graph back."""
