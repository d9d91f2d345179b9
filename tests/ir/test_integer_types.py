"""Integers of every width wrap, convert and compare as NumPy's do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sglk.ir.dtype import BOOL, DTYPES, F32, I64, DType
from sglk.ir.graph import Graph
from sglk.ir.interpret import interpret
from sglk.ir.op import OPS
from sglk.ir.ops.elementwise import Cast
from sglk.ir.ops.order import CumSum, TopK
from sglk.ir.ops.reduce import Max, Min, Prod, Sum
from sglk.ir.parser import parse_graph
from sglk.ir.types import TensorType

INTEGERS = [d for d in DTYPES.values() if d.is_integer]
ARITHMETIC: dict[str, Callable[[int, int], int | None]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "mod": lambda a, b: a % b if b else None,
    "floor_div": lambda a, b: a // b if b else None,
    "trunc_div": lambda a, b: int(abs(a) // abs(b)) * (1 if a * b >= 0 else -1) if b else None,
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: a ^ b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
}
"""Each op on Python's integers, which have no width; None where the result is not defined."""


def edges(dtype: DType) -> np.ndarray:
    info = np.iinfo(dtype.numpy)
    picked = {info.min, info.min + 1, 0, 1, 2, 3, 100, info.max // 2, info.max - 1, info.max}
    return np.array(sorted(picked), dtype.numpy)


def wrapped(number: int, dtype: DType) -> int:
    bits = int(dtype.bits)
    low = 0 if dtype.is_unsigned else 1 << (bits - 1)
    return (int(number) + low) % (1 << bits) - low


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_arithmetic_wraps(dtype: DType, name: str) -> None:
    a, b = (x.reshape(-1) for x in np.meshgrid(edges(dtype), edges(dtype)))
    got = OPS[name]().reference(a, b)
    assert got.dtype in (dtype.numpy, np.bool_)
    for x, y, z in zip(a, b, got, strict=True):
        wanted = ARITHMETIC[name](int(x), int(y))
        assert wanted is None or int(z) == wrapped(wanted, dtype), (x, y)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_drop_what_leaves_the_word(dtype: DType) -> None:
    bits = int(dtype.bits)
    a = edges(dtype)
    for by in (0, 1, bits - 1, bits):
        b = np.full_like(a, by)
        left, right = OPS["shift_left"]().reference(a, b), OPS["shift_right"]().reference(a, b)
        for x, up, down in zip(a, left, right, strict=True):
            assert int(up) == (wrapped(int(x) << by, dtype) if by < bits else 0)
            assert int(down) == int(x) >> by


@pytest.mark.parametrize("to", [*INTEGERS, BOOL, F32], ids=str)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_casts_keep_the_low_bits(dtype: DType, to: DType) -> None:
    for x, y in zip(edges(dtype), Cast(to).reference(edges(dtype)), strict=True):
        if to == F32:
            assert y == np.float32(int(x))
        else:
            assert int(y) == (bool(x) if to == BOOL else wrapped(int(x), to))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_order_and_sums_of_extremes(dtype: DType) -> None:
    x = edges(dtype)
    values, ids = TopK(len(x)).reference(x)
    assert [int(v) for v in values] == sorted(map(int, x), reverse=True)
    np.testing.assert_array_equal(x[ids], values)
    assert Max().reference(x) == x.max() and Min().reference(x) == x.min()
    total = sum(map(int, x))
    assert int(Sum().reference(x)) == int(CumSum().reference(x)[-1]) == wrapped(total, dtype)
    assert int(Prod().reference(x[-2:])) == wrapped(int(x[-2]) * int(x[-1]), dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_constants_read_back_from_text(dtype: DType) -> None:
    graph = Graph("edges")
    data = edges(dtype)
    graph.outputs = [graph.emit(Cast(I64), graph.const(data, TensorType(dtype, data.shape)))]
    (read,) = interpret(parse_graph(graph.as_text()), {})
    np.testing.assert_array_equal(read, data.astype(np.int64))
