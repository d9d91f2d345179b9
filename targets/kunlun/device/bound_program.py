"""A program with its memory on the device: inputs go there, kernels run, outputs come back."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from ...artifact import Buffer, Program
from ...artifact.border_types import BORDER_TYPES
from ...artifact.host_ops import HostOps
from .launch_list import LaunchList, Region
from .player import Player
from .vendor import VendorAdapter
from .xpu import LoadedKernel, Xpu

Array = NDArray[Any]
DTYPES = {
    name: BORDER_TYPES[name]
    for name in ("f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool")
}
ALIGN = 128
"""Bytes; where inputs and outputs start in their block."""


class Block:
    """Device memory that grows, and as much host memory beside it."""

    def __init__(self, xpu: Xpu) -> None:
        self._xpu = xpu
        self.address = 0
        self.host = np.zeros(0, np.uint8)

    def ensure(self, num_bytes: int, with_host: bool = True) -> None:
        """Make room; what was inside is lost."""
        if self.address and num_bytes <= self.num_bytes:
            return
        size = max(4096, num_bytes + num_bytes // 4)
        if self.address:
            self._xpu.free(self.address)
        self.address = 0
        self.address = self._xpu.allocate(size)
        self.num_bytes = size
        if with_host:
            self.host = self._xpu.host_array(size)
            self.host[:] = 0

    num_bytes = 0


class BoundProgram:
    """One entry point of an artifact on a device."""

    def __init__(
        self,
        program: Program,
        xpu: Xpu,
        kernels: Mapping[str, LoadedKernel],
        regions: Mapping[tuple[str, str], Region],
        arena: Block,
        num_pages: int,
        player: Player | None = None,
        host: HostOps | None = None,
        vendor: VendorAdapter | None = None,
    ) -> None:
        self.program = program
        self._xpu = xpu
        self._fixed = dict(regions)
        self._arena = arena
        self.launches = LaunchList(program, xpu, kernels, num_pages, player, host, vendor)
        self._inputs, self._outputs = Block(xpu), Block(xpu)
        for buffer in (*program.inputs, *program.outputs):
            if buffer.dtype not in DTYPES:
                raise DeviceError(
                    f"kunlun: {buffer.kind} {buffer.name}: expected a type of {sorted(DTYPES)},"
                    f" got {buffer.dtype}"
                )

    def symbols_of(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Symbol values that the shapes of the inputs give; every shape and type is checked."""
        wanted = {buffer.name: buffer for buffer in self.program.inputs}
        if set(inputs) != set(wanted):
            raise DeviceError(
                f"kunlun: program {self.program.entry}: expected inputs {sorted(wanted)},"
                f" got {sorted(inputs)}"
            )
        symbols: dict[str, int] = {}
        for name, buffer in wanted.items():
            for dim, extent in zip(buffer.shape, inputs[name].shape, strict=False):
                if dim in self.program.symbols:
                    symbols.setdefault(dim, extent)
        missing = [name for name in self.program.symbols if name not in symbols]
        if missing and missing != ["num_pages"]:
            raise DeviceError(
                f"kunlun: program {self.program.entry}: no input's shape gives {missing[0]}"
            )
        for name, buffer in wanted.items():
            self._check_input(buffer, inputs[name], symbols)
        return symbols

    def _check_input(self, buffer: Buffer, array: Array, symbols: Mapping[str, int]) -> None:
        shape = tuple(self.launches.size(dim, symbols) for dim in buffer.shape)
        wanted = DTYPES[buffer.dtype]
        if array.shape != shape or array.dtype != wanted or not array.flags.c_contiguous:
            raise DeviceError(
                f"kunlun: input {buffer.name}: expected contiguous {wanted} of shape {shape},"
                f" got {array.dtype} of shape {array.shape}"
            )

    def run(self, inputs: Mapping[str, Array], symbols: Mapping[str, int]) -> dict[str, Array]:
        """Run on arrays whose shapes gave `symbols`; outputs are views until the next run."""
        self._xpu.activate()
        regions = dict(self._fixed)
        self._arena.ensure(self.launches.arena_bytes(symbols), with_host=False)
        regions["arena", ""] = (self._arena.address, self._arena.num_bytes)
        places = self._place(self.program.inputs, self._inputs, symbols, regions)
        outputs = self._place(self.program.outputs, self._outputs, symbols, regions)
        launches = self.launches.resolve(symbols, regions)  # before anything is queued
        used = 0
        for buffer in self.program.inputs:
            at = places[buffer.name]
            plain = np.ascontiguousarray(inputs[buffer.name]).reshape(-1).view(np.uint8)
            self._inputs.host[at : at + len(plain)] = plain
            used = max(used, at + len(plain))
        if used:
            self._xpu.upload_async(self._inputs.address, self._inputs.host[:used])
        self.launches.run(launches)
        return self._read(outputs, symbols)

    def _read(self, places: Mapping[str, int], symbols: Mapping[str, int]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for buffer in self.program.outputs:
            shape = tuple(self.launches.size(dim, symbols) for dim in buffer.shape)
            dtype, at = DTYPES[buffer.dtype], places[buffer.name]
            view = self._outputs.host[at : at + int(np.prod(shape)) * dtype.itemsize]
            if len(view):
                self._xpu.download_async(view, self._outputs.address + at)
            found[buffer.name] = view.view(dtype).reshape(shape)
        self._xpu.wait()
        return found

    def _place(
        self,
        buffers: tuple[Buffer, ...],
        block: Block,
        symbols: Mapping[str, int],
        regions: dict[tuple[str, str], Region],
    ) -> dict[str, int]:
        """Offsets of buffers in their block, noted as regions."""
        places, at = collections.OrderedDict[str, int](), 0
        sizes = {b.name: self.launches.size(b.bytes, symbols) for b in buffers}
        for name, size in sizes.items():
            places[name] = at
            at += -(-size // ALIGN) * ALIGN
        block.ensure(at)
        for buffer in buffers:
            place = places[buffer.name]
            regions[buffer.kind, buffer.name] = (block.address + place, sizes[buffer.name])
        return places
