"""Kernels without masks against NumPy in f64: linear layers, a cache of rows, attention over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sglk.targets.kernels import row_attention, row_cache, whole_linear

PAD = 64
"""Rows of memory behind what there is, NaN in them: nothing may depend on it."""


def rows(rng: np.random.Generator, *shape: int, pad: int = PAD) -> Any:
    """Random rows, and rows of NaN after them."""
    full = np.full((shape[0] + pad, *shape[1:]), np.nan, np.float32)
    full[: shape[0]] = rng.normal(size=shape)
    return full


@pytest.mark.parametrize("count", [1, 15, 16, 17, 50])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_linear(launch: Any, count: int, dtype: Any) -> None:
    rng, n, k = np.random.default_rng(3), 96, 64
    x, residual = rows(rng, count, k), rows(rng, count, n)
    w = rng.normal(size=(n, k)).astype(dtype)
    bias = rng.normal(size=n).astype(np.float32)
    y = np.full_like(residual, np.nan)
    constants = {
        "K": k, "N": n, "STRIDE": n, "ACT": "silu", "HALF": dtype == np.float16,
        "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32,
    }  # fmt: skip
    grid = (-(-count // 16), 2)
    operands = {"x": x, "w": w, "bias": bias, "residual": residual, "y": y}
    launch(whole_linear.linear, grid, constants, rows=count, **operands)
    product = x[:count].astype(dtype).astype(np.float64) @ w.astype(np.float64).T + bias
    want = product / (1 + np.exp(-product)) + residual[:count]
    np.testing.assert_allclose(y[:count], want, rtol=1e-4, atol=1e-4)
    assert np.isnan(y[max(count, 16) :]).all()


@pytest.mark.parametrize("count", [3, 40])
def test_gated_linear_has_the_bits_of_two_products(launch: Any, count: int) -> None:
    rng, n, k = np.random.default_rng(4), 80, 64
    x = rows(rng, count, k)
    w = rng.normal(size=(2 * n, k)).astype(np.float32)
    y = np.full((count + PAD, n), np.nan, np.float32)
    sizes = {"K": k, "N": n, "HALF": False, "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64}
    grid = (-(-count // 16), 2)
    launch(whole_linear.gated_linear, grid, {**sizes, "ACT": "relu"}, x=x, w=w, y=y, rows=count)
    halves = [np.full_like(y, np.nan) for _ in range(2)]
    for half, act, part in zip(halves, ("relu", "none"), (w[:n], w[n:]), strict=True):
        own = {**sizes, "STRIDE": n, "ACT": act, "BLOCK_K": 32}
        operands = {"x": x, "w": part, "bias": None, "residual": None, "y": half}
        launch(whole_linear.linear, grid, own, rows=count, **operands)
    assert np.array_equal(y[:count], (halves[0] * halves[1])[:count])


def tables(rng: np.random.Generator, tokens: int, half: int) -> Any:
    angle = rng.normal(size=(tokens, half))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotated(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    half = cos.shape[1]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    y = x.astype(np.float64).copy()
    a, b, c, s = x[..., first], x[..., second], cos[:, None], sin[:, None]
    y[..., first], y[..., second] = a * c - b * s, b * c + a * s
    return y


@pytest.mark.parametrize(
    ("heads", "kv_heads", "d", "half", "interleaved", "norms"),
    [
        (9, 3, 64, 32, False, False),
        (4, 1, 32, 8, True, False),
        (3, 2, 48, 24, False, False),
        (4, 2, 32, 16, False, True),
    ],
)
def test_rope_write_kv(
    launch: Any, heads: int, kv_heads: int, d: int, half: int, interleaved: bool, norms: bool
) -> None:
    rng, tokens, page = np.random.default_rng(5), 6, 128
    qkv = rows(rng, tokens, (heads + 2 * kv_heads) * d, pad=0)
    cos, sin = tables(rng, tokens, half)
    slots = np.array([128, 129, 255, 300, 7, 511], np.int32)
    k_cache, v_cache = (np.full((4, kv_heads, page, d), np.nan, np.float32) for _ in range(2))
    q = np.full((tokens, heads, d), np.nan, np.float32)
    weights = [rng.normal(size=d).astype(np.float32) if norms else None for _ in range(2)]
    own = {"BLOCK_H": 8, "BLOCK_KVH": 4, "BLOCK_C": half & -half, "BLOCK_V": d & -d}
    constants = {
        "HEADS": heads, "KV_HEADS": kv_heads, "D": d, "HALF": half, "INTERLEAVED": interleaved,
        "PAGE": page, "BLOCK_R": max(1, (d - 2 * half) & -(d - 2 * half)), **own,
    }  # fmt: skip
    launch(
        row_cache.rope_write_kv, (tokens,), constants, qkv=qkv, cos=cos, sin=sin,
        q_norm=weights[0], k_norm=weights[1], slots=slots, q=q, k_cache=k_cache, v_cache=v_cache,
        eps=1e-6,
    )  # fmt: skip
    parts = qkv.reshape(tokens, -1, d)
    want_q, want_k, v = np.split(parts, [heads, heads + kv_heads], axis=1)
    if norms:
        want_q, want_k = (
            x / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + 1e-6) * w
            for x, w in zip((want_q, want_k), weights, strict=True)
        )
    np.testing.assert_allclose(q, rotated(want_q, cos, sin, interleaved), rtol=2e-5, atol=2e-5)
    want_k = rotated(want_k, cos, sin, interleaved)
    got = k_cache[slots // page, :, slots % page]
    np.testing.assert_allclose(got, want_k, rtol=2e-5, atol=2e-5)
    assert np.array_equal(v_cache[slots // page, :, slots % page], v)
    assert np.isfinite(k_cache).sum() == np.isfinite(v_cache).sum() == tokens * kv_heads * d


@pytest.mark.parametrize("count", [1, 16, 21])
def test_rope_table(launch: Any, count: int) -> None:
    rng, half = np.random.default_rng(6), 24
    positions = np.zeros(count + PAD, np.int32)
    positions[:count] = rng.integers(0, 5000, count)
    inv_freq = (1e4 ** -(np.arange(half) / half)).astype(np.float32)
    cos, sin = (np.full((count + PAD, half), np.nan, np.float32) for _ in range(2))
    constants = {"HALF": half, "BLOCK_T": 16, "BLOCK_C": 8}
    operands = {"positions": positions, "inv_freq": inv_freq, "cos": cos, "sin": sin}
    launch(row_cache.rope_table, (-(-count // 16),), constants, count=count, scale=1.0, **operands)
    angle = (positions[:count, None].astype(np.float32) * inv_freq).astype(np.float64)
    np.testing.assert_allclose(cos[:count], np.cos(angle), atol=1e-6)
    np.testing.assert_allclose(sin[:count], np.sin(angle), atol=1e-6)


# Attention ------------------------------------------------------------------------------------

D, PAGE, KV, GROUP = 32, 64, 2, 3
SIZES = {"KV_HEADS": KV, "GROUP": GROUP, "D": D, "PAGE": PAGE, "FEW": 16}
SIZES |= {"BLOCK_N": 32, "BLOCK_D": 32}


def attention_case(
    queries: list[int], lengths: list[int], dtype: Any = np.float32, d: int = D
) -> Any:
    """Sequences on shuffled pages whose unused rows are NaN."""
    rng = np.random.default_rng(7)
    counts = [-(-n // PAGE) for n in lengths]
    order = rng.permutation(sum(counts)) + 1
    table = np.zeros((len(lengths), max(counts)), np.int32)
    caches = [np.full((sum(counts) + 2, KV, PAGE, d), np.nan, dtype) for _ in range(2)]
    keys = [[rng.normal(size=(n, KV, d)).astype(dtype) for n in lengths] for _ in range(2)]
    for s, (n, count) in enumerate(zip(lengths, counts, strict=True)):
        table[s, :count] = order[sum(counts[:s]) : sum(counts[: s + 1])]
        for cache, parts in zip(caches, keys, strict=True):
            for t in range(n):
                cache[table[s, t // PAGE], :, t % PAGE] = parts[s][t]
    q = rows(rng, sum(queries), KV * GROUP, d)
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    return q, caches, keys, starts, np.array(lengths, np.int32), table


def run_attention(
    launch: Any, case: Any, block_m: int = 32, sinks: Any = None, **options: Any
) -> Any:
    q, (k_cache, v_cache), _, starts, lengths, table = case
    y = np.full_like(q, np.nan)
    constants = {**SIZES, "WINDOW": 0, "SOFTCAP": 0.0, "HALF": k_cache.dtype == np.float16}
    constants |= options
    operands = {
        "q": q, "k_cache": k_cache, "v_cache": v_cache, "query_start": starts,
        "seq_lens": lengths, "page_table": table, "sinks": sinks, "y": y,
        "seqs": len(lengths), "pages": table.shape[1], "scale": 0.2,
    }  # fmt: skip
    seqs, tokens = len(lengths), int(starts[-1])
    launch(row_attention.few, (KV, seqs), {**constants, "BLOCK_M": 16}, **operands)
    grid = (KV * GROUP, tokens // block_m + seqs)
    launch(row_attention.many, grid, {**constants, "BLOCK_M": block_m}, **operands)
    return y


def expected(case: Any, window: int = 0, softcap: float = 0.0, sinks: Any = None) -> Any:
    q, _, (keys, values), starts, lengths, _ = case
    out = np.zeros((int(starts[-1]), KV * GROUP, q.shape[-1]))
    for s, length in enumerate(lengths):
        for i in range(starts[s], starts[s + 1]):
            position = length - (starts[s + 1] - i)
            seen = slice(max(0, position - window + 1) if window else 0, position + 1)
            for head in range(KV * GROUP):
                score = keys[s][seen, head // GROUP].astype(np.float64) @ q[i, head] * 0.2
                if softcap:
                    score = softcap * np.tanh(score / softcap)
                top = max(score.max(), sinks[head] if sinks is not None else -np.inf)
                weight = np.exp(score - top)
                total = weight.sum() + (np.exp(sinks[head] - top) if sinks is not None else 0)
                out[i, head] = weight / total @ values[s][seen, head // GROUP].astype(np.float64)
    return out


QUERIES, LENGTHS = [1, 37, 5, 64, 16], [70, 101, 5, 64, 130]


@pytest.mark.parametrize(
    "options",
    [{}, {"WINDOW": 40}, {"SOFTCAP": 2.0}],
    ids=["plain", "window", "softcap"],
)
def test_attention(launch: Any, options: dict[str, Any]) -> None:
    case = attention_case(QUERIES, LENGTHS)
    y = run_attention(launch, case, **options)
    want = expected(case, options.get("WINDOW", 0), options.get("SOFTCAP", 0.0))
    np.testing.assert_allclose(y[: sum(QUERIES)], want, rtol=1e-4, atol=1e-5)
    assert np.isnan(y[sum(QUERIES) :]).all(), "nothing is written behind the last query"


def test_attention_of_heads_of_24(launch: Any) -> None:
    case = attention_case(QUERIES, LENGTHS, d=24)
    y = run_attention(launch, case, D=24)
    np.testing.assert_allclose(y[: sum(QUERIES)], expected(case), rtol=1e-4, atol=1e-5)
    assert np.isnan(y[sum(QUERIES) :]).all(), "nothing is written behind the last query"


def test_attention_with_sinks_and_a_cache_of_f16(launch: Any) -> None:
    case = attention_case(QUERIES, LENGTHS, np.float16)
    sinks = np.linspace(-1, 1, KV * GROUP).astype(np.float32)
    y = run_attention(launch, case, sinks=sinks)
    want = expected(case, sinks=sinks)
    np.testing.assert_allclose(y[: sum(QUERIES)], want, rtol=2e-2, atol=2e-3)


def test_a_row_has_the_same_bits_in_any_tile_and_chunk(launch: Any) -> None:
    """The last 7 queries alone (kernel `few`) and among 40 (`many`), in tiles of 16 and 32."""
    whole = attention_case([40], [90])
    last = attention_case([7], [90])
    last[0][:7] = whole[0][33:40]
    runs: list[Callable[[], Any]] = [
        lambda: run_attention(launch, whole)[33:40],
        lambda: run_attention(launch, whole, block_m=16)[33:40],
        lambda: run_attention(launch, (last[0], whole[1], *last[2:4], *whole[4:]))[:7],
    ]
    first, *others = (run() for run in runs)
    assert all(np.array_equal(first, other) for other in others)
