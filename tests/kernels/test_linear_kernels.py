"""Dense linear layers on packed weights: values, epilogues, edges, bits that ignore the tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels import linear
from sglk.targets.kernels.packing import pack_dense, pad_rows

Launch = Callable[..., None]
Array = NDArray[Any]
N, K = 150, 72


def silu(x: Array) -> Array:
    y: Array = x / (1 + np.exp(-x))
    return y


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def assert_close(got: Array, expected: Array) -> None:
    """Products reach 50 and are summed over 72 in f32."""
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=5e-5)


def matmul(x: Array, w: Array) -> Array:
    product: Array = x.astype(np.float64) @ w.astype(np.float64).T
    return product


def linear_call(
    x: Array, packed: Any, n: int, block_m: int, block_k: int = 8, **epilogue: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Kernel, constants and arguments of one product; y is poisoned."""
    optional = {"bias": None, "residual": None, "ACT": "none"} | epilogue
    constants = {"K": x.shape[1], "N": n, "BLOCK_M": block_m, "BLOCK_K": block_k}
    constants["ACT"] = optional.pop("ACT")
    y = np.full((len(x), n), np.nan, np.float32)
    return linear.linear, constants, {"x": x, "w": packed, "y": y, "rows": len(x)} | optional


def run(launch: Launch, x: Array, packed: Any, n: int, block_m: int, **more: Any) -> Array:
    kernel, constants, arguments = linear_call(x, packed, n, block_m, **more)
    launch(kernel, (-(-len(x) // block_m), -(-n // 64), 1), constants, **arguments)
    y: Array = arguments["y"]
    return y


@pytest.fixture(scope="module", autouse=True)
def common_variants(launch: Any, bf16: Callable[[Array], Any]) -> None:
    """Compiles them together, on all cores."""
    x, packed = normal(70, K), pack_dense(normal(N, K, seed=1))
    calls = [linear_call(x, packed, N, block_m) for block_m in (1, 8, 64)]
    for half in (bf16(packed), packed.astype(np.float16)):
        calls += [linear_call(x, half, N, block_m) for block_m in (1, 8)]
    epilogue: dict[str, Any] = {"bias": normal(N), "residual": normal(70, N), "ACT": "silu"}
    calls += [linear_call(x[:, :70].copy(), packed, N, m, **epilogue) for m in (1, 8)]
    launch.prepare([*calls, linear_call(x, packed, N, 8, 32)])


@pytest.mark.parametrize(("rows", "block_m"), [(1, 1), (3, 1), (1, 8), (13, 8), (70, 64)])
def test_equals_matmul(launch: Launch, rows: int, block_m: int) -> None:
    x, w = normal(rows, K), normal(N, K, seed=1)
    got = run(launch, x, pack_dense(w), N, block_m)
    assert_close(got, matmul(x, w))


def test_same_bits_in_every_tile(launch: Launch) -> None:
    x, packed = normal(70, K), pack_dense(normal(N, K, seed=1))
    whole = run(launch, x, packed, N, 64)
    for block_m in (1, 8):
        assert np.array_equal(run(launch, x, packed, N, block_m), whole)
    assert np.array_equal(run(launch, x[5:18], packed, N, 8), whole[5:18])
    assert np.array_equal(run(launch, x[:13], packed, N, 8, block_k=32), whole[:13])


@pytest.mark.parametrize("block_m", [1, 8])
def test_epilogues(launch: Launch, block_m: int) -> None:
    x, w = normal(11, 70), normal(N, 70, seed=1)  # 70: the last step over k is partial
    bias, residual = normal(N, seed=2), normal(11, N, seed=3)
    got = run(launch, x, pack_dense(w), N, block_m, bias=bias, residual=residual, ACT="silu")
    assert_close(got, silu(matmul(x, w) + bias) + residual)


def test_residual_in_place(launch: Launch) -> None:
    x, w, y = normal(11, K), normal(128, K, seed=1), normal(11, 128, seed=3)
    expected = matmul(x, w) + y
    constants = {"K": K, "N": 128, "BLOCK_M": 8, "BLOCK_K": 8, "ACT": "none"}
    given = {"x": x, "w": pack_dense(w), "bias": None, "rows": 11}
    launch(linear.linear, (2, 2, 1), constants, residual=y, y=y, **given)
    assert_close(y, expected)


def test_bf16_weights(launch: Launch, bf16: Callable[[Array], Any]) -> None:
    x, w = normal(13, K), bf16(normal(N, K, seed=1))
    packed = type(w)(pack_dense(w.bits))
    got = run(launch, x, packed, N, 8)
    assert_close(got, matmul(x, w.floats()))
    assert np.array_equal(run(launch, x, packed, N, 1), got)


def test_f16_weights(launch: Launch) -> None:
    x, w = normal(13, K), normal(N, K, seed=1).astype(np.float16)
    w[0, :4] = 65504, -65504, 6e-8, 0  # the largest, the smallest
    got = run(launch, x, pack_dense(w), N, 8)
    np.testing.assert_allclose(got[:, 0], matmul(x, w)[:, 0], rtol=1e-5)
    assert_close(got[:, 1:], matmul(x, w)[:, 1:])
    assert np.array_equal(run(launch, x, pack_dense(w), N, 1), got)


@pytest.mark.parametrize("block_m", [1, 8])
def test_gated(launch: Launch, block_m: int) -> None:
    x, gate, up = normal(11, K), normal(N, K, seed=1), normal(N, K, seed=2)
    y = np.full((11, N), np.nan, np.float32)
    launch(
        linear.gated_linear,
        (-(-11 // block_m), -(-N // 64), 1),
        {"K": K, "N": N, "ACT": "silu", "BLOCK_M": block_m, "BLOCK_K": 8},
        x=x,
        w=pack_dense(np.concatenate([pad_rows(gate), up])),
        y=y,
        rows=11,
    )
    assert_close(y, silu(matmul(x, gate)) * (matmul(x, up)))
