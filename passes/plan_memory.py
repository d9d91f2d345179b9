"""Memory planning: buffers whose lives do not overlap share bytes of one arena, on symbolic sizes.

Linear scan over the calls. A buffer takes the free slot that wastes least; sizes are compared at
nominal values, and a slot is as big as the largest of its buffers is for *every* value of the
symbols (a ``max`` in the dim language unless one size provably covers the other). Nothing is ever
moved.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from ..errors import PassError
from ..ir.dim import Dim, align, as_dim, concrete, dim_max, symbols_of

ALIGN_BYTES = 64
"""One cache line, and the widest vector register."""
NOMINAL = 64
"""Value of each symbol when two sizes are compared to find the best slot."""


@dataclass(frozen=True)
class Life:
    """A buffer of ``bytes`` that call ``first`` writes and call ``last`` is the last to read."""

    name: str
    bytes: Dim
    first: int
    last: int


@dataclass
class Slot:
    """A part of the arena and the buffers that take turns in it."""

    bytes: Dim
    free_after: int
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offsets in the arena by buffer name, and the arena's size."""

    offsets: Mapping[str, Dim]
    arena_bytes: Dim
    unshared_bytes: Dim
    """What the buffers would take without reuse, for the report."""


def plan_memory(lives: Sequence[Life]) -> MemoryPlan:
    """Offsets such that buffers alive at the same call never overlap."""
    slots: list[Slot] = []
    home: dict[str, Slot] = {}
    for life in sorted(lives, key=lambda b: (b.first, b.name)):
        if life.name in home:
            raise PassError(f"plan memory: buffer {life.name} is listed twice")
        size = align(life.bytes, ALIGN_BYTES)
        slot = _best_slot(slots, size, life.first)
        slot.bytes = cover(slot.bytes, size)
        slot.free_after = life.last
        slot.names.append(life.name)
        home[life.name] = slot
    starts, total = _stack(slots)
    unshared = as_dim(
        sum((sympy.sympify(align(b.bytes, ALIGN_BYTES)) for b in lives), sympy.Integer(0))
    )
    return MemoryPlan({name: starts[id(slot)] for name, slot in home.items()}, total, unshared)


def _best_slot(slots: list[Slot], size: Dim, call: int) -> Slot:
    """The free slot whose size is nearest, or a new one; growing a slot counts as waste too."""
    free = [slot for slot in slots if slot.free_after < call]
    if not free:
        slots.append(Slot(size, call))
        return slots[-1]
    return min(free, key=lambda slot: abs(_nominal(slot.bytes) - _nominal(size)))


def _stack(slots: list[Slot]) -> tuple[dict[int, Dim], Dim]:
    starts: dict[int, Dim] = {}
    total: Dim = 0
    for slot in slots:
        starts[id(slot)] = total
        total = as_dim(sympy.sympify(total) + slot.bytes)
    return starts, total


@functools.lru_cache(maxsize=65536)
def cover(a: Dim, b: Dim) -> Dim:
    """The larger of two sizes for every positive value of the symbols."""
    if _covers(a, b):
        return a
    return b if _covers(b, a) else dim_max(a, b)


def _covers(a: Dim, b: Dim) -> bool:
    """True if a - b is provably not negative: a polynomial in positive symbols, no minus."""
    difference = as_dim(sympy.sympify(a) - b)
    if isinstance(difference, int):
        return difference >= 0
    terms = sympy.Add.make_args(difference)
    return all(term.as_coeff_Mul()[0] >= 0 and not term.has(sympy.Pow) for term in terms)


@functools.lru_cache(maxsize=65536)
def _nominal(size: Dim) -> int:
    return concrete(size, dict.fromkeys(symbols_of(size), NOMINAL))
