"""A `torch.export` program becomes an `ir.Graph`: the one door for every torch model.

Ops that have a converter are taken as exported (``linear`` and ``softmax`` stay whole); only a
program with other ops, or with in-place ones, is decomposed to core ATen first. What is still
unknown then is reported together. Importing this module enters every converter.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from ..errors import FrontendError, SglkError
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from . import (
    fx_convert_attention,
    fx_convert_bags,
    fx_convert_elementwise,
    fx_convert_indexing,
    fx_convert_linear,
    fx_convert_math,
    fx_convert_order,
    fx_convert_recurrence,
    fx_convert_reduce,
    fx_convert_shape,
    fx_convert_spatial,
)
from .captured import Progress, silent
from .context_limit import without_whole_choices
from .fx_convert_complex import NAMES as COMPLEX_NAMES
from .fx_convert_complex import Complex, convert_complex
from .fx_convert_context import CONVERTERS, Emitter, Unsupported, numpy_array, source_line
from .fx_convert_dims import DimNames
from .in_place import without_in_place

__all__ = [
    "convert_program",
    "fx_convert_attention",
    "fx_convert_bags",
    "fx_convert_elementwise",
    "fx_convert_indexing",
    "fx_convert_linear",
    "fx_convert_math",
    "fx_convert_order",
    "fx_convert_recurrence",
    "fx_convert_reduce",
    "fx_convert_shape",
    "fx_convert_spatial",
]


def convert_program(
    program: ExportedProgram,
    *,
    name: str = "graph",
    symbols: Mapping[str, str] | None = None,
    rename: Callable[[str], str] = lambda name: name,
    progress: Progress | None = None,
) -> Graph:
    """The graph of ``program``. ``symbols`` names torch's size symbols (see `symbol_names`).

    ``rename`` turns names of parameters and buffers into those of the weights. Integers become i32,
    floats f32.
    """
    without_in_place(program)
    without_whole_choices(program)
    if needs_decomposition(program):
        program = decompose(program)
    _refuse_state(program, name)
    names = symbol_names(program) if symbols is None else symbols
    conversion = _Conversion(program, Graph(name), DimNames(names), rename)
    return conversion.run(progress or silent)


def symbol_names(
    program: ExportedProgram, inputs: Mapping[str, Mapping[int, str]] | None = None
) -> dict[str, str]:
    """Dim names by torch symbol. ``inputs`` names them by input and axis: ``{"x": {1: "tokens"}}``.

    Without it a lone symbol is called ``tokens``, and several keep torch's names.
    """
    found: dict[str, str] = {}
    for node, spec in zip(_placeholders(program), program.graph_signature.input_specs, strict=True):
        fake = node.meta.get("val")
        if spec.kind is not InputKind.USER_INPUT or not isinstance(fake, torch.Tensor):
            continue
        wanted = (inputs or {}).get(node.name, {})
        for axis, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                symbol = str(size.node.expr)
                found[symbol] = wanted.get(axis, found.get(symbol, symbol))
    return found if inputs or len(found) != 1 else dict.fromkeys(found, "tokens")


def _refuse_state(program: ExportedProgram, name: str) -> None:
    """A buffer may serve as scratch within a call, but not carry values to the next one."""
    signature = program.graph_signature
    changed = {*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()}
    live = {node.name for node in live_nodes(program)}
    for spec in signature.input_specs:
        label = spec.target or getattr(spec.arg, "name", "")
        if label in changed and getattr(spec.arg, "name", "") in live:
            raise FrontendError(
                f"{name}: expected a model without memory between calls, got one that reads and "
                f"overwrites {label} (make it an input and an output)"
            )


# Decomposition ------------------------------------------------------------------------------


def needs_decomposition(program: ExportedProgram) -> bool:
    """Whether some op changes its operand in place, or some op that matters has no converter."""
    live = live_nodes(program)
    return any(_is_mutable(n) or (n in live and _needs_converter(n)) for n in program.graph.nodes)


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _needs_converter(node: fx.Node) -> bool:
    known = node.op != "call_function" or node.target is operator.getitem or _is_size(node)
    return not known and op_name(node.target) not in CONVERTERS.keys() | COMPLEX_NAMES


def decompose(program: ExportedProgram) -> ExportedProgram:
    """Core ATen, functional, with every op that has a converter left whole.

    Torch has rules for core ops too, which its own table leaves out: they serve for those that
    have no converter.
    """
    table = torch.export.default_decompositions()
    known = {op: rule for op, rule in decomposition_table.items() if op_name(op) in _TO_CORE}
    table.update(known)  # type: ignore[no-untyped-call]
    for op in list(table):
        if op_name(op) in CONVERTERS.keys() | COMPLEX_NAMES:
            table.pop(op)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations, in code the user cannot change
        decomposed: ExportedProgram = program.run_decompositions(table)
        return decomposed


_TO_CORE = frozenset(
    f"aten.{name}"
    for name in (
        "_native_batch_norm_legit",
        "adaptive_max_pool2d",
        "col2im",
        "diagonal_scatter",
        "grid_sampler_2d",
        "im2col",
        "native_batch_norm",
        "upsample_bicubic2d",
    )
)


def op_name(target: Any) -> str:
    """``aten.add`` for every overload of it; other callables by their own name."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.replace("::", ".")
    return str(getattr(target, "__name__", target))


def live_nodes(program: ExportedProgram) -> set[fx.Node]:
    """Nodes that some user output depends on."""
    stack, live = list(user_outputs(program)), set[fx.Node]()
    while stack:
        node = stack.pop()
        if node not in live:
            live.add(node)
            stack.extend(node.all_input_nodes)
    return live


def user_outputs(program: ExportedProgram) -> list[fx.Node]:
    """The nodes of the tensors that the model returns; constants and None returned are skipped."""
    (results,) = program.graph.output_node().args
    specs = program.graph_signature.output_specs
    pairs = zip(results, specs, strict=True)
    return [r for r, s in pairs if s.kind is OutputKind.USER_OUTPUT and isinstance(r, fx.Node)]


def _placeholders(program: ExportedProgram) -> list[fx.Node]:
    return [n for n in program.graph.nodes if n.op == "placeholder"]


def _is_size(node: fx.Node) -> bool:
    """Whether the node's value is a number that depends on sizes only."""
    return isinstance(node.meta.get("val"), int | float | torch.SymInt)


# Conversion ---------------------------------------------------------------------------------


@dataclass
class _Fault:
    """An op that could not be expressed: why, how often, and where first."""

    reason: str
    source: str
    count: int = 0


@dataclass
class _Conversion:
    """One program on its way to a graph."""

    program: ExportedProgram
    graph: Graph
    dims: DimNames
    rename: Callable[[str], str]
    values: dict[fx.Node, Any] = field(default_factory=dict)
    faults: dict[tuple[str, str], _Fault] = field(default_factory=dict)
    shared: dict[str, Value] = field(default_factory=dict)
    """Parameters by the first of their names: tied ones become one."""

    def run(self, progress: Progress) -> Graph:
        emitter = Emitter(self.graph, self.dims)
        live = live_nodes(self.program)
        self._declare(emitter, live)
        nodes = [n for n in self.program.graph.nodes if n in live and n.op != "placeholder"]
        for done, node in enumerate(nodes):
            emitter.node = node
            self.values[node] = self._convert(emitter, node)
            if done % 64 == 0:
                progress("convert", done, len(nodes))
        progress("convert", len(nodes), len(nodes))
        if self.faults:
            raise self._report()
        self.graph.outputs = [self.values[node] for node in user_outputs(self.program)]
        self.graph.erase_dead()
        return self.graph

    # Leaves

    def _declare(self, e: Emitter, live: set[fx.Node]) -> None:
        specs = self.program.graph_signature.input_specs
        for node, spec in zip(_placeholders(self.program), specs, strict=True):
            fake = node.meta.get("val")
            if not isinstance(fake, torch.Tensor):
                self.values[node] = self.dims(fake) if isinstance(fake, torch.SymInt) else fake
            elif spec.kind is InputKind.USER_INPUT:
                self.values[node] = self.graph.input(node.name, e.type_of(fake))
            elif node in live:
                self.values[node] = self._leaf(e, spec, fake)

    def _leaf(self, e: Emitter, spec: InputSpec, fake: torch.Tensor) -> Value:
        """Parameters and persistent buffers are weights of the checkpoint, the rest constants."""
        assert spec.target is not None
        if spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent):
            name = self._first_name(spec.target)
            if name not in self.shared:
                self.shared[name] = self.graph.param(self.rename(name), e.type_of(fake))
            return self.shared[name]
        return self._constant(spec.target, self.program.constants[spec.target])

    def _first_name(self, name: str) -> str:
        """Of a tied parameter's names the first in the state dict: the one checkpoints keep."""
        tensors: dict[str, torch.Tensor] = self.program.state_dict
        return next(first for first, tensor in tensors.items() if tensor is tensors[name])

    def _constant(self, name: str, tensor: torch.Tensor) -> Value:
        if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.is_meta:
            raise FrontendError(
                f"buffer {name}: expected values, got none (the model fills it from a checkpoint)"
            )
        data, type = numpy_array(tensor, f"buffer {name}")
        return self.graph.const(data, type, self.rename(name))

    # Nodes

    def _convert(self, e: Emitter, node: fx.Node) -> Any:
        if _is_size(node):
            return self._size(node.meta["val"])
        if node.op == "get_attr":
            owner = operator.attrgetter(str(node.target))(self.program.graph_module)
            return self._constant(str(node.target), owner)
        args, kwargs = self._arguments(node.args), self._arguments(node.kwargs)
        if node.target is operator.getitem:
            return args[0][args[1]]
        converter = CONVERTERS.get(op_name(node.target))
        try:
            if _is_complex(node, args):
                return convert_complex(e, op_name(node.target), args, kwargs)
            if converter is None:
                return self._evaluated(e, node, args, kwargs)
            result = converter(e, *args, **kwargs)
        except Unsupported as fault:
            return self._fault(e, node, str(fault))
        except SglkError as error:
            error.add_note(f"while converting {node.format_node()} at {source_line(node)}")
            raise
        _check_types(e, node, result)
        return result

    def _evaluated(self, e: Emitter, node: fx.Node, args: Any, kwargs: Any) -> Value:
        """An op without a converter on constants alone: torch's own result is one more."""
        fake = node.meta["val"]
        values = [x for x in args if isinstance(x, Value)]
        known = {value: e.known(value) for value in values}
        if (
            not values
            or any(x is None for x in known.values())
            or not isinstance(fake, torch.Tensor)
        ):
            raise Unsupported("no converter")
        plain = [torch.tensor(known[x]) if isinstance(x, Value) else x for x in args]
        target: Any = node.target
        data, type = numpy_array(target(*plain, **kwargs), f"the result of {op_name(target)}")
        return self.graph.const(data, type)

    def _size(self, value: Any) -> Any:
        return self.dims(value) if isinstance(value, torch.SymInt) else value

    def _arguments(self, arguments: Any) -> Any:
        """Node arguments with values in place of nodes, outer structure kept."""
        if isinstance(arguments, fx.Node):
            return self.values[arguments]
        if isinstance(arguments, Mapping):
            return {key: self._arguments(value) for key, value in arguments.items()}
        if isinstance(arguments, Sequence) and not isinstance(arguments, str):
            return [self._arguments(value) for value in arguments]
        return arguments

    def _fault(self, e: Emitter, node: fx.Node, reason: str) -> Any:
        """Note the fault, and stand-ins for the results so that later ops are examined too."""
        fault = self.faults.setdefault(
            (op_name(node.target), reason), _Fault(reason, source_line(node))
        )
        fault.count += 1
        fakes = node.meta["val"]
        stand_ins = [Value(t, "input", "unsupported") for t in _types(e, fakes)]
        return stand_ins if isinstance(fakes, tuple | list) else stand_ins[0]

    def _report(self) -> FrontendError:
        listed = "; ".join(
            f"{op} x{fault.count} first at {fault.source or 'an unknown line'}: {fault.reason}"
            for (op, _), fault in self.faults.items()
        )
        return FrontendError(
            f"{self.graph.name}: expected ops that sglk can express, got {len(self.faults)} kinds "
            f"that it cannot: {listed} (change the model there, or add a converter in "
            "frontend/fx_convert_*.py)"
        )


def _is_complex(node: fx.Node, args: Any) -> bool:
    fake = node.meta.get("val")
    makes = isinstance(fake, torch.Tensor) and fake.is_complex()
    return makes or any(isinstance(x, Complex) for x in args)


def _types(e: Emitter, fakes: Any) -> Iterator[TensorType]:
    """Types of one or several results; f32 stands for a dtype that the graph does not know."""
    for fake in fakes if isinstance(fakes, tuple | list) else [fakes]:
        known = fake.dtype in (torch.bool, torch.int64, torch.int32)
        yield e.type_of(fake if known else fake.to(torch.float32))


def _check_types(e: Emitter, node: fx.Node, result: Any) -> None:
    """The graph's shape rules must agree with torch's: anything else is a bug in a converter."""
    fakes = node.meta["val"]
    several = isinstance(fakes, tuple | list)
    for value, fake in zip(
        result if several else [result], fakes if several else [fakes], strict=False
    ):
        wanted = e.type_of(fake)
        assert value.type == wanted, f"{node.format_node()}: expected {wanted}, got {value.type}"
