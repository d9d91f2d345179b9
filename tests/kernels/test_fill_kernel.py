"""The device makes the same weights as the host, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sglk.targets.artifact.fill import Fill, fill_array
from sglk.targets.kernels import fill

BLOCK = 64


def bits(number: float) -> int:
    return int(np.float32(number).view(np.int32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("seed", "mean", "step"),
    [(7, 0.0, 1.1e-9), (0xFFFFFFF1, 1.0, 2.5e-9), (12345, -0.3, 3.3e-8)],
)
def test_fills_are_those_of_the_definition(
    launch: Callable[..., None], dtype: Any, seed: int, mean: float, step: float
) -> None:
    count = 3 * BLOCK + 17
    weight = np.full(count, -1, dtype)
    numbers = {
        "count": count,
        "seed": int(np.uint32(seed).view(np.int32)),
        "step": bits(step),
        "mean": bits(mean),
    }
    launch(fill.fill, (4, 1, 1), {"BLOCK": BLOCK}, weight=weight, **numbers)
    wanted = fill_array(Fill(seed, mean, step), count, {4: "f32", 2: "f16"}[weight.itemsize])
    assert np.array_equal(weight, wanted)
