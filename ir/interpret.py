"""Run a graph on its ops' NumPy references: the meaning of a graph, the oracle of passes and
kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..errors import VerifyError
from .dtype import BF16, round_bf16
from .graph import Graph, Node, Value
from .op import Array


def interpret(
    graph: Graph,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array] | Callable[[str], Array] | None = None,
) -> list[Array]:
    """Output arrays in order. ``inputs`` holds graph inputs and states by name, ``params`` the
    weights.

    Values are dropped after their last use, so peak memory is that of the live values.
    """
    read = _reader(params)
    live: dict[Value, Array] = {v: _given(inputs, v) for v in (*graph.inputs, *graph.states)}
    remaining = {v: len(v.uses) + sum(o is v for o in graph.outputs) for v in graph.values()}
    for node in graph.nodes:
        arrays = [_operand(v, live, read) for v in node.inputs]
        live.update(zip(node.outputs, _run(node, arrays), strict=True))
        del arrays  # or its operands would outlive their last use
        for value in node.inputs:
            remaining[value] -= 1
        for value in (*node.inputs, *node.outputs):
            if not remaining[value]:
                live.pop(value, None)
    return [_operand(v, live, read) for v in graph.outputs]


def _reader(params: Mapping[str, Array] | Callable[[str], Array] | None) -> Callable[[str], Array]:
    if callable(params):
        return params
    known = params or {}

    def read(name: str) -> Array:
        if name not in known:
            raise VerifyError(f"interpret: expected an array for param %{name}, got none")
        return known[name]

    return read


def _given(inputs: Mapping[str, Array], value: Value) -> Array:
    if value.name not in inputs:
        raise VerifyError(f"interpret: expected an array for {value.kind} {value!r}, got none")
    return _fitting(inputs[value.name], value)


def _fitting(array: Array, value: Value) -> Array:
    """The array, once its rank and its known sizes are those of the value's type."""
    shape, wanted = tuple(array.shape), value.type.shape
    if len(shape) != len(wanted) or any(
        isinstance(w, int) and n != w for n, w in zip(shape, wanted, strict=True)
    ):
        raise VerifyError(f"interpret: expected {value!r}, got an array of shape {shape}")
    return array


def _operand(value: Value, live: dict[Value, Array], read: Callable[[str], Array]) -> Array:
    if value.kind == "const":
        return value.data
    if value.kind == "param" and value not in live:
        live[value] = _fitting(read(value.name), value)
    return live[value]


def _run(node: Node, arrays: list[Array]) -> tuple[Array, ...]:
    try:
        result = node.op.reference(*arrays)
    except Exception as error:
        error.add_note(f"while interpreting {node!r}")
        raise
    results = result if isinstance(result, tuple) else (result,)
    return tuple(_stored(r, v) for r, v in zip(results, node.outputs, strict=True))


def _stored(result: Array, value: Value) -> Array:
    """References compute bf16 in float32; what the graph stores is rounded."""
    return round_bf16(np.asarray(result)) if value.type.dtype == BF16 else result


def evaluate(values: list[Value], params: Callable[[str], Array]) -> list[Array]:
    """Values that depend on parameters and constants alone (`Graph.static_values`), by demand."""
    live: dict[Value, Array] = {}

    def demand(value: Value) -> Array:
        if value.producer is None:
            return _operand(value, live, params)
        if value not in live:
            node = value.producer
            live.update(
                zip(node.outputs, _run(node, [demand(v) for v in node.inputs]), strict=True)
            )
        return live[value]

    return [demand(v) for v in values]
