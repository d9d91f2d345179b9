"""Programmatic dependent launch: kernels that wait for their predecessor themselves."""

from __future__ import annotations

from ...ir.target import Target
from .facts import DEPENDENT_LAUNCH


def launch_options(target: Target) -> tuple[dict[str, object], dict[str, object]]:
    """(constants, compiler options) of a kernel that has a ``PDL`` constant.

    Such a kernel reads nothing that another one writes before it has waited, so it may start while
    the one ahead of it ends.
    """
    if DEPENDENT_LAUNCH in target.features:
        return {"PDL": 1}, {"launch_pdl": True}
    return {"PDL": 0}, {}
