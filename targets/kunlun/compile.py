"""The compile side of the Kunlun target: from a step graph to a program whose blocks stay inside.

Block transfers fault outside an allocation, masked lanes included, so every buffer of rows has
memory for `PADDED_ROWS` of them, and everything that tiles read on into has some after its end.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from ...errors import LoweringError
from ...ir.dim import Dim, as_dim, dim_max, dim_text, parse_dim, prod
from ...ir.graph import Graph, Value
from ...ir.target import Target
from ...ir.types import TensorType
from ...passes.select_rows import select_rows
from ..artifact.program import Program
from ..lowering import Lowering
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


def padded_bytes(type: TensorType) -> Dim:
    """What a tensor takes in memory: at least `PADDED_ROWS` rows, and slack after them."""
    if type.rank == 0:
        return as_dim(type.bytes + SLACK)
    first, *rest = type.shape
    rows = dim_max(first, PADDED_ROWS)
    size = sympy.sympify(rows) * prod(rest) * int(type.dtype.bits) / 8
    return as_dim(size + SLACK)


class KunlunLowering(Lowering):
    """Buffers padded for whole tiles."""

    def bytes_of(self, value: Value) -> Dim:
        return padded_bytes(value.type)

    def program(self, entry: str, symbols: tuple[str, ...]) -> Program:
        """The last buffer of the arena is read on into by a tile of `PADDED_ROWS` rows."""
        program = super().program(entry, symbols)
        arena = parse_dim(program.arena_bytes)
        tail = PADDED_ROWS * max((_row_bytes(v.type) for v in self.graph.values()), default=0)
        return replace(program, arena_bytes=dim_text(as_dim(sympy.sympify(arena) + tail)))


def _row_bytes(type: TensorType) -> int:
    """Bytes of one row of a value whose rows are tokens."""
    rest = [d for d in type.shape[1:] if isinstance(d, int)]
    return int(prod(rest)) * int(type.dtype.bits) // 8 if type.rank in (2, 3) else 0


def lower(graph: Graph, target: Target) -> Lowering:
    """Select a row for every node."""
    return KunlunLowering(graph, target, select_rows(graph, target, TABLE, DENIED))
