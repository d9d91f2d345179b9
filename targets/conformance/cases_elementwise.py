"""Cases of unary and binary ops, from their classes: a new one is covered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...ir.ops.elementwise import Binary, Unary
from .case import Case, Draw, Rng, case, divisors, positive, wide

FLOATS = ("f32", "bf16", "f16")
_DIVIDE = {"div", "floor_div", "mod", "fmod", "trunc_div"}


def _inside(rng: Rng, shape: tuple[int, ...]) -> Any:
    """Floats between -1 and 1."""
    return rng.uniform(-0.98, 0.98, shape)


def _above_one(rng: Rng, shape: tuple[int, ...]) -> Any:
    return rng.uniform(1, 20, shape)


_DOMAINS: dict[str, Draw] = {
    **dict.fromkeys(
        ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "pow"), positive
    ),
    **dict.fromkeys(("acos", "asin", "atanh", "tan"), _inside),
    "acosh": _above_one,
}
"""Where a function is defined and does not pass all bounds; elsewhere `wide`."""


def unary_cases(op: Unary) -> Iterable[Case]:
    draw = _DOMAINS.get(op.name, wide)
    if op.on == "bool":
        yield case(op, "bool[n]")
        return
    if op.on in ("float", "number"):
        for dtype in FLOATS:
            yield case(op, f"{dtype}[n]", x0=draw)
        yield case(op, "f32[n, 3, 5]", x0=draw)
    if op.on in ("integer", "number"):
        yield case(op, "i32[n]")


def binary_cases(op: Binary) -> Iterable[Case]:
    if op.on in ("bool", "integer"):
        dtype = "bool" if op.on == "bool" else "i32"
        yield case(op, f"{dtype}[n, 4]", f"{dtype}[n, 4]")
        yield case(op, f"{dtype}[n, 4]", f"{dtype}[1, 4]")
        return
    if op.name == "pow":
        yield case(op, "f32[n, 4]", "f32[1, 4]", x0=positive)
        return
    divides = op.name in _DIVIDE
    floats = divisors if divides else wide
    for dtype in FLOATS:
        yield case(op, f"{dtype}[n, 4]", f"{dtype}[n, 4]", x1=floats)
    if op.on != "float":
        yield case(op, "i32[n, 4]", "i32[n, 4]", x1=divisors if divides else None)
    yield from _broadcasts(op, floats if divides else None)


def _broadcasts(op: Binary, second: Draw | None) -> Iterable[Case]:
    """Strides of 0 at each place, one scalar, one side of lower rank."""
    for a, b in (("n, 1, 65", "1, 3, 65"), ("3", "n, 3"), ("n, 3", ""), ("n, 2, 1", "n, 1, 7")):
        yield case(op, f"f32[{a}]", f"f32[{b}]", x1=second)
