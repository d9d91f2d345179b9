"""Cases of ops on windows (convolutions, pools) and of parts along an axis."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.ops.indexing import COMBINE, PutAxis, TakeAxis
from ...ir.ops.spatial import AvgPool, Convolution, MaxPool
from .case import WEIGHT, Case, below, below_own, case


def _convolutions() -> Iterable[Case]:
    line, plane = ((1,), (0,), (0,), (1,)), ((2, 1), (1, 0), (1, 2), (1, 2))
    yield case(Convolution(*line), "f32[n, 3, 9]", f"{WEIGHT}f32[5, 3, 3]")
    yield case(Convolution((1,), (2,), (0,), (1,), groups=4), "f32[1, 4, n]", "w f32[4, 1, 3]")
    grouped = Convolution(*plane, groups=2, has_bias=True)
    yield case(grouped, "f32[n, 4, 7, 6]", f"{WEIGHT}f32[6, 2, 3, 2]", f"{WEIGHT}f32[6]")
    transposed = Convolution((2,), (1,), (1,), (1,), transposed=True)
    yield case(transposed, "f32[n, 3, 5]", f"{WEIGHT}f32[4, 3, 4]")


def _pools() -> Iterable[Case]:
    yield case(MaxPool((2,), (2,), (0,), (0,), (1,)), "f32[n, 3, 8]")
    yield case(MaxPool((3, 2), (2, 1), (1, 0), (1, 0), (1, 1)), "f32[n, 2, 6, 5]")
    yield case(AvgPool((3,), (2,), (1,), (1,), (1,), pads=(1,)), "f32[n, 2, 9]")
    counted = AvgPool((3,), (2,), (1,), (2,), (1,), count_padding=True, pads=(1,))
    yield case(counted, "f32[n, 2, 8]")
    yield case(AvgPool((2,), (1,), (0,), (0,), (1,), divisor=-3, pads=(0,)), "f32[n, 2, 5]")


def _parts() -> Iterable[Case]:
    yield case(TakeAxis(), "f32[9, 3]", "i32[n]", x1=below(9))
    yield case(TakeAxis(1), "f32[n, 9, 2]", "i32[5]", x1=below(9))
    yield case(TakeAxis(), "i32[n, 3]", "i32[n]", x1=below_own)
    for how in COMBINE:
        yield case(PutAxis(0, how), "f32[9, 3]", "i32[n]", "f32[n, 3]", x1=below(9))
    yield case(PutAxis(1), "f32[n, 9]", "i32[4]", "f32[n, 4]", x1=below(9))


WINDOWS: tuple[Case, ...] = (*_convolutions(), *_pools(), *_parts())
