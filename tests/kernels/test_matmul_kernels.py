"""Products for CUDA: values in Triton's interpreter, and what the compiler makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
from sglk.targets.kernels import (
    gemv,
    matmul_parts,
    matmul_tiles,
    matmul_tma,
    matmul_wide,
    split_k,
)
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CASES = Path(__file__).with_name("matmul_cases.py")
TYPES = {
    "x": "*bf16", "w": "*bf16", "norm": "*bf16", "residual": "*bf16", "y": "*bf16",
    "partials": "*fp32", "locks": "*i32", "rows": "i32", "eps": "fp32",
}  # fmt: skip


def compiled(fn: Any, arch: int, constants: dict[str, Any], **options: Any) -> Any:
    constants = {"N": 4096, "K": 1024, "ACT": "none", "GATED": 0, "PDL": 0} | constants
    absent = ("bias", "scale", "x_scale", "w_scale", "w_zero")
    constants |= {name: None for name in absent if name in fn.arg_names}
    if "w_zero" in fn.arg_names:
        constants = {"FORM": "same", "GROUP": 0} | constants
    types = {n: "constexpr" if n in constants else TYPES[n] for n in fn.arg_names}
    aligned = [i for i, n in enumerate(fn.arg_names) if types[n].startswith("*")]
    attrs = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn, signature=types, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def tiles(m: int, n: int, k: int, programs: int, **more: Any) -> dict[str, Any]:
    sizes = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "PROGRAMS": programs, "GROUP_M": 8}
    return sizes | {"STREAM": 1, "SWAP": 0} | more


def assert_ticket_follows_parts(ptx: str) -> None:
    """All threads have written their part of a tile before one takes the ticket."""
    before = ptx[: ptx.index("atom.global.gpu.acq_rel")]
    assert before.rindex("bar.sync") > before.rindex("st.global")


def test_values_in_the_interpreter() -> None:
    command = [sys.executable, "-W", "error", str(CASES), "cpu"]
    given = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.returncode) == ("", 0), run.stderr


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_gemv_reads_weights_before_it_waits() -> None:
    constants = {"ROWS": 1, "BLOCK_N": 4, "BLOCK_K": 512, "OFFSET": 0.0, "PDL": 1}
    kernel = compiled(gemv.linear, 90, constants, num_warps=4, launch_pdl=True)
    head = kernel.asm["ptx"].split("griddepcontrol.wait")[0]
    assert "griddepcontrol.launch_dependents" in head
    assert head.count("ld.global") == head.count(".v4.b32") == 2  # 4 * 512 bf16 of 128 threads


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("arch", [80, 90])
def test_split_k_keeps_loads_in_flight(arch: int) -> None:
    constants = tiles(16, 64, 128, 264, SWAP=1, GROUP_M=0)
    ptx = compiled(split_k.linear, arch, constants, num_warps=4, num_stages=4).asm["ptx"]
    assert_ticket_follows_parts(ptx)
    loop = ptx[ptx.index("in Loop: Header") :]
    assert "cp.async.wait_group" in loop
    assert "cp.async.wait_group \t0" not in loop.split("mma")[0]
    assert ("wgmma.mma_async" in ptx) == (arch == 90)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_gated_tile_is_one_product() -> None:
    constants = tiles(128, 256, 64, 132, MAPS=0, GATED=1, ACT="silu")
    kernel = compiled(matmul_tma.linear, 90, constants, num_warps=8, num_stages=3)
    ptx = kernel.asm["ptx"]
    assert_ticket_follows_parts(ptx)
    assert ptx.count("wgmma.mma_async.sync.aligned.m64n256k16") == 4  # 64 of k, both halves at once
    assert "cp.async.bulk.tensor.3d" in ptx  # w as [2, N, K]
    assert "cp.async.bulk.tensor.2d" in ptx
    assert kernel.metadata.shared <= 232448


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(("arch", "maps"), [(80, 2), (90, 0)])
def test_a_part_is_one_plain_loop(arch: int, maps: int) -> None:
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 0, "SPLITS": 2}
    constants |= {"SWAP": 1, "MAPS": maps, "AHEAD": 0}
    ptx = compiled(matmul_parts.linear, arch, constants, num_warps=4, num_stages=4).asm["ptx"]
    assert_ticket_follows_parts(ptx)
    if maps == 0:  # the product of one step runs while the next is issued
        assert "wgmma.wait_group.sync.aligned 1" in ptx
        assert "cp.async.bulk.tensor.2d" in ptx
    else:
        assert "cp.async.wait_group" in ptx


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("ahead", [0, 1])
def test_the_first_weights_of_a_part_are_read_before_the_wait(ahead: int) -> None:
    constants = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 256, "GROUP_M": 0, "SPLITS": 2}
    constants |= {"SWAP": 1, "MAPS": 2, "AHEAD": ahead, "PDL": 1}
    ptx = compiled(matmul_parts.linear, 90, constants, num_warps=4, num_stages=3).asm["ptx"]
    head, rest = ptx.split("griddepcontrol.wait")
    assert head.count("ld.global.v4.b32") == ahead * 64 * 256 * 2 // 16 // 128
    assert "cp.async" not in head and "cp.async.wait_group" in rest


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("flat", [0, 1])
def test_whole_tiles_keep_products_in_flight(flat: int) -> None:
    constants = tiles(128, 256, 64, 132, MAPS=0, FLAT=flat, REST=0, residual=None)
    del constants["SWAP"], constants["STREAM"]
    kernel = compiled(matmul_tiles.linear, 90, constants, num_warps=8, num_stages=3)
    ptx = kernel.asm["ptx"]
    assert ptx.count("wgmma.mma_async.sync.aligned.m64n256k16") == 4  # 64 of k, in one place
    assert "wgmma.wait_group.sync.aligned 1" in ptx
    assert kernel.metadata.shared <= 232448


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_a_wide_tile_keeps_products_of_both_blocks_in_flight() -> None:
    constants = tiles(128, 128, 64, 132, EXTRA=64, GATED=1, ACT="silu", residual=None)
    del constants["SWAP"], constants["STREAM"]
    kernel = compiled(matmul_wide.linear, 90, constants, num_warps=4, num_stages=5)
    ptx = kernel.asm["ptx"]
    # one group of warps: 128 rows are two products, 64 of k four, in one place
    assert ptx.count("wgmma.mma_async.sync.aligned.m64n128k16") == 8
    assert ptx.count("wgmma.mma_async.sync.aligned.m64n64k16") == 8
    assert "wgmma.wait_group.sync.aligned 2" in ptx
    assert kernel.metadata.shared <= 232448


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_the_last_round_in_halves_keeps_products_in_flight_too() -> None:
    constants = tiles(128, 256, 64, 132, MAPS=0, FLAT=0, REST=1, residual=None)
    del constants["SWAP"], constants["STREAM"]
    kernel = compiled(matmul_tiles.linear, 90, constants, num_warps=8, num_stages=4)
    ptx = kernel.asm["ptx"]
    whole, halves = "m64n256k16", "m64n128k16"
    for tile in (whole, halves):
        assert ptx.count(f"wgmma.mma_async.sync.aligned.{tile}") == 4
    assert ptx.index(whole) < ptx.index(halves)
    assert ptx.count("wgmma.wait_group.sync.aligned 1") == 2
    assert kernel.metadata.shared <= 232448
