"""Sampling against its definition in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels import sampling

Launch = Callable[..., None]
Array = NDArray[Any]
VOCAB, ROWS = 500, 64


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Philox4x32-10 on Python integers."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        wide0, wide2 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (wide2 >> 32) ^ c1 ^ k0,
            wide2 & 0xFFFFFFFF,
            (wide0 >> 32) ^ c3 ^ k1,
            wide0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def test_reference_philox_gives_the_published_answers() -> None:
    """Known answers of Random123 (kat_vectors, philox4x32 10)."""
    assert philox((0, 0), (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 0xFFFFFFFF
    assert philox((ones, ones), (ones,) * 4) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def kept(logits: Array, heat: float, top_k: int, top_p: float, min_p: float) -> Array:
    """Weights exp(x - max) of the tokens that pass the filters, zero elsewhere (f64)."""
    x = logits.astype(np.float64) / heat
    weight: Array = np.exp(x - x.max())
    if 0 < top_k < len(x):
        weight[x < np.sort(x)[-top_k]] = 0.0
    if top_p < 1.0:
        ranked = np.sort(weight)[::-1]
        count = int((np.cumsum(ranked) < top_p * weight.sum()).sum()) + 1
        weight[weight < ranked[count - 1]] = 0.0
    weight[weight < min_p] = 0.0
    return weight


def run(launch: Launch, logits: Array, seed: int = 3, **options: Any) -> tuple[Array, Array]:
    """Tokens and the uniform numbers they were drawn with."""
    rows = len(logits)
    request, position = np.arange(rows, dtype=np.int32), np.arange(rows, dtype=np.int32) * 7
    seeds = np.tile(np.array([seed, 0xDEADBEEF], np.uint32), (rows, 1)).view(np.int32)
    tokens = np.full(rows, -1, np.int32)
    given: dict[str, Any] = {
        name: np.full(rows, options.get(name, default), np.float32)
        for name, default in (("temperature", 1.0), ("top_p", 1.0), ("min_p", 0.0))
    }
    given["top_k"] = np.full(rows, options.get("top_k", 0), np.int32)
    launch(
        sampling.sample,
        (rows, 1, 1),
        {"VOCAB": logits.shape[1], "BLOCK": 64},
        logits=logits,
        seeds=seeds,
        request=request,
        position=position,
        tokens=tokens,
        **given,
    )
    words = [philox((seed, 0xDEADBEEF), (7 * row, row, 0, 0))[0] for row in range(rows)]
    return tokens, (np.array([word >> 9 for word in words]) + 0.5) / 2**23


def assert_drawn(logits: Array, tokens: Array, u: Array, options: dict[str, Any]) -> None:
    """Each token holds its u in the running sum, up to f32 rounding."""
    heat, top_k = options.get("temperature", 1.0), int(options.get("top_k", 0))
    top_p, min_p = options.get("top_p", 1.0), options.get("min_p", 0.0)
    for row, token in enumerate(tokens):
        weight = kept(logits[row], heat, top_k, top_p, min_p)
        assert weight[token] > 0
        share = np.cumsum(weight) / weight.sum()
        before = share[token - 1] if token else 0.0
        assert before - 1e-5 <= u[row] <= share[token] + 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_draws_follow_the_filters(launch: Launch, options: dict[str, Any]) -> None:
    logits = np.random.default_rng(1).standard_normal((ROWS, VOCAB), dtype=np.float32) * 3
    tokens, u = run(launch, logits, **options)
    assert_drawn(logits, tokens, u, options)
    assert len(set(tokens.tolist())) > 10


def test_corner_settings_are_greedy(launch: Launch) -> None:
    logits = np.random.default_rng(1).standard_normal((4, VOCAB), dtype=np.float32)
    logits[1, 100:] = -np.inf
    corners: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_p": 0.0},
        {"min_p": 1.0},
    ]
    for options in corners:
        tokens, _ = run(launch, logits, **options)
        assert tokens.tolist() == logits.argmax(-1).tolist()


def test_forbidden_tokens_are_never_drawn(launch: Launch) -> None:
    logits = np.full((ROWS, VOCAB), -np.inf, np.float32)
    logits[:, [63, 64, 499]] = [0.0, 1.0, 0.5]
    tokens, u = run(launch, logits, top_k=400, top_p=0.999)
    assert set(tokens.tolist()) == {63, 64, 499}
    assert_drawn(logits, tokens, u, {})


def test_seed_decides_and_company_does_not(launch: Launch) -> None:
    logits = np.random.default_rng(1).standard_normal((ROWS, VOCAB), dtype=np.float32)
    tokens, _ = run(launch, logits)
    assert np.array_equal(run(launch, logits[:5])[0], tokens[:5])
    assert not np.array_equal(run(launch, logits, seed=4)[0], tokens)


def test_greedy(launch: Launch) -> None:
    logits = np.random.default_rng(2).standard_normal((5, VOCAB), dtype=np.float32)
    logits[0, [3, 400]] = 50.0
    tokens = np.full(5, -1, np.int32)
    launch(sampling.greedy, (5, 1, 1), {"VOCAB": VOCAB, "BLOCK": 64}, logits=logits, tokens=tokens)
    assert tokens.tolist() == logits.argmax(-1).tolist()
