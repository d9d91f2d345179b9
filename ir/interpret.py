"""Run a graph on its ops' NumPy references: the meaning of a graph, and the oracle of every pass and kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import VerifyError
from .graph import Graph, Node, Value
from .op import Array


def interpret(
    graph: Graph,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array] | Callable[[str], Array] | None = None,
) -> list[Array]:
    """Output arrays in order. ``inputs`` holds graph inputs and states by name, ``params`` the weights.

    Values are dropped after their last use, so peak memory is that of the live values.
    """
    read = params if callable(params) else (params or {}).__getitem__
    live: dict[Value, Array] = {v: _given(inputs, v) for v in (*graph.inputs, *graph.states)}
    remaining = {v: len(v.uses) + sum(o is v for o in graph.outputs) for v in graph.values()}
    for node in graph.nodes:
        arrays = [_operand(v, live, read) for v in node.inputs]
        live.update(zip(node.outputs, _run(node, arrays), strict=True))
        for value in node.inputs:
            remaining[value] -= 1
            if not remaining[value]:
                live.pop(value, None)
    return [_operand(v, live, read) for v in graph.outputs]


def _given(inputs: Mapping[str, Array], value: Value) -> Array:
    if value.name not in inputs:
        raise VerifyError(f"interpret: expected an array for {value.kind} {value!r}, got none")
    return inputs[value.name]


def _operand(value: Value, live: dict[Value, Array], read: Callable[[str], Array]) -> Array:
    if value.kind == "const":
        return value.data
    if value.kind == "param" and value not in live:
        live[value] = read(value.name)
    return live[value]


def _run(node: Node, arrays: list[Array]) -> tuple[Array, ...]:
    try:
        result = node.op.reference(*arrays)
    except Exception as error:
        error.add_note(f"while interpreting {node!r}")
        raise
    return result if isinstance(result, tuple) else (result,)


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
