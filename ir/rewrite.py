"""Copies of graphs: whole, with symbols replaced, or from chosen values on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import sympy

from .dim import Dim, substitute
from .graph import Graph, Value
from .op import Op


def clone(graph: Graph, sizes: Mapping[str, Dim] | None = None) -> Graph:
    """A copy of the same values and names; symbols named in ``sizes`` are replaced, in attributes
    too."""
    sizes = sizes or {}
    copy = Graph(graph.name)
    known: dict[Value, Value] = {}
    for v in graph.inputs:
        known[v] = copy.input(v.name, v.type.substitute(sizes))
    for v in graph.params:
        known[v] = copy.param(v.name, v.type.substitute(sizes))
    for v in graph.states:
        known[v] = copy.state(v.name, v.type.substitute(sizes))
    for v in graph.consts:
        assert v.data is not None
        known[v] = copy.const(v.data, v.type, v.name)
    for node in graph.nodes:
        names = [v.name for v in node.outputs]
        inputs = [known[v] for v in node.inputs]
        outputs = copy.append(
            substitute_op(node.op, sizes), *inputs, source=node.source, names=names
        )
        known.update(zip(node.outputs, outputs, strict=True))
    copy.outputs = [known[v] for v in graph.outputs]
    return copy


def substitute_op(op: Op, sizes: Mapping[str, Dim]) -> Op:
    """The op with symbols in its attributes replaced."""
    changes = {f.name: _substitute(getattr(op, f.name), sizes) for f in dataclasses.fields(op)}
    return dataclasses.replace(op, **changes)


def _substitute(value: Any, sizes: Mapping[str, Dim]) -> Any:
    if isinstance(value, tuple):
        return tuple(_substitute(v, sizes) for v in value)
    return substitute(value, sizes) if isinstance(value, sympy.Expr) else value
