"""Memory planning: no two living buffers overlap, for any value of the symbols."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglk.errors import PassError
from sglk.ir.dim import concrete, dim
from sglk.passes.plan_memory import Life, cover, plan_memory

T, L = dim("tokens"), dim("rows")


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    count = draw(st.integers(1, 12))
    result = []
    for i in range(count):
        first = draw(st.integers(0, 10))
        last = draw(st.integers(first, 12))
        tokens, rows, plain = (draw(st.integers(0, 300)) for _ in range(3))
        result.append(Life(f"b{i}", T * tokens + L * rows + plain + 1, first, last))
    return result


@given(lives(), st.integers(1, 600), st.integers(1, 40))
def test_living_buffers_never_overlap(buffers: list[Life], tokens: int, rows: int) -> None:
    sizes = {"tokens": tokens, "rows": rows}
    plan = plan_memory(buffers)
    arena = concrete(plan.arena_bytes, sizes)
    spans = [
        (b, s := concrete(plan.offsets[b.name], sizes), s + concrete(b.bytes, sizes))
        for b in buffers
    ]
    for i, (a, a_start, a_end) in enumerate(spans):
        assert a_start % 64 == 0 and a_end <= arena
        for b, b_start, b_end in spans[i + 1 :]:
            together = a.first <= b.last and b.first <= a.last
            assert not together or a_end <= b_start or b_end <= a_start, (a, b)


def test_a_chain_needs_two_buffers() -> None:
    plan = plan_memory([Life(f"b{i}", T * 256, i, i + 1) for i in range(20)])
    assert plan.arena_bytes == 512 * T
    assert plan.unshared_bytes == 20 * 256 * T


def test_cover_is_the_larger_for_every_size() -> None:
    assert cover(T * 64, T * 128) == 128 * T
    assert concrete(cover(T * 64, L * 640), {"tokens": 20, "rows": 1}) == 1280
    assert concrete(cover(T * 64, L * 640), {"tokens": 1, "rows": 1}) == 640


def test_a_name_listed_twice_is_refused() -> None:
    with pytest.raises(PassError, match="a is listed twice"):
        plan_memory([Life("a", 4, 0, 1), Life("a", 4, 2, 3)])
