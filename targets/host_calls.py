"""Ops that the host does in place of a device: a graph of one op, by the symbol of its call.

The device stops there, hands over operands and takes results (`artifact/host_ops.py`); the NumPy
reference computes them. Slow on purpose: a model runs, and the report says what to write a row for.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator

import sympy

from ..ir.dim import symbols_of
from ..ir.graph import Graph, Node
from ..ir.target import Target
from ..passes.select_rows import HOST_KIND, PRODUCTS, Selection
from .artifact.host_ops import PREFIX


def is_batch_invariant(target: Target, selection: Selection) -> bool:
    """Whether a token's bits do not depend on its batch: not where the host multiplies."""
    rows = {row for row in selection.chosen.values() if row.kind == HOST_KIND}
    return target.batch_invariant and not any(row.op in PRODUCTS for row in rows)


def host_graph(node: Node) -> Graph:
    """A node alone: its operands are inputs, static ones too."""
    graph = Graph("host")
    known = {v: graph.input(f"x{i}", v.type) for i, v in enumerate(dict.fromkeys(node.inputs))}
    graph.outputs = list(graph.append(node.op, *(known[v] for v in node.inputs)))
    return graph


def host_symbol(graph: Graph, node: Node) -> str:
    """Equal ops of equal types share a symbol."""
    digest = hashlib.sha256(graph.as_text().encode()).hexdigest()
    return f"{PREFIX}{node.op.name}_{digest[:10]}"


def symbols_in(graph: Graph) -> list[str]:
    """Symbols of the types and attributes of a graph, in the order of a call's numbers."""
    found = {s for v in graph.values() for d in v.type.shape for s in symbols_of(d)}
    for node in graph.nodes:
        for field in dataclasses.fields(node.op):
            found |= set(_symbols(getattr(node.op, field.name)))
    return sorted(found)


def _symbols(value: object) -> Iterator[str]:
    if isinstance(value, tuple):
        for each in value:
            yield from _symbols(each)
    elif isinstance(value, sympy.Expr):
        yield from symbols_of(value)
