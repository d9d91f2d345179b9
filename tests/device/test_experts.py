"""Routing, sorted pairs and products with chosen experts, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.ir.ops.elementwise import ACTIVATIONS
from sglk.ir.ops.moe import MoeRoute
from sglk.targets.kernels import grouped_linear, route_experts

pytestmark = pytest.mark.device
Launch = Callable[..., None]
Array = NDArray[Any]
ToBF16 = Callable[[Array], Any]
EXPERTS, TOP_K, K, N = 6, 2, 80, 48
TOLERANCE = 1e-2


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def empty(bf16: ToBF16, *shape: int) -> Any:
    return bf16(np.full(shape, np.nan, np.float32))


def close(got: Array, wanted: Array) -> bool:
    return bool(np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max())


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(("experts", "top_k"), [(128, 8), (6, 2), (5, 5)])
def test_the_best_experts_are_chosen(
    launch: Launch, experts: int, top_k: int, renormalize: bool
) -> None:
    logits = normal(7, experts).astype(np.float32)
    logits[3] = 1.0  # equal ones: the lowest first
    ids, weights = np.full((7, top_k), -1, np.int32), np.full((7, top_k), np.nan, np.float32)
    constants = {
        "EXPERTS": experts, "TOP_K": top_k, "RENORMALIZE": renormalize, "PDL": 0,
        "BLOCK_E": 1 << (experts - 1).bit_length(), "BLOCK_J": 1 << (top_k - 1).bit_length(),
    }  # fmt: skip
    launch(route_experts.route, (7,), constants, logits=logits, ids=ids, weights=weights)
    wanted_ids, wanted = MoeRoute(top_k, renormalize).reference(logits)
    assert np.array_equal(ids, wanted_ids)
    assert np.allclose(weights, wanted, rtol=1e-5, atol=0)


def sorted_pairs(launch: Launch, ids: Array, block_m: int, most: int) -> tuple[Array, Array]:
    order, tiles = np.full(ids.size, -1, np.int32), np.full((most, 3), -7, np.int32)
    constants = {"EXPERTS": EXPERTS, "BLOCK_E": 8, "BLOCK_M": block_m, "CHUNK": 32, "PDL": 0}
    launch(
        route_experts.sort_pairs, (EXPERTS,), constants,
        ids=ids, order=order, tiles=tiles, pairs=ids.size, most_tiles=most,
    )  # fmt: skip
    return order, tiles


def chosen(tokens: int) -> Array:
    """Expert 2 gets nothing, expert 1 a lot."""
    rng = np.random.default_rng(tokens)
    experts = np.array([0, 1, 3, 4, 5])
    ids = np.array([rng.permutation(experts)[:TOP_K] for _ in range(tokens)], np.int32)
    ids[: tokens // 2, 0] = 1
    ids[ids[:, 0] == ids[:, 1], 1] = 3
    return ids


@pytest.mark.parametrize("tokens", [1, 5, 33, 70])
def test_pairs_are_sorted_by_expert(launch: Launch, tokens: int) -> None:
    ids, block_m = chosen(tokens), 16
    most = min(ids.size, EXPERTS + ids.size // block_m)
    order, tiles = sorted_pairs(launch, ids, block_m, most)
    assert np.array_equal(order, np.argsort(ids.reshape(-1), kind="stable"))
    counts = np.bincount(ids.reshape(-1), minlength=EXPERTS)
    wanted, first = [], 0
    for expert, count in enumerate(counts.tolist()):
        starts = range(0, count, block_m)
        wanted += [(expert, first + at, min(block_m, count - at)) for at in starts]
        first += count
    assert [tuple(tile) for tile in tiles[: len(wanted)].tolist()] == wanted
    assert (tiles[len(wanted) :, 2] == 0).all()


def reference(x: Array, w: Array, ids: Array, act: str = "") -> Array:
    """[T, TOP_K, N]."""
    y = np.stack([[w[e] @ row for e, row in zip(es, xs, strict=True)]
                  for es, xs in zip(ids, x, strict=True)])  # fmt: skip
    if not act:
        return y
    gate, up = np.split(y, 2, -1)
    return np.asarray(ACTIVATIONS[act](gate) * up)


@pytest.mark.parametrize(("block_m", "swap"), [(16, 1), (64, 0)])
@pytest.mark.parametrize("tokens", [3, 50])
def test_gated_and_down_products_of_tiles(
    launch: Launch, bf16: ToBF16, tokens: int, block_m: int, swap: int
) -> None:
    ids = chosen(tokens)
    most = min(ids.size, EXPERTS + ids.size // block_m)
    order, tiles = sorted_pairs(launch, ids, block_m, most)
    x, up = bf16(normal(tokens, K)), bf16(normal(EXPERTS, 2 * N, K, seed=1) / 9)
    down = bf16(normal(EXPERTS, K, N, seed=2) / 7)
    inner, z = empty(bf16, ids.size, N), empty(bf16, ids.size, K)
    shared = {"TOP_K": TOP_K, "BLOCK_M": block_m, "BLOCK_K": 32, "SWAP": swap, "PDL": 0}
    gated = {"K": K, "N": N, "ACT": "silu", "GATED": 1, "FROM": 0, "BY_PLACE": 1, "BLOCK_N": 64}
    launch(
        grouped_linear.linear, (most * 2,), {**shared, **gated},
        x=x, w=up, order=order, tiles=tiles, y=inner,
    )  # fmt: skip
    rows = np.repeat(x.floats()[:, None], TOP_K, 1)
    wanted = reference(rows, up.floats(), ids, "silu")
    assert close(inner.floats(), wanted.reshape(-1, N)[order])
    plain = {"K": N, "N": K, "ACT": "none", "GATED": 0, "FROM": 2, "BY_PLACE": 0, "BLOCK_N": 64}
    launch(
        grouped_linear.linear, (most * 2,), {**shared, **plain},
        x=inner, w=down, order=order, tiles=tiles, y=z,
    )  # fmt: skip
    back = np.empty_like(inner.floats())
    back[order] = inner.floats()
    wanted = reference(back.reshape(tokens, TOP_K, N), down.floats(), ids)
    assert close(z.floats().reshape(tokens, TOP_K, K), wanted)
    weights = np.abs(normal(tokens, TOP_K, seed=5)).astype(np.float32)
    y, residual = empty(bf16, tokens, K), bf16(normal(tokens, K, seed=6))
    constants = {"N": K, "TOP_K": TOP_K, "BLOCK": 64, "PDL": 0}
    memory = {"z": z, "weights": weights, "residual": residual, "y": y}
    launch(grouped_linear.combine, (2, tokens), constants, **memory)
    total = (weights[..., None] * z.floats().reshape(tokens, TOP_K, K)).sum(1)
    assert close(y.floats(), residual.floats() + total)


@pytest.mark.parametrize(("block_n", "block_k"), [(4, 16), (8, 32)])
def test_products_of_few_pairs(launch: Launch, bf16: ToBF16, block_n: int, block_k: int) -> None:
    tokens = 3
    ids = chosen(tokens)
    x, up = bf16(normal(tokens, K)), bf16(normal(EXPERTS, 2 * N, K, seed=1) / 9)
    down = bf16(normal(EXPERTS, K, N, seed=2) / 7)
    weights = np.abs(normal(tokens, TOP_K, seed=5)).astype(np.float32)
    inner, y = empty(bf16, ids.size, N), empty(bf16, tokens, K)
    shared = {"TOP_K": TOP_K, "BLOCK_N": block_n, "BLOCK_K": block_k, "PDL": 0}
    gated = {"K": K, "N": N, "ACT": "silu", "GATED": 1, "FROM": 0}
    grid = (-(-N // block_n), ids.size)
    launch(grouped_linear.few, grid, {**shared, **gated}, x=x, w=up, ids=ids, y=inner)
    wanted = reference(np.repeat(x.floats()[:, None], TOP_K, 1), up.floats(), ids, "silu")
    assert close(inner.floats(), wanted.reshape(-1, N))
    launch(
        grouped_linear.few_combined, (-(-K // block_n), tokens),
        {**shared, "K": N, "N": K, "BLOCK_J": 2, "residual": None},
        x=inner, w=down, ids=ids, weights=weights, y=y,
    )  # fmt: skip
    z = reference(inner.floats().reshape(tokens, TOP_K, N), down.floats(), ids)
    assert close(y.floats(), (weights[..., None] * z).sum(1))
    plain = {"K": N, "N": K, "ACT": "none", "GATED": 0, "FROM": 1}
    apart = empty(bf16, ids.size, K)
    grid = (-(-K // block_n), ids.size)
    launch(grouped_linear.few, grid, {**shared, **plain}, x=inner, w=down, ids=ids, y=apart)
    assert close(apart.floats().reshape(z.shape), z)
