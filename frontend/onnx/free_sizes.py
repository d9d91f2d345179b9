"""What a trace assumed of sizes that are to stay free: it must hold for all of them.

The trace has example sizes, and where the model's course depends on one (a slice beyond the end, a
condition) torch notes what it took for granted. Such a graph is wrong for other sizes, so the model
is refused with the condition, and the user fixes that size. An upper bound of one size, as tables
of positions have, is a limit instead: it travels with the artifact, and larger inputs are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

SAMPLES = (2, 3, 4, 5, 7, 8, 16, 33, 64, 127, 1024, 4099)
"""Sizes that a condition is tried on; 1 is left out since every trace takes sizes for more."""
MOST = 2000
"""Combinations of them that are tried."""


MIN_LIMIT = 32
"""Smaller upper bounds are no tables, but accidents of the example sizes."""


def assumptions(
    program: ExportedProgram, names: Mapping[str, str]
) -> tuple[dict[str, int], list[str]]:
    """Limits of sizes by name, and conditions that do not hold for all sizes below them."""
    env = _shape_env(program)
    limits: dict[str, int] = {}
    conditions: list[str] = []
    for guard in env.guards if env is not None else ():
        condition = env.replace(guard.expr)
        if _always(condition):
            continue
        renamed = {s: sympy.Symbol(names.get(str(s), str(s))) for s in _symbols(condition)}
        condition = condition.xreplace(renamed)
        name, limit = _limit(condition)
        if limit >= MIN_LIMIT:
            limits[name] = min(limit, limits.get(name, limit))
        else:
            conditions.append(str(condition))
    return limits, conditions


def _limit(condition: Any) -> tuple[str, int]:
    """``size <= number`` as both; any other condition as ("", 0)."""
    if not isinstance(condition, sympy.Le | sympy.Lt):
        return "", 0
    size, number = condition.args
    if not (size.is_Symbol and number.is_Integer):
        return "", 0
    return str(size), int(number) - isinstance(condition, sympy.Lt)


def _shape_env(program: ExportedProgram) -> Any:
    for node in program.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("val")
        for size in fake.shape if isinstance(fake, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _symbols(condition: Any) -> list[Any]:
    return sorted(getattr(condition, "free_symbols", ()), key=str)


def _always(condition: Any) -> bool:
    """That a size is not 1 (or 0), or at least 2, torch takes for granted everywhere."""
    if isinstance(condition, sympy.Ne) and condition.args[1] in (0, 1):
        return True
    if isinstance(condition, sympy.Ge) and condition.args[1] == 2:
        return True
    return all(bool(condition.xreplace(sizes)) for sizes in _trials(_symbols(condition)))


def _trials(symbols: list[Any]) -> Iterator[dict[Any, Any]]:
    combinations = itertools.product(SAMPLES, repeat=len(symbols))
    for sizes in itertools.islice(combinations, MOST):
        yield dict(zip(symbols, map(sympy.Integer, sizes), strict=True))
