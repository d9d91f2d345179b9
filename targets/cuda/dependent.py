"""Programmatic dependent launch: kernels that wait for their predecessor themselves."""

from __future__ import annotations

from ...ir.target import Target
from .facts import DEPENDENT_LAUNCH


def launch_options(target: Target) -> tuple[dict[str, object], dict[str, object]]:
    """(constants, compiler options) of a kernel that has a ``PDL`` constant.

    Such a kernel reads nothing before it has waited that one of those under way with it writes, so
    it may start while the one ahead of it ends. Inputs of a step are written by its first kernel
    alone, and the second lets none start before it has waited (`kernels/row_tables.py`).
    """
    if DEPENDENT_LAUNCH in target.features:
        return {"PDL": 1}, {"launch_pdl": True}
    return {"PDL": 0}, {}
