"""The compile side of the Kunlun target: from a step graph to a program whose blocks stay inside.

Block transfers fault outside an allocation, masked lanes included, so every buffer of rows has
memory for `PADDED_ROWS` of them from each row on, and some more after its end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import sympy

from ...errors import LoweringError
from ...ir.dim import Dim, as_dim, prod
from ...ir.graph import Graph, Value
from ...ir.target import Target
from ...ir.types import TensorType
from ...passes.select_rows import select_rows
from ..artifact.program import Buffer
from ..lowering import Lowering
from ..rows.token import next_power_of_two
from .capabilities import ARCHES, configured_chip
from .facts import PADDED_ROWS, KunlunTarget, kunlun_target
from .table import DENIED, TABLE

SLACK = 256
"""Bytes after a buffer: what the last block of an elementwise kernel reads on."""


def arch_names(arches: tuple[str, ...]) -> tuple[str, ...]:
    """The architectures to build for, checked; by default the newest."""
    unknown = [name for name in arches if name not in ARCHES]
    if unknown:
        raise LoweringError(
            f"--target kunlun: expected architectures among {', '.join(ARCHES)}, got {unknown[0]!r}"
        )
    return tuple(dict.fromkeys(arches)) or ("xpu3",)


def target_for(arches: tuple[str, ...], config: str = "") -> KunlunTarget:
    """The facts of one architecture, some replaced by a configuration file."""
    (arch, *more) = arch_names(arches)
    if more:
        raise LoweringError(
            f"--target kunlun: expected one architecture, got {', '.join(arch_names(arches))} "
            "(they share no tiles: compile one artifact for each)"
        )
    return kunlun_target(configured_chip(arch, config))


@cache
def padded_bytes(type: TensorType) -> Dim:
    """What a tensor takes in memory: room for `PADDED_ROWS` rows from any of its own, and slack.

    Sums, not maxima: the planner compares sizes as polynomials.
    """
    if type.rank == 0:
        return as_dim(type.bytes + SLACK)
    first, *rest = type.shape
    rows = sympy.sympify(first) + PADDED_ROWS - 1
    return as_dim(rows * prod(rest) * int(type.dtype.bits) / 8 + SLACK)


class KunlunLowering(Lowering):
    """Buffers padded for whole tiles."""

    def bytes_of(self, value: Value) -> Dim:
        return padded_bytes(value.type)

    def _state(self, value: Value) -> Buffer:
        """Heads of no power of two are read with what follows them; the last one too."""
        state = super()._state(value)
        wide = int(value.type.shape[-1])
        more = (next_power_of_two(wide) - wide) * int(value.type.dtype.bits) // 8
        return replace(state, bytes=f"{state.bytes} + {more}") if more else state


def lower(graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
    """Select a row for every node; ``partial`` leaves out those that have none, for reports."""
    selection = select_rows(graph, target, TABLE, DENIED, partial=partial)
    return KunlunLowering(graph, target, selection)
