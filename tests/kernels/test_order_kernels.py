"""Ops along one axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglk.ir.ops.order import PutAlong, TakeAlong, TopK
from sglk.targets.kernels import order

Launch = Callable[..., None]
Array = NDArray[Any]
ROWS, N, K = 4, 11, 3


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def test_largest_first_and_equal_ones_by_place(launch: Launch) -> None:
    x = normal(ROWS, N)
    x[1] = 0
    x[2, :9] = -np.inf  # fewer finite ones than asked for
    values, ids = np.zeros((ROWS, K), np.float32), np.zeros((ROWS, K), np.int32)
    constants = {"N": N, "TOP_K": K, "BLOCK": 16}
    launch(order.top_k, (ROWS, 1, 1), constants, x=x, values=values, ids=ids)
    wanted = TopK(K).reference(x)
    assert np.array_equal(values, wanted[0])
    assert np.array_equal(ids, wanted[1])


def test_elements_by_index_there_and_back(launch: Launch) -> None:
    x, ids = normal(ROWS, N), np.array([[0, 10, 4], [3, 3, 3], [1, 2, 0], [9, 8, 9]], np.int32)
    y = np.zeros((ROWS, K), np.float32)
    launch(order.take_along, (ROWS, 1, 1), {"N": N, "TOP_K": K}, x=x, ids=ids, y=y)
    assert np.array_equal(y, TakeAlong().reference(x, ids))
    put, src = np.zeros_like(x), normal(ROWS, K)
    constants = {"N": N, "TOP_K": K, "BLOCK": 16}
    launch(order.put_along, (ROWS, 1, 1), constants, x=x, ids=ids, src=src, y=put)
    assert np.array_equal(put, PutAlong().reference(x, ids, src))


def test_sums(launch: Launch) -> None:
    x = normal(ROWS, N)
    y = np.zeros_like(x)
    launch(order.cumsum, (ROWS, 1, 1), {"N": N}, x=x, y=y)
    np.testing.assert_allclose(y, np.cumsum(x, 1), rtol=1e-5, atol=1e-5)
    z, total = normal(2, 3, 70), np.zeros((2, 70), np.float32)
    constants = {"N": 3, "INNER": 70, "BLOCK": 64}
    launch(order.sum_middle, (2, 2, 1), constants, x=z, y=total)
    np.testing.assert_allclose(total, z.sum(1), rtol=1e-5, atol=1e-6)


def test_small_products_in_batches(launch: Launch) -> None:
    a, b = normal(2, 3, 4, 5), normal(3, 5, 70)  # b serves both of the outer batches
    y = np.zeros((2, 3, 4, 70), np.float32)
    strides = {"d1": 3, "a0": 60, "a1": 20, "b0": 0, "b1": 350}
    constants = {"M": 4, "K": 5, "N": 70, "BLOCK": 64}
    launch(order.batched_matmul, (24, 2, 1), constants, a=a, b=b, y=y, **strides)
    np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-5)
