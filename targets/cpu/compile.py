"""The compile side of the CPU target: from a captured graph to a program and its libraries."""

from __future__ import annotations

from dataclasses import replace

from ...errors import LoweringError
from ...ir.graph import Graph
from ...ir.target import Target
from ...passes.select_rows import select_rows
from ..lowering import Lowering
from ..tilec import native_isa
from .facts import LANES, ROUNDED_FROM, cpu_target
from .table import DENIED, TABLE


def isa_names(arches: tuple[str, ...]) -> tuple[str, ...]:
    """Instruction sets by name, checked; ``native`` is this machine's, and the default."""
    names = [native_isa().name if name == "native" else name for name in arches or ("native",)]
    unknown = [name for name in names if name not in LANES]
    if unknown:
        known = ", ".join(("native", *LANES))
        raise LoweringError(f"--cpu-isa: expected names among {known}, got {unknown[0]!r}")
    return tuple(dict.fromkeys(names))


def target_for(
    isas: tuple[str, ...], *, handwritten: bool = True, batch_invariant: bool = True
) -> Target:
    """Facts that hold for every variant: those of the narrowest one."""
    facts = cpu_target(min(isas, key=LANES.__getitem__))
    facts = replace(facts, handwritten=handwritten, batch_invariant=batch_invariant)
    if batch_invariant or not handwritten or not all(isa.endswith("_amx") for isa in isas):
        return facts
    buckets = (*facts.token_buckets, ROUNDED_FROM - 1)
    return replace(facts, rounded_from=ROUNDED_FROM, token_buckets=buckets)


def lower(graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
    """Select a row for every node; ``partial`` leaves out those that have none, for reports."""
    return Lowering(graph, target, select_rows(graph, target, TABLE, DENIED, partial=partial))
