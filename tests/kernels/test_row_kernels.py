"""Norms, gathers: one program per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels import embedding, norm
from sglk.targets.kernels.packing import pack_dense

Launch = Callable[..., None]
Array = NDArray[Any]
SIZES = pytest.mark.parametrize(("hidden", "block"), [(576, 64), (200, 128)])


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def rmsnorm(x: Array, w: Array | None, offset: float = 0.0) -> Array:
    x = x.astype(np.float64)
    y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return y if w is None else y * (w + offset)


@SIZES
def test_rmsnorm(launch: Launch, hidden: int, block: int) -> None:
    x, w = normal(3, hidden), normal(hidden, seed=1)
    y = np.full_like(x, np.nan)
    constants = {"HIDDEN": hidden, "OFFSET": 0.0, "BLOCK": block}
    launch(norm.rmsnorm, (3, 1, 1), constants, x=x, w=w, y=y, eps=1e-5)
    np.testing.assert_allclose(y, rmsnorm(x, w), rtol=1e-5, atol=1e-6)


def test_rmsnorm_with_offset_and_half_width_weight(
    launch: Launch, bf16: Callable[[Array], Any]
) -> None:
    x, w = normal(3, 576), bf16(normal(576, seed=1))
    y = np.full_like(x, np.nan)
    constants = {"HIDDEN": 576, "OFFSET": 1.0, "BLOCK": 64}
    launch(norm.rmsnorm, (3, 1, 1), constants, x=x, w=w, y=y, eps=1e-5)
    np.testing.assert_allclose(y, rmsnorm(x, w.floats(), 1.0), rtol=1e-5, atol=1e-6)


def test_rmsnorm_without_weight_in_place(launch: Launch) -> None:
    x = normal(3, 576)
    expected = rmsnorm(x, None)
    constants = {"HIDDEN": 576, "OFFSET": 0.0, "BLOCK": 64}
    launch(norm.rmsnorm, (3, 1, 1), constants, x=x, w=None, y=x, eps=1e-5)
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


@SIZES
@pytest.mark.parametrize("in_place", [False, True])
def test_add_rmsnorm(launch: Launch, hidden: int, block: int, in_place: bool) -> None:
    x, residual, w = normal(3, hidden), normal(3, hidden, seed=2), normal(hidden, seed=1)
    expected = x + residual
    total, y = residual if in_place else np.full_like(x, np.nan), np.full_like(x, np.nan)
    constants = {"HIDDEN": hidden, "OFFSET": 0.0, "BLOCK": block}
    arrays = {"x": x, "residual": residual, "w": w, "sum": total, "y": y}
    launch(norm.add_rmsnorm, (3, 1, 1), constants, **arrays, eps=1e-5)
    assert np.array_equal(total, expected)
    np.testing.assert_allclose(y, rmsnorm(expected, w), rtol=1e-5, atol=1e-6)


@SIZES
def test_layernorm(launch: Launch, hidden: int, block: int) -> None:
    x, w, b = normal(3, hidden) + 5, normal(hidden, seed=1), normal(hidden, seed=2)
    y = np.full_like(x, np.nan)
    constants = {"HIDDEN": hidden, "BLOCK": block}
    launch(norm.layernorm, (3, 1, 1), constants, x=x, w=w, b=b, y=y, eps=1e-5)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_gather(launch: Launch, bf16: Callable[[Array], Any], packed: bool, wide: bool) -> None:
    rows = normal(70, 200)
    table: Any = rows if wide else bf16(rows)
    expected = rows if wide else table.floats()
    if packed:
        table = pack_dense(rows) if wide else type(table)(pack_dense(table.bits))
    ids = np.array([0, 69, 63, 64, 0], np.int32)
    y = np.full((5, 200), np.nan, np.float32)
    kernel = embedding.gather_packed if packed else embedding.gather_rows
    launch(kernel, (5, 1, 1), {"K": 200, "BLOCK": 64}, table=table, ids=ids, y=y, scale=2.0)
    assert np.array_equal(y, expected[ids] * 2)
