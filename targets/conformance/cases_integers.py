"""Cases of integers other than i32: narrow ones, unsigned ones, and those of 64 bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...ir.dtype import F32, I32, U8, U16, U32, U64
from ...ir.op import OPS
from ...ir.ops.elementwise import Bitcast, Cast
from ...ir.ops.order import CumSum, PutAlong, TakeAlong, TopK
from ...ir.ops.reduce import Argmax, Argmin, Max, Min, Prod, Sum
from .case import Case, Rng, below, case

PAIRS = (
    *("add", "sub", "mul", "maximum", "minimum", "floor_div", "mod", "fmod", "trunc_div", "pow"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
    *("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"),
)
"""Ops of two integers."""


def _any_bits(rng: Rng, shape: tuple[int, ...]) -> Any:
    """Numbers of all sizes, most of which do not fit a narrow type: its low bits are kept."""
    return rng.integers(0, 1 << 63, shape, np.uint64) >> rng.integers(0, 63, shape, np.uint64)


def _small(rng: Rng, shape: tuple[int, ...]) -> Any:
    """Shifts, exponents and divisors."""
    return rng.integers(1, 16, shape)


def _cases() -> Iterable[Case]:
    for name in PAIRS:
        op = OPS[name]()
        for dtype in ("u16", "u64"):
            yield case(op, f"{dtype}[n, 4]", f"{dtype}[n, 4]", x0=_any_bits, x1=_small)
    for name in ("neg", "abs", "relu", "sign", "bit_not"):
        yield case(OPS[name](), "i16[n]")
        yield case(OPS[name](), "u32[n]", x0=_any_bits)
    for source, to in (("u16", F32), ("u64", F32), ("f32", U32), ("i16", U64), ("u32", U8)):
        yield case(Cast(to), f"{source}[n, 3]")
    for bits, to in (("f32", I32), ("u32", F32), ("i16", U16)):
        yield case(Bitcast(to), f"{bits}[n, 3]")
    for op in (Sum(0), Prod(0), Max(), Min(), Argmax(), Argmin(), CumSum(), TopK(3)):
        yield case(op, "u16[n, 5]", x0=_any_bits)
    yield case(TakeAlong(), "u64[n, 5]", "i32[n, 3]", x0=_any_bits, x1=below(5))
    yield case(PutAlong(), "i16[n, 5]", "i32[n, 1]", "i16[n, 1]", x1=below(5))


INTEGERS = tuple(_cases())
