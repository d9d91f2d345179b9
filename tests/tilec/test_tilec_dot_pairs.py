"""tt.dot of bf16 by bf16: two chains per 32 k, the same bits for every tile and machine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglk.targets.tilec import isa_supported

M, K, N = 37, 64, 64
ISAS = [n for n in ("x86_64_v4_amx", "x86_64_v4", "x86_64_v3") if isa_supported(n)] or ["generic"]


def bits(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def wide(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((M, K)), rng.standard_normal((K, N))
    return bits(a.astype(np.float32)), bits(b.astype(np.float32))


def two_chains(a: np.ndarray, b: np.ndarray, step: int) -> np.ndarray:
    """The definition; products of bf16 are exact in f64, so each step rounds once."""
    x, w = wide(a).astype(np.float64), wide(b).astype(np.float64)
    acc = np.zeros((len(a), b.shape[1]), np.float32)
    for first in range(0, a.shape[1], step):
        chains = np.zeros((2, *acc.shape), np.float32)
        for k in range(first, first + step):
            chains[k % 2] = (x[:, k : k + 1] * w[k] + chains[k % 2]).astype(np.float32)
        acc += chains[0] + chains[1]
    return acc


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 4, 16, 64])
def test_bits_do_not_depend_on_rows_or_machine(
    launcher_for: Any, kernels: ModuleType, rows: int, isa: str
) -> None:
    a, b = problem()
    launch = launcher_for(isa)
    for alone in (False, True):
        c = np.full((M, N), np.nan, np.float32)
        tile = {"N": N, "K": K, "BM": rows, "BK": 32, "BN": 32, "ALONE": alone}
        launch(kernels.matmul_bf16, (-(-M // rows), 2), tile, a=a, b=b, c=c, M=M)
        np.testing.assert_array_equal(c, two_chains(a, b, 32))


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(16, 16, 16), (4, 16, 64), (1, 64, 64), (8, 8, 32), (32, 64, 8)]
)
def test_other_tiles(
    launcher_for: Any, kernels: ModuleType, isa: str, rows: int, columns: int, depth: int
) -> None:
    a, b = problem()
    c = np.full((M, N), np.nan, np.float32)
    tile = {"N": N, "K": K, "BM": rows, "BK": depth, "BN": columns, "ALONE": False}
    grid = (-(-M // rows), N // columns)
    launcher_for(isa)(kernels.matmul_bf16, grid, tile, a=a, b=b, c=c, M=M)
    np.testing.assert_array_equal(c, two_chains(a, b, min(depth, 32)))


@pytest.mark.parametrize("rows", [4, 16, 32])
def test_sums_meet_what_was_carried_to_this_step(
    launcher_for: Any, kernels: ModuleType, rows: int
) -> None:
    """Pointers, a factor and the sums before move on in the same loop, whatever comes first."""
    a, b = problem()
    a, steps = a[:rows], K // 32
    y, z = np.zeros((2, rows, N), np.float32)
    tile = {"M": rows, "N": N, "K": K, "BK": 32}
    launcher_for(ISAS[0])(kernels.scaled_products, (1,), tile, a=a, b=b, y=y, z=z, steps=steps)
    first, second = (two_chains(a[:, at : at + 32], b[at : at + 32], 32) for at in (0, 32))
    np.testing.assert_array_equal(z, first)
    np.testing.assert_array_equal(y, first + second * 2)


def test_one_row_of_many_columns(launcher_for: Any, kernels: ModuleType) -> None:
    rng = np.random.default_rng(5)
    a, b = (bits(rng.standard_normal(s).astype(np.float32)) for s in ((1, 64), (64, 1024)))
    c = np.full((1, 1024), np.nan, np.float32)
    tile = {"N": 1024, "K": 64, "BM": 1, "BK": 32, "BN": 512, "ALONE": False}
    launcher_for(ISAS[0])(kernels.matmul_bf16, (1, 2), tile, a=a, b=b, c=c, M=1)
    np.testing.assert_array_equal(c, two_chains(a, b, 32))
