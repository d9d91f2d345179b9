"""Kernels on the emulator against NumPy, through the ctypes driver; counts against predictions."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglk.targets.kunlun.emulator import predict, predict_programs

COUNTED = ("gm_read", "gm_written", "descriptors", "scalars", "macs", "lm", "uni_sram")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_a_kernel_runs_and_its_counts_are_those_of_the_plan(
    bench: Any, kernels: ModuleType, rng: np.random.Generator
) -> None:
    x, y = rng.standard_normal((2, 1024)).astype(np.float32)
    z = np.zeros_like(x)
    packed = bench.run(kernels.add_whole, (4, 1, 1), {"BLOCK": 256}, x=x, y=y, z=z)
    np.testing.assert_array_equal(z, x + y)
    counted = bench.xpu.counters("add_whole")
    assert {name: counted[name] for name in COUNTED} == {
        "gm_read": 2 * 4096, "gm_written": 4096, "descriptors": 12, "scalars": 0, "macs": 0,
        "lm": 3 * 4096, "uni_sram": 0,
    }  # fmt: skip
    assert predict(packed.meta, [4]) == {name: counted[name] for name in predict(packed.meta, [4])}
    assert counted["programs"] == 4 and counted["launches"] == 1


def test_counts_of_loops_and_products(
    bench: Any, kernels: ModuleType, rng: np.random.Generator
) -> None:
    a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
    c = np.zeros((64, 64), np.float32)
    constants = {"M": 64, "N": 64, "BLOCK_K": 16}
    packed = bench.run(kernels.matmul, (1, 1, 1), constants, a=a, b=b, c=c, K=64)
    np.testing.assert_allclose(c, a @ b, rtol=2e-5, atol=2e-5)
    counted = bench.xpu.counters("matmul")
    expected = predict(packed.meta, [1, 4])
    assert predict_programs(packed.meta, 1) is None  # K is an argument
    assert expected == {name: counted[name] for name in expected}
    assert counted["macs"] == 64**3
    assert (counted["gm_read"], counted["gm_written"]) == (2 * 64 * 64 * 4, 64 * 64 * 4)
    assert counted["descriptors"] == 2 * 4 + 1  # 2-D copies of the tiles
    assert packed.meta["engine"] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_turned_right_side(
    bench: Any, kernels: ModuleType, rng: np.random.Generator, dtype: type
) -> None:
    """Blocks of the tile are turned in registers on the way."""
    a, b = rng.standard_normal((16, 96)).astype(np.float32), rng.standard_normal((48, 96))
    weight: np.ndarray[Any, Any] = b.astype(dtype)
    c = np.zeros((16, 64), np.float32)
    padded = np.concatenate([weight, weight[:16]])
    constants = {"M": 16, "N": 64, "BLOCK_K": 32}
    bench.run(kernels.matmul_t, (1, 1, 1), constants, a=a, b=padded, c=c, K=96)
    np.testing.assert_allclose(c, a @ padded.T.astype(np.float32), rtol=2e-5, atol=2e-5)


def test_a_reduction_over_chunks(bench: Any, kernels: ModuleType, rng: np.random.Generator) -> None:
    x = rng.standard_normal((30, 256)).astype(np.float32)
    y = np.zeros(30, np.float32)
    packed = bench.run(kernels.row_sum, (30, 1, 1), {"N": 256, "BLOCK": 64}, x=x, y=y)
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-5, atol=1e-5)
    counted = bench.xpu.counters("row_sum")
    expected = predict(packed.meta, [30, 30 * 4])
    assert predict_programs(packed.meta, 30) == expected
    assert expected == {name: counted[name] for name in expected}
    assert counted["scalars"] == 30


def test_gathers_are_single_accesses(bench: Any, kernels: ModuleType) -> None:
    x = np.arange(100, dtype=np.float32)
    ids = np.arange(64, dtype=np.int32)[::-1].copy()
    y = np.zeros(64, np.float32)
    bench.run(kernels.gather, (1, 1, 1), {"BLOCK": 64}, x=x, ids=ids, y=y)
    np.testing.assert_array_equal(y, x[ids])
    assert bench.xpu.counters("gather")["scalars"] == 64


def test_more_work_takes_longer_in_the_model(
    bench: Any, kernels: ModuleType, rng: np.random.Generator
) -> None:
    times = []
    for blocks in (12, 120):
        x, y = rng.standard_normal((2, 64 * blocks)).astype(np.float32)
        bench.library.call("xpuemu_reset_counters")
        bench.run(kernels.add_whole, (blocks, 1, 1), {"BLOCK": 64}, x=x, y=y, z=np.zeros_like(x))
        times.append(bench.xpu.counters("add_whole")["nanoseconds"] - 1000)
    assert times[1] == pytest.approx(10 * times[0])


@pytest.mark.parametrize("threads", [1, 3])
def test_results_and_counts_do_not_depend_on_threads(
    bench: Any, kernels: ModuleType, rng: np.random.Generator, threads: int
) -> None:
    bench.library.call("xpuemu_configure", f"threads={threads}".encode())
    x = rng.standard_normal((40, 256)).astype(np.float32)
    y = np.zeros(40, np.float32)
    bench.run(kernels.row_sum, (40, 1, 1), {"N": 256, "BLOCK": 64}, x=x, y=y)
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-5, atol=1e-5)
    assert bench.xpu.counters("row_sum")["programs"] == 40


def test_numbers_and_floats_reach_the_kernel(bench: Any, kernels: ModuleType) -> None:
    x = np.arange(64, dtype=np.float32)
    y = np.zeros(64, np.float32)
    bench.run(kernels.scale, (1, 1, 1), {"BLOCK": 64}, x=x, y=y, factor=-2.5)
    np.testing.assert_array_equal(y, x * np.float32(-2.5))


def test_masked_rows_stay_as_they_were(bench: Any, kernels: ModuleType) -> None:
    x, z = np.ones(256, np.float32), np.full(256, 7, np.float32)
    bench.run(kernels.add, (1, 1, 1), {"BLOCK": 256}, x=x, y=x, z=z, n=100)
    assert (z[:100] == 2).all() and (z[100:] == 7).all()
