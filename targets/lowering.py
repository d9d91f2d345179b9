"""Graph -> Program: every node's row emits kernel calls, once per bucket of token counts.

A view (reshape, a state's next version) shares its operand's memory; everything else that a node
makes is a temporary in one planned arena. Static values become weights in the layout a row asks
for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from ..errors import LoweringError
from ..ir.dim import Dim, as_dim, cdiv, dim, dim_text, prod, substitute, symbols_of
from ..ir.dtype import F32, DType
from ..ir.graph import Graph, Node, Value
from ..ir.target import Target
from ..ir.types import TensorType
from ..passes.choose_tiles import TileChoice
from ..passes.plan_memory import Life, MemoryPlan, cover, plan_memory
from ..passes.select_rows import HOST_KIND, Selection
from .artifact.program import LOAD_SYMBOLS, Arg, Bucket, Buffer, Call, Program
from .host_calls import host_graph, host_symbol, symbols_in
from .kernel import NATIVE, NUMBERS, POINTERS, Kernel, argument_names
from .result_copies import copied_results
from .table import OperatorRow
from .views import view_roots
from .weight_use import WeightUse

STEP = "step"
"""Entry point of decoders; others have ``forward``."""
STEP_SYMBOLS = ("tokens", "seqs", "pages", "rows")
COPY_BLOCK = 64


@dataclass(frozen=True)
class Operand:
    """A kernel argument with its Triton type: memory by name, or a number."""

    arg: Arg
    type: str


@dataclass(frozen=True)
class TokenRange:
    """Token counts ``low`` to ``high`` (None: unbounded), the reach of one bucket."""

    low: int
    high: int | None

    @property
    def nominal(self) -> int:
        """The count that tiles are chosen for: the largest, or 512 where there is no bound."""
        return self.high if self.high is not None else 512


class Lowering:
    """What a row's ``emit`` works with: operands by value, kernel launches, the bucket at hand."""

    def __init__(self, graph: Graph, target: Target, selection: Selection) -> None:
        self.graph = graph
        self.target = target
        self.selection = selection
        self.kernels: dict[str, Kernel] = {}
        self.entries: list[Program] = []
        """Programs that a target adds beside the graph's own; their kernels are in `kernels`."""
        self.weights: dict[tuple[Value, str], WeightUse] = {}
        self.tiles: dict[str, TileChoice] = {}
        self.host_ops: dict[str, dict[str, object]] = {}
        """Graph and sizes of each call that the host does, by symbol."""
        self.emitted: list[list[tuple[Node, int]]] = []
        """Per bucket: each node that emits, in order, and how many calls it became."""
        self.bucket = TokenRange(1, None)
        self.unshared_text = "0"
        self._static = graph.static_values()
        self._root = view_roots(graph, selection)
        results = [v for v in graph.outputs if self._root.get(v, v).kind != "state"]
        copies = copied_results(results, self._root, self._static)
        self._results = [copy or v for copy, v in zip(copies, results, strict=True)]
        self._copies = [copy for copy in copies if copy is not None]
        self._calls: list[Call] = []
        self._node: Node | None = None
        self._scratch: dict[tuple[Node, str], Value] = {}
        self._read_at: dict[Value, list[Node]] = {}
        self._zeros: dict[str, int] = {}

    # Operands -------------------------------------------------------------------------------

    def memory(self, value: Value, offset: Dim = 0, dtype: DType | None = None) -> Operand:
        """The bytes of an input, output, temporary or state, from ``offset`` bytes on.

        A node may ask for a value that another node reads in the graph: a row that does the work of
        the node before it. The value's memory is then kept for it.
        """
        root = self._root.get(value, value)
        if root in self._static:
            raise LoweringError(
                f"{value!r}: expected a computed value, got a weight (use weight())"
            )
        kind = "state" if root.kind == "state" else "buffer"
        if self._node is not None and self._node not in value.uses:
            self._read_at.setdefault(root, []).append(self._node)
        return Operand(
            Arg(kind, root.name, dim_text(offset)), POINTERS[(dtype or value.type.dtype).name]
        )

    def scratch(self, floats: Dim, name: str = "scratch") -> Operand:
        """f32 memory of the node at hand, in which its calls leave something for each other.

        Asked for again under the same name, in this bucket or another, it covers both sizes.
        """
        node = self._node
        assert node is not None
        known = self._scratch.get((node, name))
        size = floats if known is None else cover(known.type.shape[0], floats)
        value = Value(TensorType(F32, (size,)), "node", f"{node.outputs[0].name}_{name}", node)
        self._scratch[node, name] = value
        return Operand(Arg("buffer", value.name), POINTERS["f32"])

    def zeros(self, name: str, words: int) -> Operand:
        """i32 memory, a state of its own: zero when the program is loaded, and after every call."""
        self._zeros[name] = max(words, self._zeros.get(name, 0))
        return Operand(Arg("state", name), POINTERS["i32"])

    def weight(
        self,
        value: Value,
        layout: str,
        dtype: str,
        offset: int = 0,
        stored: tuple[str, tuple[int, ...]] | None = None,
    ) -> Operand:
        """A static value packed as ``layout``; ``dtype`` is what lies at ``offset`` bytes.

        ``stored``: see `WeightUse`.
        """
        if value not in self._static:
            raise LoweringError(f"{value!r}: expected a weight, got a value computed from inputs")
        use = self.weights.get((value, layout))
        if use is None:
            use = WeightUse(self._weight_name(value, layout), value, layout, stored)
            self.weights[value, layout] = use
        return Operand(Arg("weight", use.name, str(offset)), POINTERS[dtype])

    def is_static(self, value: Value) -> bool:
        return value in self._static

    def is_chosen(self, node: Node, rows: Sequence[OperatorRow]) -> bool:
        """Whether one of these rows emits a node."""
        return self.selection.chosen.get(node) in rows

    def _weight_name(self, value: Value, layout: str) -> str:
        """Parameters keep their name; derived values are named by what they come from."""
        name = value.name if value.producer is None else f"{_first_param(value)}+{value.name}"
        taken = any(use.name == name for use in self.weights.values())
        return f"{name}@{layout}" if taken else name

    # Launches -------------------------------------------------------------------------------

    def launch(
        self,
        function: str,
        grid: tuple[Dim, Dim, Dim],
        arguments: Mapping[str, Operand | None],
        constants: Mapping[str, object],
        tile: TileChoice | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Call a Triton function; an argument that is None becomes a constant and no parameter.

        ``options`` are for the chip's compiler, see `kernel_options`.
        """
        absent = {name: None for name, operand in arguments.items() if operand is None}
        present = {name: op for name, op in arguments.items() if op is not None}
        order = [name for name in argument_names(function) if name in present]
        if len(order) != len(present):
            raise LoweringError(f"{function}: no such arguments: {set(present) - set(order)}")
        self._call(function, order, present, grid, {**constants, **absent}, tile, options or {})

    def kernel_options(
        self, present: Mapping[str, Operand], options: Mapping[str, object]
    ) -> tuple[tuple[str, object], ...]:
        """What goes into `Kernel.options`; a target may add what it promises of the arguments."""
        return tuple(sorted(options.items()))

    def launch_native(
        self,
        name: str,
        grid: tuple[Dim, Dim, Dim],
        arguments: Mapping[str, Operand | None],
        constants: Mapping[str, int | bool | float],
        tile: TileChoice | None = None,
    ) -> None:
        """Call a kernel written by hand, with its arguments in the order given but for the absent.

        ``constants`` are what the C++ template is made for.
        """
        present = {name: op for name, op in arguments.items() if op is not None}
        self._call(f"{NATIVE}{name}", list(present), present, grid, constants, tile)

    def _call(
        self,
        function: str,
        order: list[str],
        present: Mapping[str, Operand],
        grid: tuple[Dim, Dim, Dim],
        constants: Mapping[str, object],
        tile: TileChoice | None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        signature = tuple((name, present[name].type) for name in order)
        given = () if options is None else self.kernel_options(present, options)
        kernel = Kernel(function, signature, tuple(sorted(constants.items())), given)
        self.kernels.setdefault(kernel.symbol, kernel)
        if tile is not None:
            self.tiles[kernel.symbol] = tile
        x, y, z = (dim_text(d) for d in grid)
        args = tuple(present[name].arg for name in order)
        assert self._node is not None
        self._calls.append(Call(kernel.symbol, (x, y, z), args, self._node.op.name))

    def call_host(self, node: Node) -> None:
        """Let the host do a node by its reference: operands, results, then the sizes as numbers."""
        graph = host_graph(node)
        symbol = host_symbol(graph, node)
        self.host_ops[symbol] = {"graph": graph.as_text(), "sizes": symbols_in(graph)}
        values = (*dict.fromkeys(node.inputs), *node.outputs)
        memory = [
            (self.weight(v, "row", v.type.dtype.name) if v in self._static else self.memory(v)).arg
            for v in values
        ]
        sizes = [Arg("i64", name) for name in symbols_in(graph)]
        self._calls.append(Call(symbol, ("1", "1", "1"), (*memory, *sizes), node.op.name))

    # The whole program ----------------------------------------------------------------------

    def program(self, entry: str, symbols: tuple[str, ...]) -> Program:
        """Emit every bucket, plan the arena, and put the program together.

        Only the step program has buckets: its ``tokens`` may be anything from 1 to thousands.
        """
        bounds = self.target.token_buckets if entry == STEP else ()
        buckets = tuple(self._emit_bucket(reach) for reach in token_ranges(bounds))
        temps = self._temporaries()
        plan = self._plan(temps)
        self.unshared_text = dim_text(plan.unshared_bytes)
        return Program(
            entry=entry,
            symbols=symbols,
            inputs=tuple(self._buffer(v, "input") for v in self.graph.inputs),
            outputs=tuple(map(self._result, self._results)),
            temps=tuple(self._buffer(v, "temp", plan.offsets[v.name]) for v in temps),
            states=(*map(self._state, self.graph.states), *self._zero_states()),
            arena_bytes=dim_text(plan.arena_bytes),
            buckets=buckets,
        )

    def _emit_bucket(self, reach: TokenRange) -> Bucket:
        self.bucket, self._calls = reach, []
        emitted: list[tuple[Node, int]] = []
        for node in self.graph.nodes:
            row = self.selection.chosen.get(node)
            if row is None:
                continue
            self._node, before = node, len(self._calls)
            if isinstance(row, OperatorRow):
                row.emit(node, self)
            elif row.kind == HOST_KIND:
                self.call_host(node)
            else:
                raise LoweringError(f"row {row.name} of {row.op}: expected one that emits calls")
            emitted.append((node, len(self._calls) - before))
        for copy in self._copies:
            self._copy_result(copy)
        self.emitted.append(emitted)
        return Bucket(reach.high, tuple(self._calls))

    def _copy_result(self, copy: Value) -> None:
        node = self._node = copy.producer
        assert node is not None
        (value,), size = node.inputs, copy.type.size
        plain = self.is_static(value)
        x = self.weight(value, "row", value.type.dtype.name) if plain else self.memory(value)
        arguments = {"x": x, "y": self.memory(copy), "n": i32(size)}
        grid = (cdiv(size, COPY_BLOCK), 1, 1)
        self.launch("elementwise.cast", grid, arguments, {"BLOCK": COPY_BLOCK})

    def _outputs(self) -> list[Value]:
        """Memory of the graph's outputs, one buffer each."""
        return [self._root.get(v, v) for v in self._results]

    def _temporaries(self) -> list[Value]:
        outputs = set(self._outputs())
        made_by = (*self.selection.chosen, *self.selection.missing)
        made = [v for node in made_by for v in node.outputs]
        kept = [v for v in made if v not in self._root and v not in outputs]
        return [*kept, *self._scratch.values()]

    def _plan(self, temps: list[Value]) -> MemoryPlan:
        order = {node: i for i, node in enumerate(self.graph.nodes)}
        order |= {v.producer: len(order) for v in self._copies if v.producer is not None}
        last = {v: order[v.producer] for v in temps if v.producer is not None}
        for value in self.graph.values():
            root = self._root.get(value, value)
            if root in last:
                last[root] = max([last[root], *(order[n] for n in value.uses)])
        for root, readers in self._read_at.items():
            if root in last:
                last[root] = max([last[root], *(order[n] for n in readers)])
        lives = [
            Life(v.name, self.bytes_of(v), order[v.producer], last[v]) for v in temps if v.producer
        ]
        return plan_memory(lives)

    def _buffer(self, value: Value, kind: str, offset: Dim = 0) -> Buffer:
        type = value.type
        shape = tuple(dim_text(d) for d in type.shape)
        return Buffer(
            value.name,
            type.dtype.name,
            shape,
            kind,
            dim_text(offset),
            dim_text(self.bytes_of(value)),
        )

    def _result(self, value: Value) -> Buffer:
        """The memory of a result under the shape of the result, which may be a view of it."""
        shape = tuple(dim_text(d) for d in value.type.shape)
        return replace(self._buffer(self._root.get(value, value), "output"), shape=shape)

    def bytes_of(self, value: Value) -> Dim:
        """Memory of an input, output or temporary; a chip may want more than the values take."""
        return value.type.bytes

    def _zero_states(self) -> list[Buffer]:
        return [
            Buffer(name, "i32", (str(words),), "state", "0", str(4 * words))
            for name, words in self._zeros.items()
        ]

    def _state(self, value: Value) -> Buffer:
        """States are sized by the number of pages or of slots, known when an artifact is loaded."""
        pages = as_dim(sympy.Integer(self.target.page_size) * dim("num_pages"))
        type = value.type.substitute({"kv_slots": pages})
        if any(symbols_of(d) - set(LOAD_SYMBOLS) for d in type.shape):
            raise LoweringError(f"state {value!r}: expected a size in kv_slots or num_slots alone")
        shape = tuple(dim_text(d) for d in type.shape)
        return Buffer(value.name, type.dtype.name, shape, "state", "0", dim_text(type.bytes))


def is_decoder(captured: Graph) -> bool:
    """Whether a captured graph is a causal LM: token ids, positions, and attention, if only spelled
    out, or a layer with a state."""
    names = {v.name for v in captured.inputs}
    mixers = ("attention", "softmax", "convolution", "linear_recurrence")
    mixes = any(node.op.name in mixers for node in captured.nodes)
    return names == {"token_ids", "position_ids"} and mixes


def entry_of(graph: Graph) -> str:
    """The entry point of a lowered graph: ``step`` when it has states, else ``forward``."""
    return STEP if graph.states else "forward"


def symbols_of_entry(graph: Graph, entry: str) -> tuple[str, ...]:
    """Symbols that the sizes of an entry's inputs give."""
    if entry == STEP:
        return STEP_SYMBOLS
    return tuple(sorted({s for v in graph.inputs for d in v.type.shape for s in symbols_of(d)}))


def i32(value: Dim) -> Operand:
    """An integer argument, computed for every step."""
    return Operand(Arg("i32", dim_text(value)), NUMBERS["i32"])


def f32(value: float) -> Operand:
    """A float argument, fixed when the program is made."""
    return Operand(Arg("f32", repr(float(value))), NUMBERS["f32"])


def per_layer_bytes(state: Value, page_size: int) -> Dim:
    """Bytes of K (or of V) of one layer of a KV state, in ``num_pages``."""
    sizes = prod(state.type.shape[2:]) * int(state.type.dtype.bits // 8)
    return substitute(as_dim(sizes), {"kv_slots": as_dim(page_size * dim("num_pages"))})


def token_ranges(bounds: tuple[int, ...]) -> list[TokenRange]:
    """The ranges that end at each bound, and the unbounded one after them."""
    lows = (1, *(b + 1 for b in bounds))
    return [TokenRange(low, high) for low, high in zip(lows, (*bounds, None), strict=True)]


def _first_param(value: Value) -> str:
    while value.producer is not None:
        value = value.producer.inputs[0]
    return value.name
