"""Removes what no output depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph
from .base import Pass


@dataclass(frozen=True)
class EliminateDead(Pass):
    """
    %a = exp(%x); %b = neg(%x); return %b   ->   %b = neg(%x); return %b
    Unread parameters and constants go too; inputs and states are the graph's signature and stay.
    """

    name: ClassVar[str] = "eliminate-dead"

    def run(self, graph: Graph) -> bool:
        return graph.erase_dead()
