"""Rotation and cache writes, norms, fp8 rows and step inputs, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels import rope_pages, row_norm, row_tables, step_inputs

pytestmark = pytest.mark.device
Launch = Callable[..., None]
Array = NDArray[Any]
ToBF16 = Callable[[Array], Any]
PAGE = 64
SLOTS = np.array([130, 3, 64, 191, 65], np.int32)
HEADS, KV_HEADS = 5, 2


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def blocks(half: int, dim: int) -> dict[str, Any]:
    return {
        "BLOCK_HALF": 1 << (half - 1).bit_length(),
        "BLOCK_D": 1 << (dim - 1).bit_length(),
        "PDL": False,
    }


def tables(half: int) -> tuple[Array, Array]:
    angle = normal(len(SLOTS), half, seed=9)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    half = cos.shape[1]
    pick = np.arange(2 * half)
    first = pick[::2] if interleaved else pick[:half]
    second = pick[1::2] if interleaved else pick[half:]
    y = x.astype(np.float64)
    c, s = cos[:, None].astype(np.float64), sin[:, None]
    y[..., first], y[..., second] = (
        y[..., first] * c - y[..., second] * s,
        y[..., second] * c + y[..., first] * s,
    )
    return y


def rms(x: Array, eps: float) -> Array:
    wide: Array = x.astype(np.float64)
    scaled: Array = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps)
    return scaled


def assert_rounded(got: Array, expected: Array) -> None:
    """Within a rounding to bf16, or two where the sum behind it rounded too."""
    np.testing.assert_allclose(got, expected, rtol=8e-3, atol=1e-5)


def cached(cache: Any, dim: int) -> Array:
    """K or V [T, KV_HEADS, D] at the slots; every other cell must be NaN still."""
    values: Array = cache.floats()
    assert np.isnan(values).sum() == values.size - len(SLOTS) * KV_HEADS * dim
    return values[SLOTS // PAGE, :, SLOTS % PAGE]


@pytest.mark.parametrize(
    ("dim", "half", "interleaved", "has_norms"),
    [(64, 32, False, True), (80, 20, False, False), (64, 32, True, True), (96, 16, True, False)],
)
def test_rope_write_kv(
    launch: Launch, bf16: ToBF16, dim: int, half: int, interleaved: bool, has_norms: bool
) -> None:
    qkv = bf16(normal(len(SLOTS), (HEADS + 2 * KV_HEADS) * dim))
    norms: list[Any] = [bf16(1 + normal(dim, seed=seed)) for seed in (1, 2)]
    norms = norms if has_norms else [None, None]
    cos, sin = tables(half)
    q = bf16(np.full((len(SLOTS), HEADS, dim), np.nan))
    caches = [bf16(np.full((4, KV_HEADS, PAGE, dim), np.nan)) for _ in range(2)]
    given = {"qkv": qkv, "cos": cos, "sin": sin, "q_norm": norms[0], "k_norm": norms[1]}
    given |= {"slots": SLOTS.copy(), "q": q, "k_cache": caches[0], "v_cache": caches[1]}
    constants = {"HEADS": HEADS, "KV_HEADS": KV_HEADS, "D": dim, "HALF": half, "PAGE": PAGE}
    constants |= {"INTERLEAVED": interleaved, "BLOCK_H": 2, **blocks(half, dim)}
    grid = (len(SLOTS), rope_pages.parts_of(2, HEADS, KV_HEADS, KV_HEADS), 1)
    launch(rope_pages.rope_write_kv, grid, constants, **given, eps=1e-6)
    heads = qkv.floats().reshape(len(SLOTS), -1, dim)
    parts = np.split(heads, [HEADS, HEADS + KV_HEADS], axis=1)
    if has_norms:
        parts[:2] = [rms(x, 1e-6) * w.floats() for x, w in zip(parts, norms, strict=False)]
    assert_rounded(q.floats(), rotate(parts[0], cos, sin, interleaved))
    assert_rounded(cached(caches[0], dim), rotate(parts[1], cos, sin, interleaved))
    assert np.array_equal(cached(caches[1], dim), parts[2])


def test_rope_and_write_kv_alone(launch: Launch, bf16: ToBF16) -> None:
    (cos, sin), dim = tables(32), 64
    x, y = bf16(normal(len(SLOTS), HEADS, dim)), bf16(np.full((len(SLOTS), HEADS, dim), np.nan))
    constants = {"HEADS": HEADS, "D": dim, "HALF": 32, "INTERLEAVED": False, "BLOCK_H": 4}
    grid = (len(SLOTS), rope_pages.parts_of(4, HEADS), 1)
    constants |= blocks(32, dim)
    launch(rope_pages.rope, grid, constants, x=x, cos=cos, sin=sin, y=y)
    assert_rounded(y.floats(), rotate(x.floats(), cos, sin, False))
    k, v = (bf16(normal(len(SLOTS), KV_HEADS, dim, seed=seed)) for seed in (1, 2))
    caches = [bf16(np.full((4, KV_HEADS, PAGE, dim), np.nan)) for _ in range(2)]
    given = {"k": k, "v": v, "slots": SLOTS.copy(), "k_cache": caches[0], "v_cache": caches[1]}
    constants = {"KV_HEADS": KV_HEADS, "D": dim, "PAGE": PAGE, "BLOCK_H": 1, "BLOCK_D": 64}
    grid = (len(SLOTS), rope_pages.parts_of(1, KV_HEADS, KV_HEADS), 1)
    launch(rope_pages.write_kv, grid, {**constants, "PDL": False}, **given)
    assert np.array_equal(cached(caches[0], dim), k.floats())
    assert np.array_equal(cached(caches[1], dim), v.floats())


def norm_constants(hidden: int, **more: Any) -> dict[str, Any]:
    return {"HIDDEN": hidden, "BLOCK": 1 << (hidden - 1).bit_length(), "PDL": False, **more}


@pytest.mark.parametrize(("hidden", "offset"), [(576, 0.0), (1024, 1.0)])
def test_rmsnorm_and_its_sum(launch: Launch, bf16: ToBF16, hidden: int, offset: float) -> None:
    x, residual = bf16(normal(3, hidden)), bf16(normal(3, hidden, seed=1) * 3)
    w, y = bf16(normal(hidden, seed=2)), bf16(np.full((3, hidden), np.nan))
    constants = norm_constants(hidden, OFFSET=offset)
    launch(row_norm.rmsnorm, (3, 1, 1), constants, x=x, w=w, y=y, eps=1e-5)
    assert_rounded(y.floats(), rms(x.floats(), 1e-5) * (w.floats() + offset))
    y = bf16(np.full((3, hidden), np.nan))
    expected = bf16(x.floats() + residual.floats()).floats()
    given = {"x": x, "residual": residual, "w": w, "sum": bf16(np.full((3, hidden), np.nan))}
    launch(row_norm.add_rmsnorm, (3, 1, 1), constants, **given, y=y, eps=1e-5)
    assert np.array_equal(given["sum"].floats(), expected)
    assert_rounded(y.floats(), rms(expected, 1e-5) * (w.floats() + offset))


@pytest.mark.parametrize("has_weights", [False, True])
def test_layernorm(launch: Launch, bf16: ToBF16, has_weights: bool) -> None:
    x, y = bf16(normal(2, 300) + 2), bf16(np.full((2, 300), np.nan))
    w, b = (bf16(normal(300, seed=seed)) if has_weights else None for seed in (1, 2))
    launch(row_norm.layernorm, (2, 1, 1), norm_constants(300), x=x, w=w, b=b, y=y, eps=1e-5)
    centred = x.floats() - x.floats().mean(-1, keepdims=True, dtype=np.float64)
    expected = rms(centred, 1e-5)
    if w is not None and b is not None:
        expected = expected * w.floats() + b.floats()
    np.testing.assert_allclose(y.floats(), expected, rtol=8e-3, atol=1e-4)


def e4m3(bits: Array) -> Array:
    """Values of fp8 e4m3."""
    sign = np.where(bits & 0x80, -1.0, 1.0)
    exponent, fraction = (bits >> 3 & 15).astype(int), bits & 7
    small = fraction * 2.0**-9
    values: Array = sign * np.where(exponent, (1 + fraction / 8) * 2.0 ** (exponent - 7), small)
    return values


@pytest.mark.parametrize(("hidden", "group"), [(576, 0), (4096, 0), (1024, 128), (640, 128)])
def test_fp8_rows(on_gpu: Launch, bf16: ToBF16, hidden: int, group: int) -> None:
    x, residual = bf16(normal(4, hidden)), bf16(normal(4, hidden, seed=1))
    x.bits[3] = residual.bits[3] = 0
    w, count = bf16(normal(hidden, seed=2)), hidden // group if group else 1
    constants = norm_constants(hidden, GROUP=group)
    total = bf16(x.floats() + residual.floats()).floats()
    plain = {"x": x}
    for kernel, given, expected in (
        (row_norm.quantize_rows, plain, x.floats()),
        (row_norm.rmsnorm_fp8, {**plain, "w": w}, rms(x.floats(), 1e-5) * w.floats()),
        (
            row_norm.add_rmsnorm_fp8,
            {**plain, "w": w, "residual": residual, "sum": bf16(np.full((4, hidden), np.nan))},
            rms(total, 1e-5) * w.floats(),
        ),
    ):
        y, scales = np.full((4, hidden), 0x7F, np.uint8), np.full((4, count), np.nan, np.float32)
        extra: dict[str, Any] = {} if kernel is row_norm.quantize_rows else {"eps": 1e-5}
        more = {"OFFSET": 0.0} if extra else {}
        on_gpu(kernel, (4, 1, 1), constants | more, **given, y=y, scales=scales, **extra)
        got = e4m3(y).reshape(4, count, -1)
        assert (np.abs(got[:3]).max(-1) == 448).all()
        assert (scales[3] == 1).all()
        values = (got * scales[:, :, None]).reshape(4, hidden)
        limit = 448 * scales.repeat(hidden // count, 1) * 2.0**-10
        assert (np.abs(values - expected) <= np.abs(expected) * 0.07 + limit).all()


def test_rows_of_a_table(launch: Launch) -> None:
    table, ids = normal(7, 100).astype(np.float32), np.array([6, 0, 3, 3], np.int32)
    y = np.full((4, 100), np.nan, np.float32)
    constants = {"K": 100, "BLOCK": 64, "PDL": False}
    given = {"table": table, "ids": ids, "y": y, "scale": 1.0}
    launch(row_tables.gather_rows, (4, 1, 1), constants, **given)
    assert np.array_equal(y, table[ids])


def test_rotary_tables(launch: Launch) -> None:
    positions, inv_freq = (
        np.array([0, 3, 4000], np.int32),
        (0.5 ** np.arange(20)).astype(np.float32),
    )
    cos, sin = np.full((3, 20), np.nan, np.float32), np.full((3, 20), np.nan, np.float32)
    constants = {"HALF": 20, "BLOCK_HALF": 32, "PDL": False}
    given = {"positions": positions, "inv_freq": inv_freq, "cos": cos, "sin": sin, "scale": 2.0}
    launch(row_tables.rope_table, (3, 1, 1), constants, **given)
    angle = positions[:, None].astype(np.float32) * inv_freq
    np.testing.assert_allclose(cos, 2 * np.cos(angle.astype(np.float64)), atol=1e-5)
    np.testing.assert_allclose(sin, 2 * np.sin(angle.astype(np.float64)), atol=1e-5)


def test_tokens_come_to_their_places(launch: Launch) -> None:
    ids = np.array([5, -1, -3, 7, -2], np.int32)
    moved = place(launch, ids, np.array([40, -1, 42], np.int32), [0, 3, 1, 3, 9, 7])
    assert ids.tolist() == [5, 40, 42, 7, 0]
    assert [array.tolist() for array in moved] == [[0, 3, 1, 3, 9, 1], [3] * 5, [4] * 5, [5] * 5]


def test_a_step_that_follows_moves_on(launch: Launch) -> None:
    """The first two sequences do; the rest is padding."""
    ids = np.array([5, 6, 0, 0, 0], np.int32)
    moved = place(launch, ids, np.array([40, -1, 42], np.int32), [1, 2, 2, 3, 9, 1])
    assert ids.tolist() == [40, 0, 0, 0, 0]
    turn, positions, slots, lens = (array.tolist() for array in moved)
    assert turn == [1, 2, 2, 3, 9, 2] and positions == [4, 4, 3, 3, 3]
    assert slots == [5, 5, 4, 4, 4] and lens == [6, 6, 5, 5, 5]


def place(launch: Launch, ids: Array, chosen: Array, turn: list[int]) -> list[Array]:
    """(turn, positions, slots, seq_lens) after place_tokens; ids change too."""
    names = ("turn", "positions", "slots", "seq_lens")
    values = (turn, [3] * 5, [4] * 5, [5] * 5)
    given = {n: np.array(v, np.int32) for n, v in zip(names, values, strict=True)}
    more = {"token_ids": ids, "chosen": chosen, "tokens": 5, "rows": 3}
    launch(step_inputs.place_tokens, (1, 1, 1), {"BLOCK": 128, "PDL": False}, **given, **more)
    return list(given.values())
