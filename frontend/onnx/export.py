"""A graph as an ONNX model: what Netron shows and onnxruntime runs.

Ops that ONNX has are its own nodes; the others are local functions in the domain ``sglk``, made of
standard ops, one for each use that differs. Parameters are inputs, or initializers when their
numbers are given, large ones in a file beside the model. A KV state goes in and comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper

from ...errors import FrontendError
from ...ir.dim import Dim, dim_text
from ...ir.dtype import BF16
from ...ir.graph import Graph, Node, Value
from ...ir.interpret import evaluate
from ...ir.printer import attribute_text
from . import export_fused, export_ops
from .export_nodes import DOMAIN, FUSED, INLINE, Builder, elem_type, symbols

__all__ = ["export_fused", "export_ops", "save_model", "to_model"]

OPSET = 21
BITS_OPSET = 26
"""The first with BitCast."""
EXTERNAL_BYTES = 1024
"""Tensors from here on go into the file beside the model."""
Read = Callable[[str], Any]


def save_model(graph: Graph, path: Path, read: Read | None = None) -> onnx.ModelProto:
    """Write ``path``, and ``path``.data if ``read`` gives the parameters' numbers."""
    model = to_model(graph, read)
    beside = path.with_name(f"{path.name}.data")
    beside.unlink(missing_ok=True)  # onnx appends
    onnx.save_model(
        model,
        path,
        save_as_external_data=read is not None,
        location=beside.name,
        size_threshold=EXTERNAL_BYTES,
    )
    onnx.checker.check_model(str(path), full_check=True)
    return model


def to_model(graph: Graph, read: Read | None = None) -> onnx.ModelProto:
    """The model in memory; ``read`` gives a parameter's array by its name."""
    _check_ops(graph)
    export = _Export(graph, read)
    export.run()
    has_bits = any(node.op.name == "bitcast" for node in graph.nodes)
    opset = BITS_OPSET if has_bits else OPSET
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(DOMAIN, 1)]
    proto = onnx.helper.make_graph(
        export.builder.nodes, graph.name, export.inputs, export.outputs, export.initializers
    )
    functions = [
        onnx.helper.make_function(
            DOMAIN, name, inputs, outputs, nodes, [onnx.helper.make_opsetid("", opset)]
        )
        for name, inputs, outputs, nodes in export.functions.values()
    ]
    model = onnx.helper.make_model(
        proto, opset_imports=imports, functions=functions, producer_name="sglk"
    )
    model.ir_version = min(model.ir_version, 13 if has_bits else 10)
    return model


def _check_ops(graph: Graph) -> None:
    missing = sorted({n.op.name for n in graph.nodes} - INLINE.keys() - FUSED.keys())
    if missing:
        raise FrontendError(
            f"{graph.name}: expected ops that have a form in ONNX, got {', '.join(missing)} "
            "(add one in frontend/onnx/export_*.py)"
        )


class _Export:
    """One graph on its way."""

    def __init__(self, graph: Graph, read: Read | None) -> None:
        self.graph, self.read = graph, read
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.functions: dict[Any, tuple[str, list[str], list[str], list[onnx.NodeProto]]] = {}
        self.names: dict[Value, str] = {}
        self.builder = Builder("", self._sizes())
        self.state_of: dict[Value, Value] = {v: v for v in graph.states}

    def _sizes(self) -> dict[str, tuple[str, int]]:
        """For each symbol an input with an axis of that size."""
        found: dict[str, tuple[str, int]] = {}
        for value in (*self.graph.inputs, *self.graph.states):
            for axis, size in enumerate(value.type.shape):
                if not isinstance(size, int) and size.is_Symbol:
                    found.setdefault(str(size), (value.name, axis))
        return found

    def run(self) -> None:
        for value in (*self.graph.inputs, *self.graph.states):
            self.inputs.append(self._info(value))
        for value in self.graph.consts:
            self._initializer(value.name, value.data)
        self._parameters()
        static = self.graph.static_values() if self.read else set()
        for node in self.graph.nodes:
            if not all(v in static for v in node.outputs):
                self._node(node)
        self._results()

    def _parameters(self) -> None:
        """As inputs; or, with their numbers, whatever of them other nodes read."""
        if self.read is None:
            self.inputs += [self._info(value) for value in self.graph.params]
            return
        static = self.graph.static_values()
        given = {v for v in static if v.kind != "const"}
        read_by = {v for v in given if any(not set(n.outputs) <= static for n in v.uses)}
        wanted = [
            v for v in self.graph.values() if v in read_by or (v in given and self._is_out(v))
        ]
        for value in wanted:
            (array,) = evaluate([value], self.read)
            plain = array.dequantize() if hasattr(array, "dequantize") else np.asarray(array)
            self._initializer(value.name, plain)

    def _is_out(self, value: Value) -> bool:
        return self.graph.is_output(value)

    def _initializer(self, name: str, array: Any) -> None:
        self.initializers.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))

    def _info(self, value: Value, name: str = "") -> onnx.ValueInfoProto:
        shape = [_dim(d) for d in value.type.shape]
        info = onnx.helper.make_tensor_value_info(
            name or value.name, elem_type(value.type.dtype), shape
        )
        if value.type.dtype == BF16 or value.type.dtype.is_block:
            info.doc_string = f"{value.type.dtype} values"
        return info

    # Nodes

    def _node(self, node: Node) -> None:
        operands = [self._name(v) for v in node.inputs]
        exporter = INLINE.get(node.op.name)
        before = len(self.builder.nodes)
        if exporter is not None:
            results = exporter(self.builder, node, *operands)
        else:
            results = self._call(node, operands)
        names = [results] if isinstance(results, str) else list(results)
        for value, name in zip(node.outputs, names, strict=True):
            self.names[value] = name
            self._follow_state(node, value)
        for proto in self.builder.nodes[before:]:
            proto.doc_string = node.source

    def _name(self, value: Value) -> str:
        return self.names.get(value, value.name)

    def _follow_state(self, node: Node, value: Value) -> None:
        for operand in node.inputs:
            if operand in self.state_of and operand.type == value.type:
                self.state_of[value] = self.state_of[operand]

    def _call(self, node: Node, operands: Sequence[str]) -> list[str]:
        """A local function, made once for all nodes of one op on operands of one kind."""
        if symbols(node):
            raise FrontendError(
                f"{node.op.name}: expected attributes that are numbers, got {node.op}"
            )
        known = tuple(
            (v.type.dtype.name, tuple(d if isinstance(d, int) else -1 for d in v.type.shape))
            for v in node.inputs
        )
        key = (node.op, known)
        if key not in self.functions:
            self.functions[key] = self._function(node)
        name, _, outputs, _ = self.functions[key]
        results = [f"{self.builder.fresh()}_{i}" for i in range(len(outputs))]
        self.builder.add(onnx.helper.make_node(name, operands, results, domain=DOMAIN))
        return results

    def _function(self, node: Node) -> tuple[str, list[str], list[str], list[onnx.NodeProto]]:
        inner = Builder("f")
        operands = [f"x{i}" for i in range(len(node.inputs))]
        results = FUSED[node.op.name](inner, node, *operands)
        outputs = [results] if isinstance(results, str) else list(results)
        same = sum(key[0].name == node.op.name for key in self.functions)
        name = f"{node.op.name}_{same}" if same else node.op.name
        inner.nodes[0].doc_string = _text(node)
        return name, operands, outputs, inner.nodes

    # Results

    def _results(self) -> None:
        """Outputs under names of their own, since one value may be several of them."""
        for i, value in enumerate(self.graph.outputs):
            self._output(value, value.name if value.kind == "node" else f"output_{i}", i)
        last = {state: value for value, state in self.state_of.items()}
        for state, value in last.items():
            self._output(value, f"{state.name}_out", 0)

    def _output(self, value: Value, name: str, place: int) -> None:
        taken = {info.name for info in self.outputs} | {v.name for v in self.graph.inputs}
        name = f"{name}_{place}" if name in taken else name
        source = self._name(value)
        if source != name:
            self.builder.add(onnx.helper.make_node("Identity", [source], [name]))
        self.outputs.append(self._info(value, name))


def _dim(size: Dim) -> int | str:
    return size if isinstance(size, int) else dim_text(size)


def _text(node: Node) -> str:
    given = ", ".join(f"{k}={attribute_text(v)}" for k, v in vars(node.op).items())
    return f"{node.op.name} {{{given}}}" if given else node.op.name
