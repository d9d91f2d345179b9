"""Rotary embedding and cache writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels import rope

Launch = Callable[..., None]
Array = NDArray[Any]
PAGE = 32


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def tables(tokens: int, half: int) -> tuple[Array, Array]:
    angle = normal(tokens, half, seed=9)
    return np.cos(angle), np.sin(angle)


def rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x [T, H, D]; the way transformers writes it."""
    half = cos.shape[1]
    pick = np.arange(2 * half)
    first = pick[::2] if interleaved else pick[:half]
    second = pick[1::2] if interleaved else pick[half:]
    y = x.copy()
    c, s = cos[:, None], sin[:, None]
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., second] * c + x[..., first] * s
    return y


def blocks(half: int, dim: int) -> dict[str, int]:
    return {"BLOCK_HALF": 1 << (half - 1).bit_length(), "BLOCK_D": 1 << (dim - 1).bit_length()}


def test_table(launch: Launch) -> None:
    positions = np.array([0, 1, 77, 8191, 131071], np.int32)
    inv_freq = (10000.0 ** (-np.arange(32) / 32)).astype(np.float32)
    cos, sin = np.full((2, 5, 32), np.nan, np.float32)
    given = {"positions": positions, "inv_freq": inv_freq, "cos": cos, "sin": sin}
    launch(rope.rope_table, (5, 1, 1), {"HALF": 32, "BLOCK_HALF": 32}, **given, scale=1.5)
    angle = (positions[:, None].astype(np.float32) * inv_freq).astype(np.float64)
    np.testing.assert_allclose(cos, 1.5 * np.cos(angle), rtol=0, atol=1e-6)
    np.testing.assert_allclose(sin, 1.5 * np.sin(angle), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dim", "half", "interleaved"), [(64, 32, False), (64, 32, True), (80, 20, False)]
)
def test_rope(launch: Launch, dim: int, half: int, interleaved: bool) -> None:
    x, (cos, sin) = normal(5, 3, dim), tables(5, half)
    y = np.full_like(x, np.nan)
    constants = {"HEADS": 3, "D": dim, "HALF": half, "INTERLEAVED": interleaved}
    constants |= blocks(half, dim)
    launch(rope.rope, (5, 1, 1), constants, x=x, cos=cos, sin=sin, y=y)
    np.testing.assert_allclose(y, rotate(x, cos, sin, interleaved), rtol=1e-5, atol=1e-6)


SLOTS = np.array([70, 3, 32, 127, 64], np.int32)


def cached(k_cache: Array, v_cache: Array, slots: Array) -> tuple[Array, Array]:
    """K and V [T, KV_HEADS, D] as attention would read them."""
    return k_cache[slots // PAGE, :, :, slots % PAGE], v_cache[slots // PAGE, :, slots % PAGE]


def untouched(cache: Array, count: int) -> bool:
    return int(np.isnan(cache).sum()) == cache.size - count


@pytest.mark.parametrize(("dim", "half"), [(64, 32), (80, 20)])
def test_rope_write_kv(launch: Launch, dim: int, half: int) -> None:
    qkv, (cos, sin) = normal(5, (4 + 2 * 2) * dim), tables(5, half)
    q = np.full((5, 4, dim), np.nan, np.float32)
    k_cache = np.full((4, 2, dim, PAGE), np.nan, np.float32)
    v_cache = np.full((4, 2, PAGE, dim), np.nan, np.float32)
    constants = {"HEADS": 4, "KV_HEADS": 2, "D": dim, "HALF": half, "PAGE": PAGE}
    constants |= {"INTERLEAVED": False, **blocks(half, dim)}
    given = {"qkv": qkv, "cos": cos, "sin": sin, "q_norm": None, "k_norm": None, "slots": SLOTS}
    given |= {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    launch(rope.rope_write_kv, (5, 1, 1), constants, **given, eps=0.0)
    heads = qkv.reshape(5, 8, dim)
    rotated = rotate(heads[:, :6], cos, sin, False)
    k, v = cached(k_cache, v_cache, SLOTS)
    np.testing.assert_allclose(q, rotated[:, :4], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(k, rotated[:, 4:], rtol=1e-5, atol=1e-6)
    assert np.array_equal(v, heads[:, 6:])
    assert untouched(k_cache, 5 * 2 * dim)
    assert untouched(v_cache, 5 * 2 * dim)


def write_normed(launch: Launch, qkv: Array, k_cache: Any, v_cache: Any) -> tuple[Array, Array]:
    """What q and k must be; the caches are written."""
    cos, sin = tables(5, 32)
    q_norm, k_norm = normal(64, seed=1), normal(64, seed=2)
    q = np.full((5, 4, 64), np.nan, np.float32)
    constants = {"HEADS": 4, "KV_HEADS": 2, "D": 64, "HALF": 32, "PAGE": PAGE}
    constants |= {"INTERLEAVED": False, **blocks(32, 64)}
    given = {"qkv": qkv, "cos": cos, "sin": sin, "q_norm": q_norm, "k_norm": k_norm, "q": q}
    given |= {"slots": SLOTS, "k_cache": k_cache, "v_cache": v_cache}
    launch(rope.rope_write_kv, (5, 1, 1), constants, **given, eps=1e-6)
    heads = qkv.reshape(5, 8, 64)
    scaled = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6)
    expected = rotate(scaled[:, :4] * q_norm, cos, sin, False)
    np.testing.assert_allclose(q, expected, rtol=1e-5, atol=1e-6)
    return rotate(scaled[:, 4:6] * k_norm, cos, sin, False), heads[:, 6:]


def test_rope_write_kv_with_head_norms_into_bf16(
    launch: Launch, bf16: Callable[[Array], Any]
) -> None:
    k_cache, v_cache = bf16(np.zeros((4, 2, 64, PAGE))), bf16(np.zeros((4, 2, PAGE, 64)))
    expected_k, expected_v = write_normed(launch, normal(5, 8 * 64), k_cache, v_cache)
    k, v = cached(k_cache.floats(), v_cache.floats(), SLOTS)
    np.testing.assert_allclose(k, expected_k, rtol=8e-3, atol=1e-6)
    assert np.array_equal(v, bf16(expected_v).floats())


def test_rope_write_kv_with_head_norms_into_f16(launch: Launch) -> None:
    k_cache = np.full((4, 2, 64, PAGE), np.nan, np.float16)
    v_cache = np.full((4, 2, PAGE, 64), np.nan, np.float16)
    expected_k, expected_v = write_normed(launch, normal(5, 8 * 64), k_cache, v_cache)
    k, v = cached(k_cache, v_cache, SLOTS)
    np.testing.assert_allclose(k, expected_k, rtol=1e-3, atol=1e-6)
    assert np.array_equal(v, expected_v.astype(np.float16))
    assert untouched(k_cache, 5 * 2 * 64)
    assert untouched(v_cache, 5 * 2 * 64)


def hard_to_round(count: int) -> Array:
    """Ties, limits and subnormals of f16, then floats of every size and sign."""
    ties = [2049, 2051, -2049, 1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25, 2**-14 - 2**-25]
    limits = [65504, 65519.996, 65520, -65520, 1e30, 2**-26, -(2**-24), 0.0, -0.0, np.inf, np.nan]
    rng = np.random.default_rng(3)
    rest = rng.standard_normal(count) * 2.0 ** rng.integers(-30, 18, count)
    return np.concatenate([ties, limits, rest])[:count].astype(np.float32)


@pytest.mark.parametrize("dim", [64, 80])
def test_f16_cache_rounds_as_numpy_and_overflows_to_infinity(launch: Launch, dim: int) -> None:
    check_f16_rounding(launch, dim)


def test_other_machines_round_to_f16_alike(elsewhere: Launch) -> None:
    check_f16_rounding(elsewhere, 64)


def check_f16_rounding(launch: Launch, dim: int) -> None:
    k = hard_to_round(10 * dim).reshape(5, 2, dim)
    v = np.ascontiguousarray(k[::-1, :, ::-1])
    k_cache, v_cache = np.zeros((4, 2, dim, PAGE), "f2"), np.zeros((4, 2, PAGE, dim), "f2")
    constants = {"KV_HEADS": 2, "D": dim, "PAGE": PAGE, "BLOCK_D": 64 if dim == 64 else 128}
    given = {"k": k, "v": v, "slots": SLOTS, "k_cache": k_cache, "v_cache": v_cache}
    launch(rope.write_kv, (5, 1, 1), constants, **given)
    with np.errstate(over="ignore"):
        expected_k, expected_v = k.astype(np.float16), v.astype(np.float16)
    got_k, got_v = cached(k_cache, v_cache, SLOTS)
    np.testing.assert_array_equal(got_k, expected_k)  # NaN equals NaN
    np.testing.assert_array_equal(np.signbit(got_k), np.signbit(expected_k))
    np.testing.assert_array_equal(got_v, expected_v)
    assert np.isinf(got_k[0, 0, 10])  # 65520
    assert got_k[0, 0, 9] == 65504  # 65519.996


@pytest.mark.parametrize("dim", [64, 80])
def test_write_kv(launch: Launch, dim: int) -> None:
    k, v = normal(5, 2, dim), normal(5, 2, dim, seed=1)
    k_cache = np.full((4, 2, dim, PAGE), np.nan, np.float32)
    v_cache = np.full((4, 2, PAGE, dim), np.nan, np.float32)
    constants = {"KV_HEADS": 2, "D": dim, "PAGE": PAGE, "BLOCK_D": 64 if dim == 64 else 128}
    given = {"k": k, "v": v, "slots": SLOTS, "k_cache": k_cache, "v_cache": v_cache}
    launch(rope.write_kv, (5, 1, 1), constants, **given)
    got_k, got_v = cached(k_cache, v_cache, SLOTS)
    assert np.array_equal(got_k, k)
    assert np.array_equal(got_v, v)
    assert untouched(k_cache, 10 * dim)
    assert untouched(v_cache, 10 * dim)
