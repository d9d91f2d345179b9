"""A program bound to memory and kernels: symbol values become launches that are ready to queue."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...dim_code import DimExpr, parse
from .driver import Driver, Handle
from .kernel_table import KIND_NAMES, Kernel, KernelTable
from .memory import DeviceMemory, aligned
from .program_code import NOTHING, NUM_SCRATCH_WORDS, BucketCode, CallCode, ProgramCode

SCRATCH = ("scratch", "")
NUM_SCRATCHES = 3
"""Kernels take turns: one that starts early must not write where the one before it still reads."""
MAX_GRID = (2**31 - 1, 65535, 65535)
WORD_BYTES = 8


@dataclass(frozen=True)
class Launches:
    """Calls for one set of sizes, and the arguments that they point to."""

    calls: list[Handle]
    words: NDArray[np.int64]
    pointers: NDArray[np.uint64]
    ops: tuple[tuple[str, str], ...]
    """(kernel, op) of each call, for people."""


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
        self._values = np.zeros(len(code.sizes), np.int64)
        self._open = np.zeros(len(code.sizes), np.bool_)
        for number, size in enumerate(code.sizes):
            if size.symbols <= {"num_pages"}:
                self._values[number] = size.evaluate({"num_pages": num_pages})
            else:
                self._open[number] = True
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
        return self.evaluate(self.code.sizes[self.code.arena_bytes], symbols)

    def output_bytes(self, symbols: Mapping[str, int]) -> dict[str, int]:
        """Bytes of each output by name."""
        all_symbols = (*self.code.own_symbols, "num_pages")
        return {
            buffer.name: self.evaluate(parse(buffer.bytes, all_symbols), symbols)
            for buffer in self.code.outputs
        }

    def prepare(
        self, symbols: Mapping[str, int], inputs: Mapping[str, tuple[int, int]]
    ) -> Launches:
        """Launches for these symbols; `inputs` has address and bytes of each input by name.

        Memory may move (`DeviceMemory.generation` tells): launches made before are void then.
        """
        bucket = self.code.buckets[self.bucket(symbols.get("tokens", 0))]
        values = self._evaluate(bucket, symbols)
        self._memory.ensure(("arena", ""), self.arena_bytes(symbols))
        grids = [self._grid(call, values) for call in bucket.calls]
        kernels = [self._kernel(call) for call in bucket.calls]
        scratch = self._scratch(kernels, grids)
        addresses = self._addresses(bucket, values, inputs)
        words = addresses[bucket.slot_bases] + values[bucket.slot_sizes] + bucket.slot_words
        self._check_numbers(bucket, words)
        pointers = np.arange(len(words), dtype=np.uint64) * np.uint64(WORD_BYTES)
        pointers += np.uint64(words.ctypes.data)
        start = int(pointers.ctypes.data)
        calls = []
        ops = []
        for call, kernel, grid, (address, _) in zip(
            bucket.calls, kernels, grids, scratch, strict=True
        ):
            if not all(grid):
                continue  # nothing to do, which the driver would refuse
            words[call.end_slot] = address
            calls.append(
                self._driver.prepare(
                    kernel.function,
                    kernel.grid(*grid),
                    start + WORD_BYTES * call.first_slot,
                    len(call.kinds) + NUM_SCRATCH_WORDS,
                    self._stream,
                )
            )
            ops.append((call.kernel, call.op))
        return Launches(calls, words, pointers, tuple(ops))

    def _evaluate(self, bucket: BucketCode, symbols: Mapping[str, int]) -> NDArray[np.int64]:
        known = {**symbols, "num_pages": self._num_pages}
        values = self._values.copy()
        for number in bucket.sizes:
            if self._open[number]:
                values[number] = self.code.sizes[number].evaluate(known)
        return values

    def _grid(self, call: CallCode, values: NDArray[np.int64]) -> tuple[int, int, int]:
        x, y, z = (int(values[number]) for number in call.grid)
        limits = zip((x, y, z), MAX_GRID, strict=True)
        if not all(0 <= extent <= limit for extent, limit in limits):
            raise DeviceError(
                f"{self._where}: kernel {call.kernel}: expected a grid within {MAX_GRID},"
                f" got {(x, y, z)} (use smaller steps)"
            )
        return x, y, z

    def _kernel(self, call: CallCode) -> Kernel:
        kernel = self._kernels[call.kernel]
        if kernel.kinds != call.kinds:
            wanted, got = ([KIND_NAMES[k] for k in kinds] for kinds in (kernel.kinds, call.kinds))
            raise ArtifactError(
                f"{self._where}: kernel {call.kernel}: expected arguments {wanted}, got {got}"
            )
        return kernel

    def _scratch(
        self, kernels: Sequence[Kernel], grids: Sequence[tuple[int, int, int]]
    ) -> list[tuple[int, int]]:
        """Address and bytes of each call's scratch memory; address 0 where it needs none."""
        sizes = [
            aligned(kernel.scratch_bytes * kernel.num_ctas * x * y * z)
            for kernel, (x, y, z) in zip(kernels, grids, strict=True)
        ]
        largest = max(sizes, default=0)
        if not largest:
            return [(0, 0)] * len(sizes)
        self._memory.ensure(SCRATCH, NUM_SCRATCHES * largest)
        start = self._memory.address(SCRATCH)
        turns = itertools.cycle(range(start, start + NUM_SCRATCHES * largest, largest))
        return [(next(turns), size) if size else (0, 0) for size in sizes]

    def _addresses(
        self,
        bucket: BucketCode,
        values: NDArray[np.int64],
        inputs: Mapping[str, tuple[int, int]],
    ) -> NDArray[np.int64]:
        """Address of each base, once every extent has been found within its memory."""
        addresses = np.zeros(len(self.code.bases), np.int64)
        sizes = np.zeros(len(self.code.bases), np.int64)
        for number, (kind, name) in enumerate(self.code.bases):
            if kind == "input":
                addresses[number], sizes[number] = inputs[name]
            elif kind != "nothing":
                addresses[number] = self._memory.address((kind, name))
                sizes[number] = self._memory.num_bytes((kind, name))
        for extent in bucket.extents:
            start, length = int(values[extent.offset]), int(values[extent.length])
            if start < 0 or length < 0 or start + length > sizes[extent.base]:
                what = " ".join(self.code.bases[extent.base]).strip()
                raise DeviceError(
                    f"{self._where}: {what}: expected {start} + {length} bytes within"
                    f" {sizes[extent.base]}"
                )
        assert addresses[NOTHING] == 0
        return addresses

    def _check_numbers(self, bucket: BucketCode, words: NDArray[np.int64]) -> None:
        numbers = words[bucket.narrow_slots]
        outside = numbers[(numbers < -(2**31)) | (numbers >= 2**31)]
        if len(outside):
            raise DeviceError(
                f"{self._where}: expected arguments within 32 bits, got {outside[0]}"
                " (use smaller steps)"
            )
