"""A cheap record of a graph before a pass edits it: a crash can then show what it was given.

It holds references and copies of lists only; text is made when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.types import TensorType

HOMES = ("inputs", "params", "states", "consts", "outputs")


@dataclass(frozen=True)
class Snapshot:
    """The parts of a graph at one moment."""

    name: str
    homes: dict[str, list[Value]]
    nodes: list[tuple[Node, Op, list[Value]]]
    types: list[tuple[Value, TensorType]]

    @classmethod
    def take(cls, graph: Graph) -> Snapshot:
        homes = {home: list(getattr(graph, home)) for home in HOMES}
        nodes = [(node, node.op, list(node.inputs)) for node in graph.nodes]
        return cls(graph.name, homes, nodes, [(v, v.type) for v in graph.values()])

    def as_text(self) -> str:
        """The graph as it was. Values and nodes go back to that moment: the edited one is spent."""
        for value, type in self.types:
            value.type = type
        for node, op, inputs in self.nodes:
            node.op, node.inputs = op, inputs
        graph = Graph(self.name)
        for home, values in self.homes.items():
            setattr(graph, home, values)
        graph.nodes = [node for node, _, _ in self.nodes]
        return graph.as_text()
