"""Every limit is broken by a compiled kernel through the ctypes driver, and the error names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglk.errors import DeviceError, LoweringError
from sglk.targets.artifact.kernel_pack import PackedKernel
from sglk.targets.kernels.ttir import to_ttir
from sglk.targets.kunlun.emulator import build_emulated
from sglk.targets.tilec import LIMITS, MemoryModel

F32 = {"x": "*fp32", "y": "*fp32"}
FIVE = {"x": "*fp32", "ids": "*i32", "y": "*fp32"}
STATIC: dict[str, tuple[str, dict[str, str], dict[str, int], dict[str, Any]]] = {
    "reduce_axis": ("reduce_first_axis", F32, {"M": 16, "N": 64}, {}),
    "reduce_rank": ("reduce_cube", F32, {"M": 4}, {}),
    "reduce_lanes": ("whole_sum", F32, {"N": 16384}, {}),
    "math_functions": ("five_functions", F32, {"M": 16}, {}),
    "dma_strided": ("strided_product", F32, {"M": 16}, {}),
    "gather_masked": ("gathered_product", FIVE, {"M": 16}, {}),
    "dma_dtype": ("integer_product", FIVE, {"M": 16}, {}),
    "int_to_float": ("index_product", F32, {"M": 16}, {}),
    "rank": ("cube_product", F32, {"M": 16}, {}),
    "gather_dtype": ("gather_bytes", {"x": "*u8", "ids": "*i32", "y": "*i32"}, {"BLOCK": 64}, {}),
    "atomics": ("exchange", {"x": "*i32", "y": "*i32"}, {"BLOCK": 64}, {}),
    "lm_bytes": ("whole_sum", F32, {"N": 8192}, {"lm_bytes": 2048 + 256}),
    "sm_bytes": ("whole_sum", F32, {"N": 8192}, {"sm_bytes": 128}),
    "uni_sram_bytes": ("index_product", F32, {"M": 16}, {"uni_sram_bytes": 2048}),
    "param_bytes": ("whole_sum", F32, {"N": 64}, {"param_bytes": 24}),
}
"""Limit -> kernel, argument types, constants, and numbers of the chip that make it small."""


@pytest.mark.parametrize("limit", STATIC)
def test_a_kernel_beyond_a_limit_does_not_load(
    bench: Any,
    kernels: ModuleType,
    model: MemoryModel,
    compile_kernel: Callable[..., PackedKernel],
    limit: str,
) -> None:
    name, kinds, constants, numbers = STATIC[limit]
    chip = dataclasses.replace(model, **numbers)
    packed = compile_kernel(getattr(kernels, name), constants, kinds, (), chip)
    with pytest.raises(DeviceError, match=rf"limit {limit}, {LIMITS[limit].mark}"):
        bench.load(packed)


@pytest.mark.parametrize("limit", ["lm_bytes", "sm_bytes", "uni_sram_bytes"])
def test_the_device_itself_refuses_kernels_that_are_too_large(
    bench: Any,
    kernels: ModuleType,
    compile_kernel: Callable[..., PackedKernel],
    limit: str,
) -> None:
    """A kernel that was built for another chip: its header holds no broken rule."""
    name, kinds, constants, numbers = STATIC[limit]
    packed = compile_kernel(getattr(kernels, name), constants, kinds)
    meta = {**packed.meta, "broken": ""}
    bench.library.call("xpuemu_configure", f"{limit}={numbers[limit]}".encode())
    with pytest.raises(DeviceError, match=rf"expected at most {numbers[limit]} .*limit {limit}"):
        bench.load(PackedKernel(meta, packed.data))


def test_building_refuses_all_broken_limits_at_once(
    kernels: ModuleType, model: MemoryModel
) -> None:
    texts = {
        "cube": to_ttir(kernels.reduce_cube, F32, {"M": 4}),
        "axis": to_ttir(kernels.reduce_first_axis, F32, {"M": 16, "N": 64}),
    }
    with pytest.raises(LoweringError, match=r"(?s)cube: .*reduce_rank.*axis: .*reduce_axis"):
        build_emulated(texts, model)


def test_fp64_has_no_unit(kernels: ModuleType, model: MemoryModel) -> None:
    text = to_ttir(kernels.double, F32, {"BLOCK": 64})
    with pytest.raises(LoweringError, match=r"limit dtype, documented"):
        build_emulated({"double": text}, model)


def test_fp8_has_no_unit(kernels: ModuleType, model: MemoryModel) -> None:
    text = to_ttir(kernels.whole_sum, F32, {"N": 64}).replace(
        "tensor<64xf32>", "tensor<64xf8E4M3FN>"
    )
    with pytest.raises(LoweringError, match=r"got f8E4M3FN \(limit dtype, documented"):
        build_emulated({"sum": text}, model)


def test_every_limit_has_a_test() -> None:
    elsewhere = {"dtype", "dma_bounds", "dma_alignment"}
    assert set(LIMITS) == set(STATIC) | elsewhere


# ---- while a kernel runs


def test_a_block_past_its_allocation_faults_masked_or_not(bench: Any, kernels: ModuleType) -> None:
    x, z = np.ones(200, np.float32), np.zeros(256, np.float32)
    with pytest.raises(
        DeviceError,
        match=r"load of 256xf32 at emulated_kernels.py:\d+.*224 bytes "
        r"past the end of the allocation of 800 bytes.*limit dma_bounds, doc",
    ):
        bench.run(kernels.add, (1, 1, 1), {"BLOCK": 256}, x=x, y=x, z=z, n=100)


def test_a_store_past_its_allocation_faults(bench: Any, kernels: ModuleType) -> None:
    x, z = np.ones(256, np.float32), np.zeros(100, np.float32)
    with pytest.raises(DeviceError, match=r"store of 256xf32 .*limit dma_bounds"):
        bench.run(kernels.add, (1, 1, 1), {"BLOCK": 256}, x=x, y=x, z=z, n=100)


def test_a_gather_faults_at_the_element_that_is_outside(bench: Any, kernels: ModuleType) -> None:
    ids = np.arange(64, dtype=np.int32)
    ids[50] = 1 << 20
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(DeviceError, match=r"load of 64xf32 .*: 4 bytes at .*limit dma_bounds"):
        bench.run(kernels.gather, (1, 1, 1), {"BLOCK": 64}, x=x, ids=ids, y=y)


def test_a_block_before_its_allocation_faults(bench: Any, kernels: ModuleType) -> None:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(DeviceError, match=r"limit dma_bounds"):
        bench.run(kernels.copy_from, (1, 1, 1), {"BLOCK": 64}, x=x, y=y, offset=-16)


def test_a_misaligned_address_faults(bench: Any, kernels: ModuleType) -> None:
    packed = bench.compiled(kernels.scale, {"BLOCK": 64}, {**F32, "factor": "fp32"})
    place = bench.put(np.zeros(256, np.float32))
    bench.xpu.launch(bench.load(packed), (1, 1, 1), [place + 2, place + 512, 1.0])
    with pytest.raises(DeviceError, match=r"KEXCEPTION.*limit dma_alignment, inferred"):
        bench.xpu.wait()
