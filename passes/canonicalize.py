"""One spelling for each meaning, so that later patterns stay few.

Rules live in `rules_identity`, `rules_shape`, `rules_arithmetic` and `rules_product`; a rule gets
a node and returns the value that replaces its result, or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import PassError
from ..ir.graph import Graph
from ..ir.op import Op
from . import rules_arithmetic, rules_identity, rules_product, rules_shape
from .base import Pass
from .patterns import Rule


def _rules_by_op() -> dict[type[Op], tuple[Rule, ...]]:
    table: dict[type[Op], tuple[Rule, ...]] = {}
    for home in (rules_identity, rules_arithmetic, rules_shape, rules_product):
        for op, rules in home.RULES.items():
            table[op] = (*table.get(op, ()), *rules)
    return table


RULES = _rules_by_op()


@dataclass(frozen=True)
class Canonicalize(Pass):
    """
    %b = reshape(%a) {shape=(6,)}; %c = reshape(%b) {shape=(2, 3)}
      ->   %c = reshape(%a) {shape=(2, 3)}
    and every other rule of the rule files, until none fires.
    """

    name: ClassVar[str] = "canonicalize"
    max_sweeps: int = 100
    """A sweep visits every node once; rules that never come to rest are a bug, and reported."""

    def run(self, graph: Graph) -> bool:
        changed = False
        for _ in range(self.max_sweeps):
            if not _sweep(graph):
                return changed
            changed = True
        raise PassError(
            f"canonicalize: expected the rules to rest within {self.max_sweeps} sweeps, got no rest"
        )


def _sweep(graph: Graph) -> bool:
    changed = False
    for node in list(graph.nodes):
        for rule in RULES.get(type(node.op), ()):
            new = rule(graph, node)
            if new is not None:
                graph.replace(node.outputs[0], new)
                changed = True
                break
    return graph.erase_dead() or changed
