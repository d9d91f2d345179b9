"""Weights on the device: read from the file into pinned chunks, or made there from a seed or
from the blocks that the file holds."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError
from ...artifact import Artifact
from ...artifact.expand import ITEM_BYTES, Expand
from ...artifact.fill import DTYPES, Fill
from .bound_program import BoundProgram, Launches
from .driver import Driver, Handle
from .memory import ALIGNMENT, DeviceMemory, aligned

CHUNK_BYTES = 8 << 20
NUM_WORKERS = 6
"""Threads that read into pinned memory, each with chunks of its own; from the page cache one of
them moves about 3 GB/s, the bus takes over 20."""
REGION = ("weights", "")
BLOCKS = ("blocks", "")
"""Where blocks wait to be expanded."""
FILL, EXPAND = "fill_", "expand_"
"""What the entries that make weights start with; a dtype or a block type follows."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placed:
    """A weight and its place, in bytes from the start of all weights."""

    name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Piece:
    """Bytes that go to a place on the device; ``copy_to`` puts them into host memory."""

    offset: int
    num_bytes: int
    copy_to: Callable[[NDArray[np.uint8]], None]

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes


def place(artifact: Artifact, names: Iterable[str]) -> tuple[list[Placed], int]:
    """A place for each weight, weights with equal content at the same one; and the end."""
    known: dict[str, int] = {}
    placed, end = [], 0
    for name in names:
        record = artifact.weights[name]
        size = int(str(record["bytes"]))
        content = f"{record.get('blob', f'fill of {name}')} {size} {record.get('expand')}"
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
    in_blocks = [weight for weight in first if artifact.expand(weight.name)]
    plain = [weight for weight in first if weight not in in_blocks]
    pieces = [p for weight in plain for p in _pieces(artifact, weight, fillers, start)]
    _upload(driver, start, pieces)
    pieces += _expand(driver, stream, memory, programs, artifact, in_blocks, start)
    driver.synchronize(stream)
    seconds = time.perf_counter() - began
    num_bytes = sum(piece.num_bytes for piece in pieces)
    _log.info(
        "%s: weights: %.2f GB, %.2f GB from the file at %.2f GB/s, %.2f s",
        driver.where, sum(weight.num_bytes for weight in first) / 1e9, num_bytes / 1e9,
        num_bytes / 1e9 / max(seconds, 1e-9), seconds,
    )  # fmt: skip


def _pieces(artifact: Artifact, weight: Placed, fillers: _Fillers, start: int) -> Iterator[Piece]:
    """What must be copied; a fill that the device can make is queued there instead."""
    fill = artifact.fill(weight.name)
    dtype = str(artifact.weights[weight.name]["dtype"])
    if fill is not None and fillers.can_make(dtype):
        fillers.make(fill, dtype, start + weight.offset, weight.num_bytes)
        return
    if fill is None:
        yield from _cut(weight.offset, artifact, weight.name)
        return
    made = artifact.weight(weight.name)
    for at in range(0, len(made), CHUNK_BYTES):
        part = made[at : at + CHUNK_BYTES]
        yield Piece(weight.offset + at, len(part), functools.partial(_copy, part))


def _cut(offset: int, artifact: Artifact, name: str) -> Iterator[Piece]:
    """The blob of a weight."""
    size = artifact.blob_bytes(name)
    for at in range(0, size, CHUNK_BYTES):
        read = functools.partial(artifact.read_into, name, at)
        yield Piece(offset + at, min(CHUNK_BYTES, size - at), read)


def _copy(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> None:
    target[:] = source


def _expand(
    driver: Driver,
    stream: Handle,
    memory: DeviceMemory,
    programs: Mapping[str, BoundProgram],
    artifact: Artifact,
    weights: Sequence[Placed],
    start: int,
) -> list[Piece]:
    """Make weights of their blocks, which are on the device for that long only; the blocks."""
    offsets, end = [], 0
    for weight in weights:
        offsets.append(end)
        end += aligned(artifact.blob_bytes(weight.name))
    if not end:
        return []
    blocks = memory.allocate(BLOCKS, end)
    pieces = [
        piece
        for weight, offset in zip(weights, offsets, strict=True)
        for piece in _cut(offset, artifact, weight.name)
    ]
    _upload(driver, blocks, pieces)
    kept = [
        launches
        for weight, offset in zip(weights, offsets, strict=True)
        for launches in _expansions(memory, programs, artifact, weight, start, blocks + offset)
    ]
    driver.launch([call for launches in kept for call in launches.calls])
    driver.synchronize(stream)
    memory.free(BLOCKS)
    return pieces


def _expansions(
    memory: DeviceMemory,
    programs: Mapping[str, BoundProgram],
    artifact: Artifact,
    weight: Placed,
    start: int,
    blocks: int,
) -> Iterator[Launches]:
    """The programs ``expand_<type>``: symbol count, input blocks, output weight."""
    address = start + weight.offset
    for part in cast("Expand", artifact.expand(weight.name)).parts:
        if EXPAND + part.type not in programs:
            raise ArtifactError(
                f"{artifact.path}: weight {weight.name}: expected a program"
                f" {EXPAND + part.type!r}, got none (compile the model again)"
            )
        memory.place(("output", "weight"), address, part.elements * ITEM_BYTES)
        given = {"blocks": (blocks + part.offset, part.num_bytes)}
        yield programs[EXPAND + part.type].prepare({"count": part.blocks}, given)
        address += part.elements * ITEM_BYTES


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
    workers = [_Worker(driver, start, size) for _ in range(count)]
    try:
        # Leaving the pool waits for every worker: none still copies when its memory is freed.
        with ThreadPoolExecutor(count, "sglk-upload") as pool:
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
                at = piece.offset - first.offset
                piece.copy_to(pinned.array[at : at + piece.num_bytes])
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
