"""Known silent errors: a kernel that relies on each goes wrong with it, and is right without."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.tilec import HAZARDS

Case = tuple[str, dict[str, object], dict[str, Any], Callable[..., NDArray[Any]]]
ONE = (1, 1, 1)


def _square(n: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal((n, n)).astype(np.float32)


def _cases() -> dict[str, Case]:
    """Hazard -> kernel, constants, arguments, and what `y` must be."""
    ramp = np.arange(1, 65, dtype=np.float32)
    tile, half = _square(16), np.float16(1.0009766)
    signed = np.where(np.arange(64) % 2, np.float32(-0.0), np.float32(0.0)).astype(np.float32)
    bits = np.full(64, 0x3F80, np.uint16)  # 1.0 in bf16
    return {
        "other": (
            "relies_on_other", {"BLOCK": 64},
            {"x": ramp, "y": np.zeros(1, np.float32), "n": 10},
            lambda: np.array([55], np.float32),
        ),
        "reduce-lanes": (
            "whole_sum", {"N": 16384},
            {"x": np.ones(16384, np.float32), "y": np.zeros(1, np.float32)},
            lambda: np.array([16384], np.float32),
        ),
        "short-tail": (
            "add_whole", {"BLOCK": 32},
            {"x": ramp[:32], "z": ramp[:32] * 2, "y": np.zeros(32, np.float32)},
            lambda: ramp[:32] * 3,
        ),
        "int-to-float": (
            "index_product", {"M": 16}, {"x": tile, "y": np.zeros_like(tile)},
            lambda: tile @ tile + np.arange(16, dtype=np.float32)[:, None],
        ),
        "copy-strided": (
            "repeated_row", {"M": 16},
            {"x": tile, "bias": ramp[:16], "y": np.zeros_like(tile)},
            lambda: tile @ tile + ramp[:16, None],
        ),
        "where-bf16": (
            "where_tile", {"BLOCK": 64}, {"x": bits, "y": np.zeros(64, np.uint16), "n": 32},
            lambda: np.where(np.arange(64) < 32, 0x3F80, 0x4000).astype(np.uint16),
        ),
        "half-product": (
            "half_times_float", {"BLOCK": 64},
            {"x": np.full(64, half), "w": np.full(64, np.float32(1.0001)),
             "y": np.zeros(64, np.float32)},
            lambda: np.full(64, np.float32(half) * np.float32(1.0001)),
        ),
        "unrolled-loop": (
            "unrolled_loops", {"BLOCK": 64},
            {"x": np.ones((2, 64), np.float32), "y": np.zeros(64, np.float32), "n": 2},
            lambda: np.full(64, 6, np.float32),
        ),
        "negative-zero": (
            "differs_from_zero", {"BLOCK": 64}, {"x": signed, "y": np.zeros(64, np.int32)},
            lambda: np.zeros(64, np.int32),
        ),
    }  # fmt: skip


CASES = _cases()


def _run(bench: Any, kernels: ModuleType, name: str, hazards: tuple[str, ...]) -> bool:
    """Whether the kernel was right."""
    function, constants, arguments, expected = CASES[name]
    fresh = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
    if function == "add_whole":  # its output is the last argument
        fresh = {"x": fresh["x"], "y": fresh["z"], "z": fresh["y"]}
    bench.run(getattr(kernels, function), ONE, constants, hazards, **fresh)
    got = fresh["z"] if function == "add_whole" else fresh["y"]
    return bool(np.allclose(got, expected(), rtol=1e-5, atol=1e-5))


def test_every_hazard_has_a_kernel() -> None:
    assert set(CASES) == set(HAZARDS)


@pytest.mark.parametrize("hazard", CASES)
def test_a_kernel_that_relies_on_it_goes_wrong(
    bench: Any, kernels: ModuleType, hazard: str
) -> None:
    assert not _run(bench, kernels, hazard, (hazard,))


LEGAL = sorted(set(CASES) - {"reduce-lanes", "int-to-float", "copy-strided"})
"""Without the hazard the others are refused: a limit stands for it."""


@pytest.mark.parametrize("hazard", LEGAL)
def test_it_is_right_without_the_hazard(bench: Any, kernels: ModuleType, hazard: str) -> None:
    assert _run(bench, kernels, hazard, ())


def test_a_strided_store_beside_a_product_is_dropped(bench: Any, kernels: ModuleType) -> None:
    x, y = _square(16), np.full((16, 64), 5, np.float32)
    bench.run(kernels.strided_product, ONE, {"M": 16}, ("copy-strided",), x=x, y=y)
    assert (y == 5).all()


def test_a_kernel_that_masks_again_is_right_under_hazards(bench: Any, kernels: ModuleType) -> None:
    x, y = np.arange(1, 65, dtype=np.float32), np.zeros(1, np.float32)
    bench.run(kernels.masks_again, ONE, {"BLOCK": 64}, tuple(HAZARDS), x=x, y=y, n=10)
    assert y[0] == 55
