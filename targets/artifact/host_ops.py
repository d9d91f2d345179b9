"""Ops of an artifact that the host does for the device, by their NumPy references.

The member `host_ops.json` has the graph of each such call's op as text, by symbol, and the names of
its sizes: a call has the operands, the results, and these sizes. Only an artifact with such ops
needs `ir` (and sympy) where it runs: this is the one place of the run-time face that imports it,
and then only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArtifactError, DeviceError, SglkError
from ..device import HostCount
from .schema import as_dict, as_list, as_record, as_text, load_json

if TYPE_CHECKING:
    from ...ir.graph import Graph, Value
    from .artifact import Artifact

FEATURE = "host-ops"
MEMBER = "host_ops.json"
PREFIX = "host."
"""What symbols of such calls start with."""
KEPT = 64
"""Sizes of calls that are remembered."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Place:
    """An operand or a result at the border of the device: bf16 as its raw 16 bits."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_bf16: bool = False

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def of(self, data: Array) -> Array:
        """Bytes as this."""
        return data.view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class HostOp:
    """The op of one symbol."""

    symbol: str
    graph: Graph
    sizes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.graph.nodes[0].op.name

    @property
    def num_operands(self) -> int:
        return len(self.graph.inputs)

    @property
    def num_pointers(self) -> int:
        """Operands and results, which come first among the arguments of a call."""
        return len(self.graph.inputs) + len(self.graph.outputs)


@dataclass(frozen=True)
class SizedOp:
    """An op at known sizes."""

    op: HostOp
    graph: Graph
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


class HostOps:
    """The host's part of a loaded artifact. Not thread-safe."""

    def __init__(self, where: str, ops: Mapping[str, HostOp]) -> None:
        self._where = where
        self.ops = dict(ops)
        self._sized: OrderedDict[tuple[str, tuple[int, ...]], SizedOp] = OrderedDict()
        self.counts = {op.name: HostCount() for op in ops.values()}

    @staticmethod
    def of(artifact: Artifact) -> HostOps:
        """Those of an artifact: none where the device does everything."""
        if MEMBER not in artifact.names:
            return HostOps(str(artifact.path), {})
        where = f"{artifact.path}: {MEMBER}"
        records = as_dict(where, load_json(where, artifact.read(MEMBER)))
        return HostOps(where, {s: _read(f"{where}: {s}", s, r) for s, r in records.items()})

    def __contains__(self, symbol: str) -> bool:
        return symbol in self.ops

    def sized(self, symbol: str, numbers: Sequence[int]) -> SizedOp:
        """The op of a call whose sizes are these numbers."""
        key = symbol, tuple(numbers)
        found = self._sized.get(key)
        if found is None:
            found = self._sized[key] = self._make(self.ops[symbol], key[1])
            if len(self._sized) > KEPT:
                self._sized.popitem(last=False)
        return found

    def _make(self, op: HostOp, numbers: tuple[int, ...]) -> SizedOp:
        from ...ir.rewrite import clone

        if len(op.sizes) != len(numbers):
            raise ArtifactError(
                f"{self._where}: {op.symbol}: expected {len(op.sizes)} sizes, got {len(numbers)}"
            )
        own = clone(op.graph, dict(zip(op.sizes, numbers, strict=True)))
        return SizedOp(op, own, _places(own.inputs), _places(own.outputs))

    def compute(self, sized: SizedOp, arrays: Sequence[Array]) -> list[Array]:
        """Results of operands, both as they are at the border."""
        from ...ir.interpret import interpret

        start = time.perf_counter()
        names = [value.name for value in sized.graph.inputs]
        given = dict(zip(names, map(_inside, arrays, sized.inputs), strict=True))
        try:
            with np.errstate(all="ignore"):
                results = interpret(sized.graph, given)
        except (SglkError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise DeviceError(f"host: {sized.op.symbol}: {error}") from error
        made = [_outside(np.asarray(r), p) for r, p in zip(results, sized.outputs, strict=True)]
        count = self.counts[sized.op.name]
        count.calls += 1
        count.seconds += time.perf_counter() - start
        return made


def _read(where: str, symbol: str, value: object) -> HostOp:
    record = as_record(where, value, ["graph", "sizes"])
    text = as_text(where, record["graph"], limit=1 << 20)
    sizes = tuple(as_text(where, name) for name in as_list(where, record["sizes"]))
    try:
        from ...ir.parser import parse_graph
    except ImportError as error:
        raise DeviceError(
            f"{where}: expected sympy, which ops on the host need, got: {error} "
            "(pip install sympy, or compile with --strict)"
        ) from error
    try:
        graph = parse_graph(text)
    except SglkError as error:
        raise ArtifactError(f"{where}: {error}") from error
    if len(graph.nodes) != 1 or not symbol.startswith(PREFIX):
        raise ArtifactError(f"{where}: expected a graph of one op, got {text[:80]!r}")
    return HostOp(symbol, graph, sizes)


def _places(values: Sequence[Value]) -> tuple[Place, ...]:
    places = []
    for value in values:
        is_bf16 = value.type.dtype.name == "bf16"
        dtype = np.dtype(np.uint16) if is_bf16 else value.type.dtype.numpy
        places.append(Place(dtype, value.type.concrete({}), is_bf16))
    return tuple(places)


def _inside(array: Array, place: Place) -> Array:
    if place.is_bf16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def _outside(array: Array, place: Place) -> Array:
    """What is bf16 has been rounded already."""
    if place.is_bf16:
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32) >> np.uint32(16)
        array = bits.astype(np.uint16)
    return np.ascontiguousarray(array, place.dtype).reshape(place.shape)
