"""Cases of more dims than four, by patterns of strides that cannot be joined; equality of bools."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.dim import dim
from ...ir.op import OPS
from ...ir.ops.elementwise import Binary, Eq, Ne, Where
from ...ir.ops.shape import Broadcast, Concat, Slice, Transpose
from .case import Case, case, divisors, positive

N = dim("n")
_DIVIDE = {"div", "floor_div", "mod", "fmod", "trunc_div"}


def _binary() -> Iterable[Case]:
    for name, kind in OPS.items():
        if not issubclass(kind, Binary):
            continue
        dtype = {"bool": "bool", "integer": "i32"}.get(kind.on, "f32")
        first = positive if name == "pow" else None
        second = divisors if name in _DIVIDE else None
        shapes = f"{dtype}[2, n, 1, 3, 2]", f"{dtype}[n, 4, 1, 2]"
        yield case(kind(), *shapes, x0=first, x1=second)


def _others() -> Iterable[Case]:
    yield case(Where(), "bool[2, 1, 3, 1, n]", "f32[2, 3, 1, 5, n]", "f32[]")
    yield case(Transpose((2, 0, 4, 1, 3)), "f32[2, n, 3, 4, 5]")
    yield case(Slice(2, 1, 4, 2), "f32[2, n, 5, 2, 3]")
    yield case(Broadcast((2, N, 3, 4, 5)), "f32[n, 1, 4, 1]")
    yield case(Concat(3), "f32[2, 2, n, 3, 5]", "f32[2, 2, n, 1, 5]")
    for op in (Eq(), Ne()):
        yield case(op, "bool[n, 4]", "bool[1, 4]")


ANY_RANK: tuple[Case, ...] = (*_binary(), *_others())
