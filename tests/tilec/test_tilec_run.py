"""Translated kernels against NumPy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglk.targets.tilec import isa_supported

ISAS = [name for name in ("x86_64_v4", "x86_64_v3") if isa_supported(name)]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("n", [1, 15, 64, 100, 257])
def test_masked_tails_leave_the_rest_alone(
    launch: Any, kernels: ModuleType, rng: np.random.Generator, n: int
) -> None:
    x, y = rng.standard_normal((2, 320)).astype(np.float32)
    expected = y.copy()
    expected[:n] = x[:n] * np.float32(0.5) + y[:n]
    launch(kernels.axpy, (-(-n // 64),), {"BLOCK": 64}, x=x, y=y, n=n, a=0.5)
    np.testing.assert_array_equal(y, expected)


def test_functions_are_accurate(launch: Any, kernels: ModuleType, rng: np.random.Generator) -> None:
    n = 4096
    x = (rng.standard_normal(n) * rng.choice([0.1, 1, 8], n)).astype(np.float32)
    y = np.zeros((9, n), np.float32)
    launch(kernels.functions, (n // 256,), {"BLOCK": 256}, x=x, y=y, n=n)
    wide = x.astype(np.float64)
    erf = np.vectorize(__import__("math").erf)
    exact = [np.exp(wide), np.log(np.abs(wide)), np.sin(wide), np.cos(wide), np.tanh(wide)]
    exact += [erf(wide), np.exp2(wide), np.sqrt(np.abs(wide)), np.floor(wide)]
    for got, want in zip(y, exact, strict=True):
        ulp = np.spacing(np.maximum(np.abs(want), 1e-3).astype(np.float32))
        assert np.max(np.abs(got - want) / ulp) <= 2.0


def test_angles_up_to_1e5_are_reduced(
    launch: Any, kernels: ModuleType, rng: np.random.Generator
) -> None:
    x = rng.uniform(-1e5, 1e5, 4096).astype(np.float32)
    y = np.zeros((9, 4096), np.float32)
    launch(kernels.functions, (16,), {"BLOCK": 256}, x=x, y=y, n=4096)
    assert np.abs(y[2] - np.sin(x.astype(np.float64))).max() < 2e-7
    assert np.abs(y[3] - np.cos(x.astype(np.float64))).max() < 2e-7


@pytest.mark.parametrize("width", [1, 8, 16, 64, 256, 1024])
def test_sums(launch: Any, kernels: ModuleType, rng: np.random.Generator, width: int) -> None:
    x = rng.standard_normal((3, width)).astype(np.float32)
    y = np.zeros(3, np.float32)
    launch(kernels.row_sums, (3,), {"N": width}, x=x, y=y)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "n"), [(1, 64), (4, 32), (32, 64), (32, 4), (2, 8)])
def test_reductions_of_tiles(
    launch: Any, kernels: ModuleType, rng: np.random.Generator, m: int, n: int
) -> None:
    x = rng.integers(-50, 50, (m, n)).astype(np.float32)  # many ties
    sums, best = np.zeros(m, np.float32), np.zeros(n, np.float32)
    where, total = np.zeros(m, np.int32), np.zeros(1, np.float32)
    launch(
        kernels.tile_reductions, (1,), {"M": m, "N": n},
        x=x, rows_sum=sums, columns_max=best, where=where, total=total,
    )  # fmt: skip
    np.testing.assert_array_equal(sums, x.sum(1))
    np.testing.assert_array_equal(best, x.max(0))
    np.testing.assert_array_equal(where, x.argmax(1))
    assert total[0] == x.sum()


@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 64), (64, 32), (16, 256)])
@pytest.mark.parametrize("isa", [*ISAS, "generic"])
def test_rows_of_a_tile_are_summed_in_the_order_of_one_row(
    launcher_for: Any, kernels: ModuleType, rng: np.random.Generator, m: int, n: int, isa: str
) -> None:
    """Sixteen at once, each in a lane of its own."""
    launch = launcher_for(isa)
    x = rng.standard_normal((m, n)).astype(np.float32)
    together, alone = np.zeros(m, np.float32), np.zeros(m, np.float32)
    launch(
        kernels.tile_reductions, (1,), {"M": m, "N": n},
        x=x, rows_sum=together, columns_max=np.zeros(n, np.float32),
        where=np.zeros(m, np.int32), total=np.zeros(1, np.float32),
    )  # fmt: skip
    launch(kernels.row_sums, (m,), {"N": n}, x=x, y=alone)
    np.testing.assert_array_equal(together, alone)
    assert not np.array_equal(together, x.astype(np.float64).sum(1).astype(np.float32))


@pytest.mark.parametrize("n", [16, 128])
def test_shape_changes(launch: Any, kernels: ModuleType, rng: np.random.Generator, n: int) -> None:
    x = rng.standard_normal(n).astype(np.float32)
    turned, halves, joined = (np.zeros(size, np.float32) for size in (n, n // 2, n))
    launch(kernels.shapes, (1,), {"N": n}, x=x, transposed=turned, halves=halves, joined=joined)
    np.testing.assert_array_equal(turned, x.reshape(-1, 8).T.ravel())
    np.testing.assert_array_equal(halves, x[0::2] - x[1::2])
    np.testing.assert_array_equal(joined, np.stack([x[1::2], x[0::2]], 1).ravel())


def test_sort_scan_gather(launch: Any, kernels: ModuleType, rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, 16).astype(np.float32)
    index = rng.permutation(16).astype(np.int32)
    ordered, running, picked = np.zeros((3, 16), np.float32)
    launch(
        kernels.sorted_and_scanned, (1,), {"N": 16},
        x=x, in_order=ordered, running=running, picked=picked, index=index,
    )  # fmt: skip
    np.testing.assert_array_equal(ordered, np.sort(x))
    np.testing.assert_array_equal(running, np.cumsum(x))
    np.testing.assert_array_equal(picked, x[index])


def test_narrow_loads(launch: Any, kernels: ModuleType, rng: np.random.Generator) -> None:
    q = rng.integers(0, 256, 32, dtype=np.uint8)
    s = rng.integers(-128, 128, 32, dtype=np.int8)
    h = rng.standard_normal(32).astype(np.float16)
    b = (rng.standard_normal(32).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    y = np.zeros((8, 32), np.float32)
    launch(kernels.bytes_and_halves, (1,), {"N": 32}, q=q, s=s, h=h, b=b, y=y)
    wide = (b.astype(np.uint32) << 16).view(np.float32)
    square = (wide * wide).view(np.uint32)
    square = ((square + 0x7FFF + (square >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    low = (q & 15).astype(np.float32)
    expected = [low, q >> 4, s.astype(np.float32) - 8, h, square, low - 8]
    expected += [(q + q) >> 1, s >> 1]
    for got, want in zip(y, expected, strict=True):
        np.testing.assert_array_equal(got, np.asarray(want, np.float32))


def test_narrow_stores(launch: Any, kernels: ModuleType, rng: np.random.Generator) -> None:
    x = (rng.standard_normal(32) * 50).astype(np.float32)
    b, h, q = np.zeros(32, np.uint16), np.zeros(32, np.float16), np.zeros(32, np.int8)
    launch(kernels.to_narrow, (1,), {"N": 32}, x=x, b=b, h=h, q=q)
    bits = x.view(np.uint32)
    np.testing.assert_array_equal(b, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    np.testing.assert_array_equal(h, x.astype(np.float16))
    np.testing.assert_array_equal(q, x.astype(np.int32).astype(np.int8))


@pytest.mark.parametrize("n", [4, 64, 1024])
def test_loads_happen_before_later_stores(
    launch: Any, kernels: ModuleType, rng: np.random.Generator, n: int
) -> None:
    x = rng.standard_normal(2 * n).astype(np.float32)
    left, right = x[:n].copy(), x[n:].copy()
    launch(kernels.rotate_in_place, (1,), {"N": n}, x=x)
    np.testing.assert_array_equal(x, np.concatenate([left - right, left + right]))
    before = x.copy()
    launch(kernels.reverse_in_place, (1,), {"N": n}, x=x)
    np.testing.assert_array_equal(x[:n], before[:n][::-1])


def test_scalar_control_flow(launch: Any, kernels: ModuleType) -> None:
    x, y = np.array([1, 2, 7, 27], np.int32), np.zeros(4, np.int32)
    launch(kernels.collatz, (1,), {}, x=x, y=y, n=4)
    assert y.tolist() == [0, 1, 16, 111]


@pytest.mark.parametrize("block", [8, 64, 1024])
def test_branches_return_tiles(
    launch: Any, kernels: ModuleType, rng: np.random.Generator, block: int
) -> None:
    x, y = rng.standard_normal(block).astype(np.float32), np.zeros(block, np.float32)
    launch(kernels.branch_tiles, (1,), {"BLOCK": block}, x=x, y=y, n=4)
    np.testing.assert_allclose(y, np.exp(x) + x.sum(), rtol=1e-5, atol=1e-5)
    launch(kernels.branch_tiles, (1,), {"BLOCK": block}, x=x, y=y, n=3)
    np.testing.assert_allclose(y, x * 2 + 1, rtol=1e-6)


@pytest.mark.parametrize("m", [1, 4, 32])
def test_carried_statistics(
    launch: Any, kernels: ModuleType, rng: np.random.Generator, m: int
) -> None:
    x, y = rng.standard_normal((m, 100)).astype(np.float32), np.zeros((m, 100), np.float32)
    launch(kernels.online_softmax, (1,), {"M": m, "BLOCK": 32}, x=x, y=y, N=100)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-6)


def test_integer_arithmetic(launch: Any, kernels: ModuleType, rng: np.random.Generator) -> None:
    a = rng.integers(-(2**31), 2**31, 128).astype(np.int32)
    b = rng.integers(1, 2**16, 128).astype(np.int32) * rng.choice([-1, 1], 128).astype(np.int32)
    y = np.zeros((7, 128), np.int32)
    launch(kernels.integers, (2,), {"N": 64}, x=a, d=b, y=y)
    i, wide_a, wide_b = np.arange(128), a.astype(np.int64), b.astype(np.int64)
    quotient = np.trunc(wide_a / wide_b).astype(np.int64)
    ua, ub = wide_a % 2**32, wide_b % 2**32
    high = np.array([int(p) * int(r) >> 32 for p, r in zip(ua, ub, strict=True)])
    expected = [quotient, wide_a - quotient * wide_b, i // 64 * 1000 + i % 64, high]
    expected += [wide_a * wide_b >> 7, np.where((a > b) ^ (a > 0), a ^ b, a | b)]
    expected.append(np.minimum(ua, ub))
    for got, want in zip(y, expected, strict=True):
        np.testing.assert_array_equal(got, want.astype(np.int64).astype(np.int32))


def test_atomics(launch: Any, kernels: ModuleType, rng: np.random.Generator) -> None:
    x = rng.integers(0, 8, 64).astype(np.int32)
    bins, total = np.zeros(8, np.int32), np.zeros(1, np.int32)
    launch(kernels.count, (2,), {"N": 32}, x=x, bins=bins, total=total)
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=8))
    assert total[0] == x.sum()


def test_random_numbers_are_uniform(launch: Any, kernels: ModuleType) -> None:
    y = np.zeros(1024, np.float32)
    launch(kernels.philox, (1,), {"N": 1024}, y=y, seed=5)
    assert y.min() >= 0 and y.max() < 1 and abs(y.mean() - 0.5) < 0.05
    assert len(np.unique(y)) > 1000


@pytest.mark.parametrize("steps", [0, 1, 4, 5])
def test_carried_tiles_change_places(
    launch: Any, kernels: ModuleType, rng: np.random.Generator, steps: int
) -> None:
    x = rng.standard_normal((32, 64)).astype(np.float32)
    y, z = np.zeros((2, 32, 64), np.float32)
    launch(kernels.swapped, (1,), {"M": 32, "N": 64}, x=x, y=y, z=z, steps=steps)
    one, other = (x, 2 * x) if steps % 2 == 0 else (2 * x, x)
    np.testing.assert_array_equal(y, one)
    np.testing.assert_array_equal(z, other)
