"""Times of the ways to compute products that a compile kept beside each other, on this GPU.

Each way runs as it does in a step: in a graph of launches that may overlap, on weights that no
cache holds (copies of them in turn). A way whose result is not that of most others is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...artifact import Artifact
from ...artifact.kernel_pack import read_pack
from ...artifact.schema import as_dict, as_int, as_list, as_record, as_text, load_json
from ...dim_code import parse
from .arch import best_of
from .bound_program import BoundProgram, Launches
from .driver import Driver, Handle
from .kernel_table import KernelTable
from .memory import DeviceMemory, aligned
from .plan_file import from_bytes
from .program_code import ProgramCode
from .reader import BOUNCE_BYTES, Reader

Progress = Callable[[str, int, int], None]
FOLDER = "candidates"
LISTING = f"{FOLDER}/listing.json"
FORMAT = 1
"""Of the listing, and of the tuning file that is made of it."""
POOL_BYTES = 512 << 20
"""Several times the cache of any chip."""
MOST_COPIES, LEAST_LAUNCHES = 16, 8
"""Of a weight, and in a graph."""
LEAST_ROUNDS, MOST_ROUNDS, ENOUGH_MS = 3, 9, 30.0
WARM_MS = 300.0
"""Until clocks are up."""
REST_S = 5e-3
"""Before each round: at its limit of power a chip is slower, the more the longer it works."""
SAMPLE_BYTES = 256 << 10
"""Of each result, compared with the others'."""
MOST_DIFFERENCE = 2e-2
"""Relative L2: sums in another order, rounded to bf16."""


@dataclass(frozen=True)
class Candidate:
    """One way: its launches, the bytes of its weights, and what the file will say of it."""

    code: ProgramCode
    weights: Mapping[str, int]
    skipped: int
    """Launches before the product's own, which only make its rows."""
    record: Mapping[str, object]

    @property
    def product(self) -> tuple[object, ...]:
        """What results must agree on."""
        names = ("form", "n", "k", "gated", "m", "x")
        return tuple(self.record.get(name, "bf16") for name in names)

    @property
    def way(self) -> str:
        """For people."""
        r = self.record
        tile = " ".join(f"{k}={v}" for k, v in cast("dict[str, int]", r["constants"]).items())
        return f"{r['kernel']} {tile} num_warps={r['num_warps']} num_stages={r['num_stages']}"


@dataclass
class Timed:
    """A candidate's time and the start of its result, or why it has none."""

    candidate: Candidate
    us: float = 0.0
    sample: NDArray[np.float32] | None = None
    reason: str = ""


def tune(
    driver: Driver, artifact: Artifact, progress: Progress, rows: Collection[int] = ()
) -> tuple[dict[str, object], int]:
    """A tuning file's content, and how many ways were left out; ``rows``: see `Tunes`."""
    found, arch = read_listing(artifact)
    if arch != driver.chip.arch:
        raise ArtifactError(
            f"{artifact.path}: expected candidates for {driver.chip.arch} ({driver.chip.name}),"
            f" got those for {arch} (compile with --target cuda:{driver.chip.arch.replace('_', '')}"
            " --candidates)"
        )
    if rows:
        found = _of_rows(found, rows, str(artifact.path))
    with _Bench.opened(driver, artifact, found) as bench:
        timed = []
        for number, candidate in enumerate(found):
            timed.append(bench.measure(candidate))
            progress("measuring candidates", number + 1, len(found))
    good = list(agreeing(timed))
    records = sorted((_record(each) for each in good), key=_order)
    content: dict[str, object] = {"format": FORMAT, "arch": arch, "chip": driver.chip.name}
    return content | {"linear": records, "normed": []}, len(timed) - len(good)


def _of_rows(found: Sequence[Candidate], rows: Collection[int], where: str) -> list[Candidate]:
    """Candidates of so many rows."""
    counts = {int(str(each.record["m"])) for each in found}
    if missing := sorted(set(rows) - counts):
        raise ArtifactError(
            f"{where}: expected rows among {sorted(counts)}, got {missing[0]} (choose one of those)"
        )
    return [each for each in found if each.record["m"] in rows]


def _record(timed: Timed) -> dict[str, object]:
    return {**timed.candidate.record, "us": round(timed.us, 3)}


def _order(record: Mapping[str, object]) -> tuple[object, ...]:
    sizes = tuple(int(str(record[name])) for name in ("n", "k", "gated", "m"))
    return (str(record.get("form", "")), *sizes, float(str(record["us"])))


def read_listing(artifact: Artifact) -> tuple[list[Candidate], str]:
    """All candidates of an artifact, and the arch that they are for."""
    if LISTING not in artifact.names:
        raise ArtifactError(
            f"{artifact.path}: expected candidates to measure, got none (compile with --candidates)"
        )
    where = f"{artifact.path}: {LISTING}"
    content = as_record(where, load_json(where, artifact.read(LISTING)), ["format"], None)
    if content["format"] != FORMAT:
        raise ArtifactError(
            f"{where}: expected format {FORMAT}, got {content['format']} (compile again)"
        )
    listed = as_list(f"{where}: candidates", content.get("candidates"))
    arch = as_text(f"{where}: arch", content.get("arch"))
    return [_candidate(artifact, f"{where}: {i}", each) for i, each in enumerate(listed)], arch


def _candidate(artifact: Artifact, where: str, value: object) -> Candidate:
    each = as_record(where, value, ["plan", "weights", "skipped", "record"], None)
    member = as_text(f"{where}: plan", each["plan"], limit=255)
    return Candidate(
        code=from_bytes(artifact.view(member), f"{artifact.path}: {member}"),
        weights={
            name: as_int(f"{where}: {name}", size)
            for name, size in as_dict(f"{where}: weights", each["weights"]).items()
        },
        skipped=as_int(f"{where}: skipped", each["skipped"]),
        record=as_dict(f"{where}: record", each["record"]),
    )


def agreeing(timed: Sequence[Timed]) -> Iterator[Timed]:
    """Those whose results are like those of most others of their product."""
    for _, group in itertools.groupby(timed, key=lambda each: each.candidate.product):
        samples = [(each, each.sample) for each in group if each.sample is not None]
        near = [[_is_near(one, other) for _, other in samples] for _, one in samples]
        best = max(near, key=sum, default=[])
        yield from (each for (each, _), is_good in zip(samples, best, strict=True) if is_good)


def _is_near(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    distance = float(np.linalg.norm(one - other))
    return distance <= MOST_DIFFERENCE * float(np.linalg.norm(one))  # with a NaN: no


class _Bench:
    """Memory for the largest candidate, full of random numbers, and what runs them."""

    def __init__(
        self, driver: Driver, memory: DeviceMemory, reader: Reader, kernels: KernelTable
    ) -> None:
        self._driver = driver
        self._memory = memory
        self._reader = reader
        self._kernels = kernels
        self._stream = driver.make_stream()
        self._events = [driver.make_event(has_time=True) for _ in range(2)]
        self._is_warm = False

    @staticmethod
    @contextlib.contextmanager
    def opened(driver: Driver, artifact: Artifact, found: Sequence[Candidate]) -> Iterator[_Bench]:
        members = {f"{FOLDER}/{isa}.pack": isa for isa in _isas(artifact)}
        isa = best_of(list(members.values()), driver.chip.capability)
        member = f"{FOLDER}/{isa}.pack"
        if member not in members:
            raise ArtifactError(f"{artifact.path}: expected {member}, got {sorted(members)}")
        pack = read_pack(artifact.view(member), f"{artifact.path}: {member}")
        with contextlib.ExitStack() as closing:
            stream = driver.make_stream()
            closing.callback(driver.free_stream, stream)
            memory, reader = DeviceMemory(driver, stream), Reader(driver, stream)
            closing.callback(memory.close)
            closing.callback(reader.close)
            bench = _Bench(driver, memory, reader, KernelTable(driver, pack, member))
            closing.callback(bench.close)
            bench.fill(found)
            yield bench

    def close(self) -> None:
        for event in self._events:
            self._driver.free_event(event)
        self._driver.free_stream(self._stream)

    def fill(self, found: Sequence[Candidate]) -> None:
        """Allocate what all candidates need; weights and inputs become random, states zero."""
        sizes: dict[tuple[str, str], int] = {}
        for each in found:
            weights = sum(map(aligned, each.weights.values()))
            sizes["pool", ""] = max(sizes.get(("pool", ""), POOL_BYTES), 2 * weights)
            for kind in ("inputs", "outputs", "states"):
                for buffer in getattr(each.code, kind):
                    key = (kind[:-1], buffer.name)
                    size = parse(buffer.bytes, ["num_pages"]).evaluate({"num_pages": 1})
                    sizes[key] = max(sizes.get(key, 0), size)
        noise = random_bf16(BOUNCE_BYTES)
        for key, size in sizes.items():
            address = self._memory.allocate(key, aligned(size))
            if key[0] in ("pool", "input"):
                for at in range(0, size, len(noise)):
                    self._reader.write(address + at, noise[: size - at])
            else:
                self._driver.set_bytes(address, 0, aligned(size), self._stream)
        self._driver.synchronize(self._stream)

    def measure(self, candidate: Candidate) -> Timed:
        """Its time and result; a kernel that this GPU refuses to load has neither."""
        try:
            launches = self._launches(candidate)
        except DeviceError as error:
            return Timed(candidate, reason=str(error))
        output = ("output", candidate.code.outputs[0].name)
        address, size = self._memory.address(output), _size(candidate.code.outputs[0].bytes)
        self._driver.set_bytes(address, 0xFF, size, self._stream)  # NaN, as bf16
        self._driver.launch(launches[0].calls)
        self._driver.synchronize(self._stream)
        sample = self._reader.read(address, min(size, SAMPLE_BYTES)).view(np.uint16)
        floats = (sample.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return Timed(candidate, self._time(candidate, launches), floats)

    def _launches(self, candidate: Candidate) -> list[Launches]:
        """The same on copies of the weights."""
        program = BoundProgram(
            self._driver, self._stream, candidate.code, self._kernels, self._memory, num_pages=1
        )
        program.reserve({})  # memory must not move between the copies
        inputs = {
            buffer.name: (self._memory.address(key), self._memory.num_bytes(key))
            for buffer in candidate.code.inputs
            for key in [("input", buffer.name)]
        }
        each = sum(map(aligned, candidate.weights.values()))
        copies = min(MOST_COPIES, self._memory.num_bytes(("pool", "")) // each)
        made = []
        for number in range(copies):
            at = self._memory.address(("pool", "")) + number * each
            for name, size in candidate.weights.items():
                self._memory.place(("weight", name), at, size)
                at += aligned(size)
            made.append(program.prepare({}, inputs))
        return made

    def _time(self, candidate: Candidate, launches: Sequence[Launches]) -> float:
        """Median µs of a launch in a graph."""
        count = max(LEAST_LAUNCHES, len(launches))
        turns = itertools.islice(itertools.cycle(launches), count)
        calls = [call for each in turns for call in each.calls[candidate.skipped :]]
        self._driver.begin_capture(self._stream)
        try:
            self._driver.launch(calls)
        except BaseException:
            self._driver.abandon_capture(self._stream)
            raise
        graph = self._driver.end_capture(self._stream)
        try:
            times = list(self._rounds(graph))
        finally:
            self._driver.free_graph(graph)
        return statistics.median(times) * 1e3 / count

    def _rounds(self, graph: Handle) -> Iterator[float]:
        """Milliseconds of each round but the first ones."""
        spent = self._round(graph, 0.0)
        while not self._is_warm and 0 < spent < WARM_MS:
            spent += self._round(graph, 0.0)
        self._is_warm, spent = True, 0.0
        for number in range(MOST_ROUNDS):
            if number >= LEAST_ROUNDS and spent > ENOUGH_MS:
                return
            spent += (took := self._round(graph, REST_S))
            yield took

    def _round(self, graph: Handle, rest_s: float) -> float:
        start, end = self._events
        time.sleep(rest_s)
        self._driver.launch_graph(graph, self._stream)  # or the start would wait for the host
        self._driver.record(start, self._stream)
        self._driver.launch_graph(graph, self._stream)
        self._driver.record(end, self._stream)
        return self._driver.milliseconds(start, end)


def _isas(artifact: Artifact) -> list[str]:
    names = (name for name in artifact.names if name.startswith(f"{FOLDER}/"))
    return [n.rpartition("/")[2].removesuffix(".pack") for n in names if n.endswith(".pack")]


def _size(text: str) -> int:
    return parse(text, []).evaluate({})


def random_bf16(num_bytes: int) -> NDArray[np.uint8]:
    """Numbers from -1 to 1, whose bytes are finite numbers of every other type too."""
    floats = np.random.default_rng(0).uniform(-1, 1, num_bytes // 2).astype(np.float32)
    bits = (floats.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return (bits & np.uint16(0xFFF7)).view(np.uint8)  # 0x7F and 0xFF are NaN in e4m3
