"""The compile-time side of an operator table: a row that can also emit its kernel calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..ir.graph import Node
from ..ir.target import Row, Target

if TYPE_CHECKING:
    from .lowering import Lowering

Emit = Callable[[Node, "Lowering"], None]


@dataclass(frozen=True)
class OperatorRow(Row):
    """A `Row` whose ``emit`` adds the calls of a node to the program that is being made."""

    emit: Emit
    slack: Callable[[Node, Target], float] = field(default=lambda node, target: 0.0, kw_only=True)
    """How far results may be off, in parts of the largest one, where the row rounds operands more
    than their types say."""


def always(node: Node, target: Target) -> str:
    """A predicate that accepts every node."""
    return ""
