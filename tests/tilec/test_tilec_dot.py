"""tt.dot: one definition, the same bits for every tile and machine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

M, K, N = 37, 80, 64


def _problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((M, K)).astype(np.float32)
    return a, rng.standard_normal((K, N)).astype(np.float32)


def _chained_fma(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """k ascending; the product is exact in f64, so each step rounds (almost always) once."""
    acc = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        product = a[:, k : k + 1].astype(np.float64) * b[k : k + 1].astype(np.float64)
        acc = (product + acc).astype(np.float32)
    return acc


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 32])
def test_bits_do_not_depend_on_rows(launch: Any, kernels: ModuleType, rows: int) -> None:
    a, b = _problem()
    c = np.full((M, N), np.nan, np.float32)
    tile = {"N": N, "BM": rows, "BK": 32, "BN": N}
    launch(kernels.matmul, (-(-M // rows), 1), tile, a=a, b=b, c=c, M=M, K=K)
    np.testing.assert_array_equal(c, _chained_fma(a, b))


@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (16, 16), (1, 32)])
def test_narrow_tiles(launch: Any, kernels: ModuleType, rows: int, columns: int) -> None:
    a, b = _problem()
    c = np.zeros((M, N), np.float32)
    tile = {"N": N, "BM": rows, "BK": 16, "BN": columns}
    grid = (-(-M // rows), N // columns)
    launch(kernels.matmul, grid, tile, a=a, b=b, c=c, M=M, K=K)
    np.testing.assert_array_equal(c, _chained_fma(a, b))


def test_bf16_weights(launch: Any, kernels: ModuleType) -> None:
    a, b = _problem()
    bits = (b.view(np.uint32) >> 16).astype(np.uint16)
    c = np.zeros((M, N), np.float32)
    tile = {"N": N, "BM": 16, "BK": 16, "BN": N}
    launch(kernels.matmul, (3, 1), tile, a=a, b=bits, c=c, M=M, K=K)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(c, _chained_fma(a, wide))


@pytest.mark.parametrize("rows", [4, 16])
def test_computed_and_transposed_operands(launch: Any, kernels: ModuleType, rows: int) -> None:
    rng = np.random.default_rng(4)
    a = rng.standard_normal((rows, 32)).astype(np.float32)
    b = rng.standard_normal((64, 32)).astype(np.float32)
    c = np.zeros((rows, 64), np.float32)
    launch(kernels.matmul_transposed, (1,), {"M": rows, "N": 64, "K": 32}, a=a, b=b, c=c)
    np.testing.assert_allclose(c, np.exp(a) @ b.T, rtol=1e-5, atol=1e-5)


def test_machines_agree(launchers: list[Any], kernels: ModuleType) -> None:
    a, _ = _problem()
    found = []
    for launch in launchers:
        x, y = a[:32].copy(), np.zeros((32, K), np.float32)
        launch(kernels.online_softmax, (1,), {"M": 32, "BLOCK": 32}, x=x, y=y, N=K)
        found.append(y)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_plain_cpp_has_the_same_bits(kernels: ModuleType, launcher_for: Any) -> None:
    a, b = _problem()
    c = np.zeros((M, N), np.float32)
    tile = {"N": N, "BM": 1, "BK": 16, "BN": 32}
    launcher_for("generic")(kernels.matmul, (M, 2), tile, a=a, b=b, c=c, M=M, K=K)
    np.testing.assert_array_equal(c, _chained_fma(a, b))
