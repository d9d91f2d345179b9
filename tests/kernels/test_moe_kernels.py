"""Routing and expert layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels import moe
from sglk.targets.kernels.packing import pack_dense, pad_rows

Launch = Callable[..., None]
Array = NDArray[Any]
EXPERTS, TOP_K, T, K, N = 6, 2, 5, 64, 70


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def route(launch: Launch, logits: Array, **options: Any) -> tuple[Array, Array]:
    ids = np.full((len(logits), TOP_K), -1, np.int32)
    weights = np.full((len(logits), TOP_K), np.nan, np.float32)
    constants = {"EXPERTS": logits.shape[1], "TOP_K": TOP_K, "BLOCK_E": 8}
    constants |= {"SCORE": options["score"], "RENORMALIZE": options["renormalize"]}
    given = {"logits": logits, "bias": options.get("bias"), "ids": ids, "weights": weights}
    launch(moe.route_topk, (len(logits), 1, 1), constants, **given, scale=options.get("scale", 1.0))
    return ids, weights


@pytest.mark.parametrize("renormalize", [False, True])
def test_softmax_routing(launch: Launch, renormalize: bool) -> None:
    logits = normal(T, EXPERTS)
    ids, weights = route(launch, logits, score="softmax", renormalize=renormalize)
    score = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.argsort(-score, -1, kind="stable")[:, :TOP_K]
    best = np.take_along_axis(score, expected, -1)
    assert np.array_equal(ids, expected)
    total = best.sum(-1, keepdims=True) if renormalize else 1.0
    np.testing.assert_allclose(weights, best / total, rtol=1e-5)


def test_sigmoid_routing_with_a_bias_for_the_choice(launch: Launch) -> None:
    logits, bias = normal(T, EXPERTS), np.array([0, 0, 0, 0, 9, 8], np.float32)
    ids, weights = route(launch, logits, score="sigmoid", renormalize=False, bias=bias, scale=2.5)
    assert np.array_equal(ids, np.tile([4, 5], (T, 1)))
    np.testing.assert_allclose(weights, 2.5 / (1 + np.exp(-logits[:, 4:])), rtol=1e-5)


def test_equal_scores_go_to_the_lower_expert(launch: Launch) -> None:
    ids, _ = route(launch, np.zeros((1, EXPERTS), np.float32), score="softmax", renormalize=True)
    assert ids.tolist() == [[0, 1]]


def test_experts(launch: Launch) -> None:
    x, ids = normal(T, K), np.random.default_rng(4).integers(0, EXPERTS, (T, TOP_K), np.int32)
    gate, up = normal(EXPERTS, N, K, seed=1), normal(EXPERTS, N, K, seed=2)
    down, weights = normal(EXPERTS, K, N, seed=3)[..., :64], normal(T, TOP_K, seed=5)
    hidden = np.full((T * TOP_K, N), np.nan, np.float32)
    both = np.stack(
        [pack_dense(np.concatenate([pad_rows(g), u])) for g, u in zip(gate, up, strict=True)]
    )
    constants = {"K": K, "N": N, "TOP_K": TOP_K, "BLOCK_K": 16}
    given = {"x": x, "w": both, "ids": ids, "y": hidden}
    grid = (T * TOP_K, 2, 1)
    launch(moe.gated_expert_linear, grid, constants | {"ACT": "silu"}, **given)
    g = np.einsum("tk,tjnk->tjn", x, gate[ids])
    expected = (g / (1 + np.exp(-g)) * np.einsum("tk,tjnk->tjn", x, up[ids])).reshape(-1, N)
    np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-4)

    part = np.ascontiguousarray(expected[:, :64], np.float32)
    out = np.full((T * TOP_K, K), np.nan, np.float32)
    packed = np.stack([pack_dense(np.ascontiguousarray(w)) for w in down])
    given = {"x": part, "w": packed, "ids": ids, "y": out}
    constants = {"K": 64, "N": K, "TOP_K": TOP_K, "SHARED": False, "BLOCK_K": 16}
    launch(moe.expert_linear, (T * TOP_K, 1, 1), constants, **given)
    expected = np.einsum("pk,pnk->pn", part, down[ids.reshape(-1)])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)

    y = np.full((T, K), np.nan, np.float32)
    launch(
        moe.combine, (T, 1, 1), {"N": K, "TOP_K": TOP_K, "BLOCK": 64}, x=out, weights=weights, y=y
    )
    expected = (out.reshape(T, TOP_K, K) * weights[..., None]).sum(1)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
