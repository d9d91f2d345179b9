"""References of mathematical, indexing and spatial ops against torch on random operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sglk.errors import VerifyError
from sglk.ir.dtype import F32
from sglk.ir.op import Op
from sglk.ir.ops import math as m
from sglk.ir.ops.indexing import PutAxis, TakeAxis
from sglk.ir.ops.spatial import AvgPool, Convolution, MaxPool
from sglk.ir.types import TensorType

UNARY: dict[type[Op], Callable[..., torch.Tensor]] = {
    m.Acos: torch.acos,
    m.Acosh: torch.acosh,
    m.Asin: torch.asin,
    m.Asinh: torch.asinh,
    m.Atan: torch.atan,
    m.Atanh: torch.atanh,
    m.Ceil: torch.ceil,
    m.Cosh: torch.cosh,
    m.Sinh: torch.sinh,
    m.Tan: torch.tan,
    m.Expm1: torch.expm1,
    m.Log1p: torch.log1p,
    m.Log2: torch.log2,
    m.Log10: torch.log10,
    m.Round: torch.round,
    m.Trunc: torch.trunc,
    m.IsInf: torch.isinf,
    m.IsNan: torch.isnan,
}
FLOATS: dict[type[Op], Callable[..., torch.Tensor]] = {
    m.Atan2: torch.atan2,
    m.Fmod: torch.fmod,
    m.TruncDiv: lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
INTEGERS: dict[type[Op], Callable[..., torch.Tensor]] = {
    m.Fmod: torch.fmod,
    m.TruncDiv: FLOATS[m.TruncDiv],
    m.BitAnd: torch.bitwise_and,
    m.BitOr: torch.bitwise_or,
    m.BitXor: torch.bitwise_xor,
}


def same(got: Any, wanted: torch.Tensor) -> None:
    np.testing.assert_allclose(got, wanted.numpy(), rtol=3e-6, atol=1e-6, equal_nan=True)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.name)
def test_functions(op: type[Op], rng: np.random.Generator) -> None:
    x = rng.standard_normal(200, np.float32) * 2
    x[:4] = [np.inf, -np.inf, np.nan, 0]
    same(op().reference(x), UNARY[op](torch.from_numpy(x)))


@pytest.mark.parametrize(
    "op", [*FLOATS, *(op for op in INTEGERS if op not in FLOATS)], ids=lambda op: op.name
)
def test_pairs(op: type[Op], rng: np.random.Generator) -> None:
    if op in FLOATS:
        a, b = rng.standard_normal((2, 60), np.float32)
        same(op().reference(a, b), FLOATS[op](torch.from_numpy(a), torch.from_numpy(b)))
    if op in INTEGERS:
        a, b = rng.integers(-9, 9, (2, 60)).astype(np.int32)
        b[b == 0] = 4
        same(op().reference(a, b), INTEGERS[op](torch.from_numpy(a), torch.from_numpy(b)))


def test_shifts_beyond_the_width_lose_every_bit() -> None:
    a, b = np.array([-5, 5, -5, 5], np.int32), np.array([1, 1, 40, 40], np.int32)
    np.testing.assert_array_equal(m.ShiftLeft().reference(a, b), [-10, 10, 0, 0])
    np.testing.assert_array_equal(m.ShiftRight().reference(a, b), [-3, 2, -1, 0])


def test_parts_of_an_axis_are_taken_and_put(rng: np.random.Generator) -> None:
    x, ids = rng.standard_normal((3, 5, 2), np.float32), np.array([4, 0, 4], np.int32)
    src = rng.standard_normal((3, 3, 2), np.float32)
    places = torch.from_numpy(ids).long()
    same(TakeAxis(1).reference(x, ids), torch.from_numpy(x).index_select(1, places))
    added = torch.from_numpy(x).index_add(1, places, torch.from_numpy(src))
    same(PutAxis(1, "add").reference(x, ids, src), added)
    assert np.array_equal(PutAxis(1).reference(x, ids, src)[:, 4], src[:, 2])
    with pytest.raises(VerifyError, match=r"expected indices in 0..4, got 0..5"):
        TakeAxis(1).reference(x, np.array([0, 5], np.int32))
    with pytest.raises(VerifyError, match=r"put_axis: expected one of"):
        PutAxis(1, "sub").infer(*(TensorType(F32, a.shape) for a in (x, ids, src)))


def test_convolutions(rng: np.random.Generator) -> None:
    x, w = (
        rng.standard_normal((2, 4, 9, 7), np.float32),
        rng.standard_normal((6, 2, 3, 2), np.float32),
    )
    op = Convolution((2, 1), (1, 0), (1, 0), (2, 1), groups=2)
    tensors = (torch.from_numpy(x), torch.from_numpy(w))
    same(op.reference(x, w), F.conv2d(*tensors, None, (2, 1), (1, 0), (2, 1), 2))
    turned = rng.standard_normal((4, 3, 3, 2), np.float32)
    ours = turned.reshape(2, 2, 3, 3, 2).swapaxes(1, 2).reshape(6, 2, 3, 2)
    op = Convolution((2, 1), (1, 0), (0, 0), (2, 1), groups=2, transposed=True)
    theirs = torch.from_numpy(turned)
    wanted = F.conv_transpose2d(tensors[0], theirs, None, (2, 1), (1, 0), (1, 0), 2, (2, 1))
    same(op.reference(x, ours), wanted)


def test_pools(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 9, 7), np.float32)
    tensor = torch.from_numpy(x)
    values, ids = MaxPool((3, 2), (2, 2), (1, 0), (1, 1), (1, 2)).reference(x)
    wanted = F.max_pool2d(tensor, (3, 2), 2, (1, 0), (1, 2), True, return_indices=True)
    same(values, wanted[0])
    np.testing.assert_array_equal(ids, wanted[1].numpy())
    op = AvgPool((3, 2), (2, 2), (1, 0), (1, 1), (1, 1), count_padding=True, pads=(1, 0))
    same(op.reference(x), F.avg_pool2d(tensor, (3, 2), 2, (1, 0), True))
