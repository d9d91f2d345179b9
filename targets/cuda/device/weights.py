"""Weights on the device: copied from the file through pinned chunks, or made there from a seed."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...artifact import Artifact
from ...artifact.fill import DTYPES, Fill
from .bound_program import BoundProgram, Launches
from .driver import Driver, Handle
from .memory import ALIGNMENT, DeviceMemory, aligned

CHUNK_BYTES = 8 << 20
NUM_WORKERS = 6
"""Threads that copy from the page cache into pinned memory, each with a chunk of its own; one of
them moves about 3 GB/s, the bus takes over 20."""
REGION = ("weights", "")
FILL = "fill_"
"""What the entries that make weights start with; their dtype follows."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placed:
    """A weight and its place, in bytes from the start of all weights."""

    name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Piece:
    """Bytes of the file that go to a place on the device."""

    offset: int
    data: NDArray[np.uint8]

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


def place(artifact: Artifact, names: Iterable[str]) -> tuple[list[Placed], int]:
    """A place for each weight, weights with equal content at the same one; and the end."""
    known: dict[str, int] = {}
    placed, end = [], 0
    for name in names:
        record = artifact.weights[name]
        size = int(str(record["bytes"]))
        content = str(record.get("blob", f"fill of {name}"))
        if content not in known:
            known[content] = end
            end += aligned(size)
        placed.append(Placed(name, known[content], size))
    return placed, end


def load_weights(
    driver: Driver,
    stream: Handle,
    memory: DeviceMemory,
    programs: Mapping[str, BoundProgram],
    artifact: Artifact,
    names: Iterable[str],
) -> None:
    """Allocate, name and fill the memory of these weights; waits until it is done."""
    placed, end = place(artifact, names)
    start = memory.allocate(REGION, end)
    for weight in placed:
        memory.place(("weight", weight.name), start + weight.offset, weight.num_bytes)
    began = time.perf_counter()
    fillers = _Fillers(driver, memory, programs)
    first = {weight.offset: weight for weight in placed}.values()
    pieces = [p for weight in first for p in _pieces(artifact, weight, fillers, start)]
    _upload(driver, start, pieces)
    driver.synchronize(stream)
    seconds = time.perf_counter() - began
    num_bytes = sum(len(piece.data) for piece in pieces)
    _log.info(
        "%s: weights: %.2f GB from the file at %.2f GB/s, %.2f GB made from seeds, %.2f s",
        driver.where, num_bytes / 1e9, num_bytes / 1e9 / max(seconds, 1e-9),
        (sum(weight.num_bytes for weight in first) - num_bytes) / 1e9, seconds,
    )  # fmt: skip


def _pieces(artifact: Artifact, weight: Placed, fillers: _Fillers, start: int) -> Iterator[Piece]:
    """What must be copied; a fill that the device can make is queued there instead."""
    fill = artifact.fill(weight.name)
    dtype = str(artifact.weights[weight.name]["dtype"])
    if fill is not None and fillers.can_make(dtype):
        fillers.make(fill, dtype, start + weight.offset, weight.num_bytes)
        return
    data = artifact.weight(weight.name)
    for at in range(0, weight.num_bytes, CHUNK_BYTES):
        yield Piece(weight.offset + at, data[at : at + CHUNK_BYTES])


class _Fillers:
    """The programs ``fill_<dtype>``: symbols count, seed, step and mean, output weight."""

    def __init__(
        self, driver: Driver, memory: DeviceMemory, programs: Mapping[str, BoundProgram]
    ) -> None:
        self._driver = driver
        self._memory = memory
        self._programs = programs
        self._kept: list[Launches] = []

    def can_make(self, dtype: str) -> bool:
        return f"{FILL}{dtype}" in self._programs

    def make(self, fill: Fill, dtype: str, address: int, num_bytes: int) -> None:
        """Queue making one weight."""
        step, mean = np.array([fill.step, fill.mean], np.float32).view(np.int32).tolist()
        seed = int(np.uint32(fill.seed).astype(np.int32))
        numbers = {"count": num_bytes // DTYPES[dtype], "seed": seed, "step": step, "mean": mean}
        self._memory.place(("output", "weight"), address, num_bytes)
        launches = self._programs[f"{FILL}{dtype}"].prepare(numbers, {})
        self._driver.launch(launches.calls)
        self._kept.append(launches)


def _upload(driver: Driver, start: int, pieces: Sequence[Piece]) -> None:
    """Copy all pieces, several at a time."""
    chunks = list(_chunks(pieces))
    if not chunks:
        return
    count = min(NUM_WORKERS, len(chunks))
    size = max(lot[-1].end - lot[0].offset for lot in chunks)
    with ThreadPoolExecutor(count, "sglk-upload") as pool:
        workers = [_Worker(driver, start, size) for _ in range(count)]
        try:
            lots = [chunks[number::count] for number in range(count)]
            for done in [pool.submit(w.run, lot) for w, lot in zip(workers, lots, strict=True)]:
                done.result()
        finally:
            for worker in workers:
                worker.close()


def _chunks(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Neighbours together, as long as they fit in one copy; what lies between them is padding."""
    lot: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        is_near = lot and piece.offset - lot[-1].end < ALIGNMENT
        if lot and not (is_near and piece.end - lot[0].offset <= CHUNK_BYTES):
            yield lot
            lot = []
        lot.append(piece)
    if lot:
        yield lot


class _Worker:
    """A stream with two chunks of pinned memory: one is filled while the other is copied."""

    def __init__(self, driver: Driver, start: int, chunk_bytes: int) -> None:
        self._driver = driver
        self._start = start
        self._stream = driver.make_stream()
        self._buffers = [
            (driver.allocate_pinned(chunk_bytes, "weights"), driver.make_event()) for _ in range(2)
        ]

    def run(self, lots: Sequence[Sequence[Piece]]) -> None:
        self._driver.use()
        for number, lot in enumerate(lots):
            pinned, event = self._buffers[number % 2]
            if number >= 2:
                self._driver.wait(event)
            first, last = lot[0], lot[-1]
            for piece in lot:
                at = pinned.address + piece.offset - first.offset
                # Unlike NumPy's copy of small arrays, this lets the other threads run.
                ctypes.memmove(at, piece.data.ctypes.data, len(piece.data))
            size = last.end - first.offset
            target = self._start + first.offset
            self._driver.copy_in(target, pinned.address, size, self._stream)
            self._driver.record(event, self._stream)
        self._driver.synchronize(self._stream)

    def close(self) -> None:
        for pinned, event in self._buffers:
            self._driver.free_event(event)
            self._driver.free_pinned(pinned)
        self._driver.free_stream(self._stream)
