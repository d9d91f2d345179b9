"""Linear layers and gathers on group forms against `GroupArray.dequantize` and matmul."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.ir.groups import SCALE_TYPES, GroupArray, random_groups
from sglk.targets.kernels import group_linear
from sglk.targets.kernels.group_packing import form_constants, group_sections, pack_groups

Launch = Callable[..., None]
Array = NDArray[Any]
N, K = 70, 160
NAMES = (
    "i4_g64_f16_z",
    "i4_row_f32",
    "i8_g32_bf16_z",
    "i8_row_f16",
    "e4m3_g128_f32",
    "e4m3_row_bf16",
)


def planes(array: GroupArray, bf16: Callable[[Array], Any]) -> dict[str, Any]:
    """The three section arguments of the kernels."""
    blob = pack_groups(array)
    given: dict[str, Any] = dict.fromkeys("qdz")
    for name, part in group_sections(array.form, *array.shape).items():
        kind = SCALE_TYPES[array.form.scale] if name == "d" else np.dtype(np.uint8)
        plane = blob[part.offset : part.offset + part.bytes].view(kind)
        if part.dtype == "bf16":
            plane = bf16((plane.astype(np.uint32) << 16).view(np.float32))
        given[name] = plane
    return given


def every_byte(name: str, n: int = N) -> GroupArray:
    """Random scales and zeros, with every stored number somewhere."""
    array = random_groups(name, (n, K), np.random.default_rng(3))
    if array.form.bits == 8:
        array.q.reshape(-1)[:254] = [b for b in range(256) if b & 127 != 127]
    return array


def product_call(
    array: GroupArray, x: Array, block_m: int, bf16: Callable[[Array], Any], **more: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Kernel, constants and arguments of one product; y is poisoned."""
    form = form_constants(array.form, K)
    constants = {"K": K, "N": array.shape[0], "ACT": "none", "BLOCK_M": block_m, **form}
    y = np.full((len(x), array.shape[0]), np.nan, np.float32)
    arguments = {"x": x, **planes(array, bf16), "bias": None, "residual": None, "y": y}
    return group_linear.group_linear, constants, arguments | {"rows": len(x)} | more


@pytest.mark.parametrize("name", NAMES)
def test_gathered_rows_have_the_exact_values(launch: Any, bf16: Any, name: str) -> None:
    array = every_byte(name)
    ids = np.array([0, 69, 63, 64, 1, 0], np.int32)
    y = np.full((len(ids), K), np.nan, np.float32)
    arguments = {**planes(array, bf16), "ids": ids, "y": y, "scale": 1.0}
    constants = {"K": K, **form_constants(array.form, K)}
    launch(group_linear.gather_groups, (len(ids), 1, 1), constants, **arguments)
    np.testing.assert_array_equal(y.view(np.uint32), array.dequantize()[ids].view(np.uint32))


@pytest.mark.parametrize("name", NAMES)
def test_products_are_those_of_the_values_for_every_tile(launch: Any, bf16: Any, name: str) -> None:
    array = every_byte(name)
    x = np.random.default_rng(4).standard_normal((9, K), np.float32)
    calls = [product_call(array, x, m, bf16) for m in (1, 4, 16)]
    launch.prepare(calls)
    for kernel, constants, arguments in calls:
        grid = (-(-len(x) // constants["BLOCK_M"]), -(-N // 64), 1)
        launch(kernel, grid, constants, **arguments)
    wanted = x.astype(np.float64) @ array.dequantize().astype(np.float64).T
    first = calls[0][2]["y"]
    np.testing.assert_allclose(first, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max() * 10)
    for _, _, arguments in calls[1:]:
        np.testing.assert_array_equal(arguments["y"], first)


def test_the_epilogue_and_the_halves_of_a_gated_product(launch: Any, bf16: Any) -> None:
    array = random_groups("i4_g32_f16_z", (128, K), np.random.default_rng(5))
    x = np.random.default_rng(6).standard_normal((3, K), np.float32)
    form = form_constants(array.form, K)
    bias = np.arange(128, dtype=np.float32)
    residual = np.ones((3, 128), np.float32)
    kernel, constants, arguments = product_call(array, x, 4, bf16, bias=bias, residual=residual)
    launch(kernel, (1, 2, 1), constants | {"ACT": "relu"}, **arguments)
    product = x @ array.dequantize().T
    wanted = np.maximum(product + bias, 0) + residual
    np.testing.assert_allclose(arguments["y"], wanted, rtol=1e-4, atol=1e-4)
    y = np.full((3, 64), np.nan, np.float32)
    gated = {"x": x, **planes(array, bf16), "y": y, "rows": 3}
    constants = {"K": K, "N": 64, "ACT": "relu", "BLOCK_M": 4, **form}
    launch(group_linear.gated_group_linear, (1, 1, 1), constants, **gated)
    wanted = np.maximum(product[:, :64], 0) * product[:, 64:]
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-3)
