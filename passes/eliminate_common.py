"""Computes equal things once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from .base import Pass


@dataclass(frozen=True)
class EliminateCommon(Pass):
    """
    %a = exp(%x); %b = exp(%x); %c = add(%a, %b)   ->   %a = exp(%x); %c = add(%a, %a)
    Ops are pure: a state is written by making its next version, so equal writes are one write.
    """

    name: ClassVar[str] = "eliminate-common"

    def run(self, graph: Graph) -> bool:
        changed = _merge_constants(graph)
        seen: dict[tuple[Op | Value, ...], Node] = {}
        for node in graph.nodes:
            first = seen.setdefault((node.op, *node.inputs), node)
            if first is not node:
                for old, new in zip(node.outputs, first.outputs, strict=True):
                    graph.replace(old, new)
                changed = True
        return graph.erase_dead() or changed


def _merge_constants(graph: Graph) -> bool:
    changed = False
    seen: dict[tuple[object, bytes], Value] = {}
    for value in list(graph.consts):
        assert value.data is not None
        key = (value.type, np.ascontiguousarray(value.data).tobytes())
        first = seen.setdefault(key, value)
        if first is not value:
            graph.replace(value, first)
            changed = True
    return changed
