"""Products with weights of few bits: values in Triton's interpreter, and code for the arches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
from sglk.targets.kernels import gemv, group_gemv, matmul_parts, matmul_tiles, row_norm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CASES = Path(__file__).with_name("quantized_cases.py")
TYPES = {
    "x": "*bf16", "w": "*u8", "w_scale": "*fp32", "scale": "*fp32", "w_zero": "*u8", "y": "*bf16",
    "x_scale": "*fp32", "partials": "*fp32", "locks": "*i32", "rows": "i32", "eps": "fp32",
    "scales": "*fp32",
}  # fmt: skip
FP8 = {"x": "*fp8e4nv", "w": "*fp8e4nv"}


def compiled(
    fn: Any, arch: int, types: dict[str, str], constants: dict[str, Any], **options: Any
) -> str:
    given = {"N": 1024, "K": 1024, "ACT": "none", "GATED": 0, "PDL": 0, "OFFSET": 0.0} | constants
    given |= dict.fromkeys(("bias", "norm", "residual"))
    given = {name: value for name, value in given.items() if name in fn.arg_names}
    known = {**TYPES, **types}
    signature = {n: "constexpr" if n in given else known[n] for n in fn.arg_names}
    aligned = [i for i, n in enumerate(fn.arg_names) if signature[n].startswith("*")]
    attrs = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn, signature=signature, constexprs=given, attrs=attrs)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return str(made.asm["ptx"])


def part(block: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    tiles = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    fixed = {"GROUP_M": 0, "SPLITS": 1, "SWAP": 1, "AHEAD": 0, "partials": None, "locks": None}
    return tiles | fixed | more


def test_values_in_the_interpreter() -> None:
    command = [sys.executable, "-W", "error", str(CASES), "cpu"]
    given = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.returncode) == ("", 0), run.stderr


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(("arch", "maps"), [(89, 2), (90, 0), (100, 0), (120, 2)])
def test_fp8_rows_times_fp8_weights(arch: int, maps: int) -> None:
    constants = part((64, 64, 128), FORM="same", GROUP=0, MAPS=maps, w_zero=None)
    ptx = compiled(matmul_parts.linear, arch, FP8, constants, num_warps=4, num_stages=3)
    products = "kind::f8f6f4" if arch == 100 else "e4m3.e4m3"
    assert products in ptx  # and no conversion to wider types
    assert "cvt.rn.f16x2.e4m3x2" not in ptx
    assert ("cp.async.bulk.tensor.2d" in ptx) == (maps == 0)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_scales_of_groups_enter_between_products() -> None:
    constants: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128}
    constants |= {
        "GROUP_M": 8,
        "PROGRAMS": 132,
        "FLAT": 0,
        "REST": 0,
        "MAPS": 0,
        "FORM": "same",
        "GROUP": 128,
        "w_zero": None,
    }
    ptx = compiled(matmul_tiles.linear, 90, FP8, constants, num_warps=8, num_stages=3)
    assert "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3" in ptx


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("form", ["i8", "i4"])
def test_integers_become_bf16_in_registers(arch: int, form: str) -> None:
    constants = part((16, 64, 128), FORM=form, GROUP=128, MAPS=2, x_scale=None)
    types = {"w_scale": "*fp16"}
    ptx = compiled(matmul_parts.linear, arch, types, constants, num_warps=4, num_stages=3)
    assert "bf16.bf16" in ptx and "cp.async" in ptx


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("arch", [80, 90])
def test_gemv_of_groups_loads_16_bytes_at_a_time(arch: int) -> None:
    constants = {"ROWS": 1, "BLOCK_N": 2, "UNITS": 32, "FORM": "i4", "GROUP": 128}
    ptx = compiled(group_gemv.linear, arch, {"w_scale": "*fp16"}, constants, num_warps=2)
    assert ".v4.b32" in ptx.split("cvt")[0]


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_gemv_reads_e4m3_and_norms_write_it() -> None:
    tiles = {"ROWS": 1, "BLOCK_N": 2, "BLOCK_K": 1024}
    ptx = compiled(gemv.linear, 90, {"w": "*fp8e4nv"}, tiles, num_warps=2)
    assert "cvt.rn.f16x2.e4m3x2" in ptx
    constants = {"HIDDEN": 1024, "BLOCK": 1024, "GROUP": 0}
    ptx = compiled(row_norm.quantize_rows, 90, {"y": "*fp8e4nv"}, constants, num_warps=4)
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx
