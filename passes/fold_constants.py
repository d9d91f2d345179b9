"""Evaluates what depends on constants alone, with the ops' references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.graph import Graph, Node
from .base import Pass


@dataclass(frozen=True)
class FoldConstants(Pass):
    """
    %i: i32[4] = iota() {size=4}   ->   const %i: i32[4] = [0, 1, 2, 3]
    Parameters are not constants: what depends on them is computed when weights are packed.
    """

    name: ClassVar[str] = "fold-constants"
    max_elements: int = 65536
    """A larger result stays an op: text and artifact would grow, and the op makes it again."""

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if self._is_foldable(node):
                _fold(graph, node)
                changed = True
        return graph.erase_dead() or changed

    def _is_foldable(self, node: Node) -> bool:
        if any(v.kind != "const" for v in node.inputs):
            return False
        sizes = [v.type.size for v in node.outputs]
        return all(isinstance(s, int) and s <= self.max_elements for s in sizes)


def _fold(graph: Graph, node: Node) -> None:
    result = node.op.reference(*(v.data for v in node.inputs))
    arrays = result if isinstance(result, tuple) else (result,)
    for value, array in zip(node.outputs, arrays, strict=True):
        data = np.ascontiguousarray(array, value.type.dtype.numpy).reshape(value.type.concrete({}))
        graph.replace(value, graph.const(data, value.type, value.name))
