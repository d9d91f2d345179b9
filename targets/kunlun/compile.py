"""The compile side of the Kunlun target: from a step graph to a row for every op."""

from __future__ import annotations

from ...errors import LoweringError
from ...ir.graph import Graph
from ...ir.target import Target
from ...passes.select_rows import select_rows
from ..lowering import Lowering
from .buffers import KunlunLowering
from .capabilities import ARCHES, configured_chip
from .facts import KunlunTarget, kunlun_target
from .table import DENIED, TABLE


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


def lower(graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
    """Select a row for every node; ``partial`` leaves out those that have none, for reports."""
    selection = select_rows(graph, target, TABLE, DENIED, partial=partial)
    return KunlunLowering(graph, target, selection)
