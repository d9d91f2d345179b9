"""From a `Program` and the sizes of a step to launches with ready parameter blocks.

A step of sizes that were seen before costs no arithmetic: one call of the artifact's player, or,
where an artifact has none, three calls of the runtime per kernel. Ops that the host does split a
step: the stream is waited for, operands are copied here and results back.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...artifact import Arg, Bucket, Buffer, Call, Program
from ...artifact.host_ops import HostOps, SizedOp
from ...dim_code import DimExpr, parse
from .player import LAUNCH, Player
from .vendor import PREFIX, VendorAdapter, slots_of
from .xpu import LoadedKernel, Xpu, parameter_block

KEPT = 64
"""Sizes of steps whose launches are remembered."""
Region = tuple[int, int]
"""Address and bytes."""


@dataclass(frozen=True)
class Launches:
    """The kernels of a step, ready to go: a row of `LAUNCH` each, and their parameters."""

    rows: NDArray[np.void]
    blocks: NDArray[np.uint8]

    @staticmethod
    def of(ready: list[tuple[LoadedKernel, int, int, bytes]]) -> Launches:
        """From kernel, clusters, cores and parameter block of each."""
        rows: list[tuple[int, int, int, int, int]] = []
        at = 0
        for kernel, clusters, cores, block in ready:
            rows.append((kernel.handle, at, len(block), clusters, cores))
            at += len(block)
        joined = b"".join(block for *_, block in ready)
        return Launches(np.array(rows, LAUNCH), np.frombuffer(joined or b"\0", np.uint8))


@dataclass(frozen=True)
class HostCall:
    """An op of known sizes, and where its operands and results are on the device."""

    op: SizedOp
    addresses: tuple[int, ...]


@dataclass(frozen=True)
class VendorCall:
    """A call of the vendor's adapter."""

    name: bytes
    slots: NDArray[np.int64]


Part = Launches | HostCall | VendorCall


class LaunchList:
    """The launches of one program on one device."""

    def __init__(
        self,
        program: Program,
        xpu: Xpu,
        kernels: Mapping[str, LoadedKernel],
        num_pages: int,
        player: Player | None = None,
        host: HostOps | None = None,
        vendor: VendorAdapter | None = None,
    ) -> None:
        self._vendor = vendor
        self.program = program
        self._xpu = xpu
        self._host = host or HostOps(program.entry, {})
        self._player = player
        self._kernels = kernels
        self._num_pages = num_pages
        self._dims: dict[str, DimExpr] = {}
        self._temps = {buffer.name: buffer for buffer in program.temps}
        self._ready = collections.OrderedDict[tuple[object, ...], list[Part]]()

    def size(self, text: str, symbols: Mapping[str, int]) -> int:
        """The value of a size."""
        dim = self._dims.get(text)
        if dim is None:
            dim = self._dims[text] = parse(text, self.program.all_symbols)
        return dim.evaluate({"num_pages": self._num_pages, **symbols})

    def arena_bytes(self, symbols: Mapping[str, int]) -> int:
        """Memory for intermediate results."""
        return self.size(self.program.arena_bytes, symbols)

    def bucket(self, symbols: Mapping[str, int]) -> Bucket:
        """The calls for so many tokens."""
        tokens = symbols.get("tokens", 0)
        for bucket in self.program.buckets:
            if bucket.tokens_max is None or tokens <= bucket.tokens_max:
                return bucket
        most = self.program.buckets[-1].tokens_max
        raise DeviceError(
            f"kunlun: program {self.program.entry}: expected at most {most} tokens, got {tokens}"
        )

    def resolve(
        self, symbols: Mapping[str, int], regions: Mapping[tuple[str, str], Region]
    ) -> list[Part]:
        """Launches for these sizes and places of memory, made once and kept."""
        places = tuple(regions[key] for key in regions if key[0] in ("arena", "input", "output"))
        key = (tuple(symbols.values()), places)
        found = self._ready.get(key)
        if found is None:
            bucket = self.bucket(symbols)
            self._check_extents(bucket, symbols, regions)
            found = self._ready[key] = self._parts(bucket, symbols, regions)
            if len(self._ready) > KEPT:
                self._ready.popitem(last=False)
        return found

    def _parts(
        self, bucket: Bucket, symbols: Mapping[str, int], regions: Mapping[tuple[str, str], Region]
    ) -> list[Part]:
        """Runs of launches, and between them what the host does."""
        parts: list[Part] = []
        ready: list[tuple[LoadedKernel, int, int, bytes]] = []
        for call in bucket.calls:
            if call.kernel in self._kernels:
                ready += self._call(call, symbols, regions)
                continue
            make = self._host_call if call.kernel in self._host else self._vendor_call
            parts += [Launches.of(ready), make(call, symbols, regions)]
            ready = []
        return [*parts, Launches.of(ready)]

    def _vendor_call(
        self, call: Call, symbols: Mapping[str, int], regions: Mapping[tuple[str, str], Region]
    ) -> VendorCall:
        values = [self._argument(arg, symbols, regions) for arg in call.args]
        slots = slots_of(values, (arg.kind for arg in call.args))
        return VendorCall(call.kernel.removeprefix(PREFIX).encode(), slots)

    def _host_call(
        self, call: Call, symbols: Mapping[str, int], regions: Mapping[tuple[str, str], Region]
    ) -> HostCall:
        values = [int(self._argument(arg, symbols, regions)) for arg in call.args]
        pointers = self._host.ops[call.kernel].num_pointers
        sized = self._host.sized(call.kernel, values[pointers:])
        return HostCall(sized, tuple(values[:pointers]))

    def run(self, parts: Sequence[Part]) -> None:
        """Queue all of them; the host's are done at once."""
        for part in parts:
            if isinstance(part, Launches):
                self._launch(part)
            elif isinstance(part, HostCall):
                self._compute(part)
            elif self._vendor is not None:
                self._vendor.call(part.name, part.slots, self._xpu.stream)

    def _compute(self, call: HostCall) -> None:
        self._xpu.wait()
        inputs = call.op.inputs
        arrays = [np.empty(place.nbytes, np.uint8) for place in inputs]
        for array, address in zip(arrays, call.addresses, strict=False):
            self._xpu.download(array, address)
        given = [place.of(array) for place, array in zip(inputs, arrays, strict=True)]
        results = self._host.compute(call.op, given)
        for result, address in zip(results, call.addresses[len(inputs) :], strict=True):
            self._xpu.upload(address, result)

    def _launch(self, launches: Launches) -> None:
        if self._player is not None:
            self._player.play(launches.rows, launches.blocks, self._xpu.stream)
            return
        library, stream = self._xpu.library, self._xpu.stream
        set_arguments = library.function("xpu_launch_argument_set")
        configure = library.function("xpu_launch_config")
        start = library.function("xpu_launch_async")
        blocks = launches.blocks.tobytes()
        for handle, at, size, clusters, cores in launches.rows.tolist():
            code = (
                set_arguments(blocks[at : at + size], size, 0)
                or configure(clusters, cores, stream)
                or start(handle)
            )
            if code:
                raise library.error("launch", code)

    def _call(
        self, call: Call, symbols: Mapping[str, int], regions: Mapping[tuple[str, str], Region]
    ) -> list[tuple[LoadedKernel, int, int, bytes]]:
        kernel = self._kernels[call.kernel]
        x, y, z = (self.size(text, symbols) for text in call.grid)
        if x * y * z < 1:
            return []
        values = [self._argument(arg, symbols, regions) for arg in call.args]
        block = parameter_block(kernel, (x, y, z), values)
        clusters, cores = self._xpu.shape_of(kernel, (x, y, z))
        return [(kernel, clusters, cores, block)]

    def _argument(
        self, arg: Arg, symbols: Mapping[str, int], regions: Mapping[tuple[str, str], Region]
    ) -> int | float:
        if arg.kind == "f32":
            return arg.number()
        if arg.kind in ("i32", "i64"):
            return self.size(arg.value, symbols)
        offset = self.size(arg.offset, symbols)
        if arg.kind == "buffer" and arg.value in self._temps:
            offset += self.size(self._temps[arg.value].offset, symbols)
            return regions["arena", ""][0] + offset
        for kind in ("input", "output") if arg.kind == "buffer" else (arg.kind,):
            if (kind, arg.value) in regions:
                return regions[kind, arg.value][0] + offset
        raise ArtifactError(f"kunlun: program {self.program.entry}: no memory for {arg.value}")

    def _check_extents(
        self,
        bucket: Bucket,
        symbols: Mapping[str, int],
        regions: Mapping[tuple[str, str], Region],
    ) -> None:
        """Temps lie in the arena, inputs and outputs in their memory."""
        used = {arg.value for call in bucket.calls for arg in call.args if arg.kind == "buffer"}
        for buffer in (*self.program.temps, *self.program.inputs, *self.program.outputs):
            if buffer.name not in used:
                continue
            _, room = regions["arena", ""] if buffer.kind == "temp" else regions[_key(buffer)]
            end = self.size(buffer.offset, symbols) + self.size(buffer.bytes, symbols)
            if end > room or end < 0:
                raise ArtifactError(
                    f"kunlun: {buffer.kind} {buffer.name}: expected it within {room} bytes,"
                    f" got {end}"
                )


def _key(buffer: Buffer) -> tuple[str, str]:
    return buffer.kind, buffer.name
