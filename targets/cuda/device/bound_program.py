"""A program bound to memory and kernels: symbol values become launches that are ready to queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...dim_code import DimExpr, parse
from .driver import Driver, Handle
from .kernel_table import KIND_NAMES, Kernel, KernelTable
from .memory import DeviceMemory, aligned
from .program_code import NUM_SCRATCH_WORDS, BucketCode, Ints, ProgramCode

SCRATCH = ("scratch", "")
MAX_GRID = (2**31 - 1, 65535, 65535)
WORD_BYTES = 8


@dataclass(frozen=True)
class Launches:
    """Calls for one set of sizes, and the arguments that they point to."""

    calls: list[Handle]
    words: Ints
    pointers: NDArray[np.uint64]
    ops: tuple[tuple[str, str], ...]
    """(kernel, op) of each call, for people."""
    entry: str = ""
    places: tuple[int, ...] = ()
    """Of each call among the bucket's, those with an empty grid included."""
    num_places: int = 0


class BoundProgram:
    """One entry point on a device."""

    def __init__(
        self,
        driver: Driver,
        stream: Handle,
        code: ProgramCode,
        kernels: KernelTable,
        memory: DeviceMemory,
        num_pages: int,
    ) -> None:
        self.code = code
        self.entry = code.entry
        self._driver = driver
        self._stream = stream
        self._kernels = kernels
        self._memory = memory
        self._num_pages = num_pages
        self._where = f"{driver.where}: program {code.entry}"
        self._sizes = [parse(text, code.all_symbols) for text in code.sizes]
        self._values = np.zeros(len(code.sizes), np.int64)
        self._open = np.zeros(len(code.sizes), np.bool_)
        for number, size in enumerate(self._sizes):
            if size.symbols <= {"num_pages"}:
                self._values[number] = size.evaluate({"num_pages": num_pages})
            else:
                self._open[number] = True
        self._outputs = {b.name: parse(b.bytes, code.all_symbols) for b in code.outputs}
        kernels.check(code.kernels)

    def bucket(self, num_tokens: int) -> int:
        """Number of the bucket for so many tokens."""
        for number, bucket in enumerate(self.code.buckets):
            if bucket.tokens_max is None or num_tokens <= bucket.tokens_max:
                return number
        raise DeviceError(
            f"{self._where}: expected at most {self.code.buckets[-1].tokens_max} tokens,"
            f" got {num_tokens}"
        )

    def evaluate(self, size: DimExpr, symbols: Mapping[str, int]) -> int:
        """A size for symbol values."""
        return size.evaluate({**symbols, "num_pages": self._num_pages})

    def arena_bytes(self, symbols: Mapping[str, int]) -> int:
        """What intermediate results take."""
        return self.evaluate(self._sizes[self.code.arena_bytes], symbols)

    def output_bytes(self, symbols: Mapping[str, int]) -> dict[str, int]:
        """Bytes of each output by name."""
        return {name: self.evaluate(size, symbols) for name, size in self._outputs.items()}

    def prepare(
        self, symbols: Mapping[str, int], inputs: Mapping[str, tuple[int, int]]
    ) -> Launches:
        """Launches for these symbols; `inputs` has address and bytes of each input by name.

        Memory may move (`DeviceMemory.generation` tells): launches made before are void then.
        """
        bucket = self.code.buckets[self.bucket(symbols.get("tokens", 0))]
        values = self._evaluate(bucket, symbols)
        self._memory.ensure(("arena", ""), self.arena_bytes(symbols))
        grids = self._grids(bucket, values)
        # An empty grid has nothing to do, and the driver would refuse it.
        calls = np.flatnonzero(grids.all(axis=1)).tolist()
        kernels = [self._kernels[self.code.kernels[k]] for k in bucket.calls[calls, 0]]
        self._check_kinds(kernels, [bucket.kinds[call] for call in calls])
        addresses = self._addresses(bucket, values, inputs)
        slots = bucket.slots
        words = addresses[slots[:, 1]] + values[slots[:, 2]] + slots[:, 3]
        self._check_numbers(words[bucket.narrow_slots])
        sizes = grids[calls].tolist()
        words[bucket.ends[calls]] = self._scratch(
            [(k.scratch, k.is_dependent) for k in kernels], sizes
        )
        return self._launches(bucket, calls, kernels, sizes, words)

    def _launches(
        self,
        bucket: BucketCode,
        calls: Sequence[int],
        kernels: Sequence[Kernel],
        grids: Sequence[tuple[int, int, int]],
        words: Ints,
    ) -> Launches:
        pointers = words.ctypes.data + WORD_BYTES * np.arange(len(words), dtype=np.uint64)
        firsts = (pointers.ctypes.data + WORD_BYTES * bucket.calls[calls, 5]).tolist()
        counts = [len(kernel.kinds) + NUM_SCRATCH_WORDS for kernel in kernels]
        prepare, stream = self._driver.prepare, self._stream
        ready = [
            prepare(kernel.function, kernel.grid(*grid), first, count, stream)
            for kernel, grid, first, count in zip(kernels, grids, firsts, counts, strict=True)
        ]
        ops = [self.code.ops[number] for number in bucket.calls[calls, 1]]
        names = tuple((k.symbol, op) for k, op in zip(kernels, ops, strict=True))
        every = (tuple(calls), len(bucket.calls))
        return Launches(ready, words, pointers, names, self.entry, *every)

    def _evaluate(self, bucket: BucketCode, symbols: Mapping[str, int]) -> Ints:
        known = {**symbols, "num_pages": self._num_pages}
        values = self._values.copy()
        for number in bucket.sizes:
            if self._open[number]:
                values[number] = self._sizes[number].evaluate(known)
        return values

    def _grids(self, bucket: BucketCode, values: Ints) -> Ints:
        # Sizes are made for positive symbols: with no rows at all some fall below 0.
        grids = np.maximum(values[bucket.calls[:, 2:5]], 0)
        outside = np.flatnonzero((grids > MAX_GRID).any(axis=1))
        if len(outside):
            kernel = self.code.kernels[bucket.calls[outside[0], 0]]
            raise DeviceError(
                f"{self._where}: kernel {kernel}: expected a grid within {MAX_GRID},"
                f" got {tuple(grids[outside[0]].tolist())} (use smaller steps)"
            )
        return grids

    def _check_kinds(self, kernels: Sequence[Kernel], kinds: Sequence[tuple[int, ...]]) -> None:
        """Refuse calls whose arguments are not what their kernels take."""
        for kernel, given in zip(kernels, kinds, strict=True):
            if kernel.kinds != given:
                wanted, got = ([KIND_NAMES[k] for k in some] for some in (kernel.kinds, given))
                raise ArtifactError(
                    f"{self._where}: kernel {kernel.symbol}: expected arguments {wanted}, got {got}"
                )

    def reserve(self, symbols: Mapping[str, int]) -> None:
        """Make memory large enough for these symbols, loading no kernel."""
        bucket = self.code.buckets[self.bucket(symbols.get("tokens", 0))]
        grids = self._grids(bucket, self._evaluate(bucket, symbols))
        self._memory.ensure(("arena", ""), self.arena_bytes(symbols))
        table = self._kernels
        each = [(table.scratch_bytes(n), table.starts_early(n)) for n in self.code.kernels]
        self._scratch([each[number] for number in bucket.calls[:, 0]], grids.tolist())

    def _scratch(
        self, each: Sequence[tuple[int, bool]], grids: Sequence[tuple[int, int, int]]
    ) -> list[int]:
        """Address of each call's scratch memory; ``each``: bytes per program, whether it is early.

        Kernels that start early may write while several before them still read: those share none.
        One that does not starts when all before it have ended.
        """
        starts: list[int] = []
        sizes: list[int] = []
        end = most = 0
        for (num_bytes, is_early), (x, y, z) in zip(each, grids, strict=True):
            sizes.append(aligned(num_bytes * x * y * z))
            if not is_early and x * y * z:
                end = 0
            starts.append(end)
            end += sizes[-1]
            most = max(most, end)
        if not most:
            return [0] * len(sizes)
        self._memory.ensure(SCRATCH, most)
        base = self._memory.address(SCRATCH)
        return [base + start if size else 0 for start, size in zip(starts, sizes, strict=True)]

    def _addresses(
        self,
        bucket: BucketCode,
        values: Ints,
        inputs: Mapping[str, tuple[int, int]],
    ) -> Ints:
        """Address of each base, once every extent has been found within its memory."""
        addresses = np.zeros(len(self.code.bases), np.int64)
        sizes = np.zeros(len(self.code.bases), np.int64)
        for number, (kind, name) in enumerate(self.code.bases):
            if kind == "input":
                addresses[number], sizes[number] = inputs[name]
            elif kind != "nothing":
                addresses[number] = self._memory.address((kind, name))
                sizes[number] = self._memory.num_bytes((kind, name))
        base, starts, lengths = bucket.extents[:, 0], *values[bucket.extents[:, 1:]].T
        wrong = np.flatnonzero((starts < 0) | (lengths < 0) | (starts + lengths > sizes[base]))
        if len(wrong):
            what = " ".join(self.code.bases[base[wrong[0]]]).strip()
            raise DeviceError(
                f"{self._where}: {what}: expected {starts[wrong[0]]} + {lengths[wrong[0]]} bytes"
                f" within {sizes[base[wrong[0]]]}"
            )
        return addresses

    def _check_numbers(self, numbers: Ints) -> None:
        outside = numbers[(numbers < -(2**31)) | (numbers >= 2**31)]
        if len(outside):
            raise DeviceError(
                f"{self._where}: expected arguments within 32 bits, got {outside[0]}"
                " (use smaller steps)"
            )
