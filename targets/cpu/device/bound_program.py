"""A program bound to memory: one native call runs all its kernels."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from ...artifact import Buffer
from ...artifact.border_types import BORDER_TYPES
from ...dim_code import DimExpr, parse
from .host_calls import HostCalls
from .library import ARENA_TOO_SMALL, OK, Library, Step
from .memory import Memory
from .plan_code import ARENA, PlanCode

Array = NDArray[np.generic]


@dataclasses.dataclass(frozen=True)
class CallTime:
    """Where the time of a step goes: one call of one bucket."""

    bucket: int
    kernel: str
    op: str
    nanoseconds: int


@dataclasses.dataclass(frozen=True)
class Border:
    """An input or output: where it is in the plan, its type and sizes."""

    name: str
    base: int
    dtype: np.dtype[np.generic]
    shape: tuple[DimExpr, ...]

    def extents(self, symbols: Mapping[str, int]) -> tuple[int, ...]:
        """The shape for known symbols."""
        return tuple(dim.evaluate(symbols) for dim in self.shape)


class BoundProgram:
    """One entry point with its plan, and the addresses of everything its kernels touch."""

    def __init__(
        self,
        code: PlanCode,
        library: Library,
        arena: Memory,
        regions: Mapping[tuple[str, str], NDArray[np.uint8]],
        num_pages: int,
        host: HostCalls | None = None,
        num_slots: int = 0,
    ) -> None:
        self._host = host
        self.entry = code.entry
        self.symbols = code.symbols
        self.own_symbols = code.own_symbols
        self._load_sizes = {"num_pages": num_pages, "num_slots": num_slots}
        self._known_at_load = [self._load_sizes[s] for s in code.symbols[len(code.own_symbols) :]]
        self._code = code
        self._library = library
        self._arena = arena
        self._regions = regions  # keeps the memory alive
        self._numbers = {base: index for index, base in enumerate(self._code.bases)}
        self._bases = np.zeros(len(self._numbers), np.int64)
        self._sizes = np.zeros(len(self._numbers), np.int64)
        for base, region in regions.items():
            if base in self._numbers:
                self.point(self._numbers[base], region.ctypes.data, region.nbytes)
        self.inputs = {b.name: self._border(b) for b in code.inputs}
        self.outputs = {b.name: self._border(b) for b in code.outputs}
        self._memories = {name: Memory(f"output {name}") for name in self.outputs}
        self._values = np.zeros(max(1, len(self.symbols)), np.int64)
        self._times = np.zeros((0, 0), np.int64)
        self._scratch = np.zeros(0, np.int64)
        self.plan = library.create_plan(self._code, host.addresses if host else {})
        self._step = Step()
        self._step.symbols = self._values.ctypes.data
        self._step.bases = self._bases.ctypes.data
        self._step.sizes = self._sizes.ctypes.data
        self._reference = ctypes.byref(self._step)

    def _border(self, buffer: Buffer) -> Border:
        if buffer.dtype not in BORDER_TYPES:
            raise DeviceError(
                f"cpu: {buffer.kind} {buffer.name}: expected a type of {sorted(BORDER_TYPES)},"
                f" got {buffer.dtype}"
            )
        shape = tuple(parse(text, self.symbols) for text in buffer.shape)
        number = self._numbers[buffer.kind, buffer.name]
        return Border(buffer.name, number, BORDER_TYPES[buffer.dtype], shape)

    def input_base(self, name: str) -> int:
        """The number of an input's memory; -1 when the program has no such input."""
        return self.inputs[name].base if name in self.inputs else -1

    def point(self, base: int, address: int, size: int) -> None:
        """Where a memory region is from now on."""
        self._bases[base] = address
        self._sizes[base] = size

    @property
    def output_bytes(self) -> int:
        """Memory that the outputs hold."""
        return sum(memory.num_bytes for memory in self._memories.values())

    def bind(self, border: Border, array: Array) -> None:
        """Let the kernels read `array`, whose type and layout are checked, not its shape."""
        if array.dtype != border.dtype or not array.flags.c_contiguous:
            raise DeviceError(
                f"cpu: input {border.name}: expected a contiguous array of {border.dtype},"
                f" got {array.dtype} with strides {array.strides}"
            )
        self.point(border.base, array.__array_interface__["data"][0], array.nbytes)

    def run(self, pool: int, values: Sequence[int]) -> None:
        """Run all kernels for symbol values in the program's order (those of load excluded)."""
        self._values[: len(values)] = values
        self._values[len(values) : len(self.symbols)] = self._known_at_load
        self.point(ARENA, self._arena.address, self._arena.num_bytes)
        result = self._library.plan_run(pool, self.plan, self._reference)
        if result == ARENA_TOO_SMALL:
            self._arena.ensure(self._step.arena_needed)
            self.point(ARENA, self._arena.address, self._arena.num_bytes)
            result = self._library.plan_run(pool, self.plan, self._reference)
        if result != OK:
            known = dict(zip(self.symbols, self._values.tolist(), strict=False))
            message = self._step.message.decode()
            raise DeviceError(f"cpu: program {self.entry}: {message} (with {known})")
        if self._host is not None:
            self._host.raise_failure()
        if self._scratch.size:
            self._times[self._step.bucket] += self._scratch
            self._scratch[:] = 0

    def output(self, border: Border, extents: tuple[int, ...]) -> Array:
        """Memory for an output of this shape, as the view that the kernels will fill."""
        count = 1
        for extent in extents:
            count *= extent
        size = count * border.dtype.itemsize
        memory = self._memories[border.name]
        memory.ensure(size)
        self.point(border.base, memory.address, size)
        return memory.array[:size].view(border.dtype).reshape(extents)

    def run_named(self, pool: int, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run on inputs by name; symbols come from their shapes. Outputs are copies."""
        if set(inputs) != set(self.inputs):
            raise DeviceError(
                f"cpu: program {self.entry}: expected inputs {sorted(self.inputs)},"
                f" got {sorted(inputs)}"
            )
        symbols = self.bind_shapes(inputs)
        for name, array in inputs.items():
            self.bind(self.inputs[name], array)
        views = {n: self.output(b, b.extents(symbols)) for n, b in self.outputs.items()}
        self.run(pool, [symbols[name] for name in self.own_symbols])
        return {name: view.copy() for name, view in views.items()}

    def bind_shapes(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Symbol values that the shapes of the inputs give; every shape is checked."""
        symbols = dict(self._load_sizes)
        for name, border in self.inputs.items():
            for dim, extent in zip(border.shape, inputs[name].shape, strict=False):
                if len(dim.code) == 1 and dim.symbols:
                    symbols.setdefault(str(dim), extent)
        missing = [name for name in self.own_symbols if name not in symbols]
        if missing:
            raise DeviceError(f"cpu: program {self.entry}: no input's shape gives {missing[0]}")
        for name, border in self.inputs.items():
            if border.extents(symbols) != inputs[name].shape:
                raise DeviceError(
                    f"cpu: input {name}: expected shape {border.extents(symbols)},"
                    f" got {inputs[name].shape}"
                )
        return symbols

    def start_profile(self) -> None:
        """From now on, time every call."""
        largest = max(map(len, self._code.calls))
        self._times = np.zeros((len(self._code.calls), largest), np.int64)
        self._scratch = np.zeros(largest, np.int64)
        self._step.nanoseconds = self._scratch.ctypes.data

    def profile(self) -> list[CallTime]:
        """Time of each call since `start_profile`, in the order of the program."""
        return [
            CallTime(number, kernel, op, int(self._times[number, index]))
            for number, calls in enumerate(self._code.calls)
            for index, (kernel, op) in enumerate(calls)
            if self._times.size
        ]
