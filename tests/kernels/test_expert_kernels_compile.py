"""What the compiler makes of the products with experts for CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from sglk.targets.kernels import grouped_linear, route_experts
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = {"ids": "*i32", "order": "*i32", "tiles": "*i32", "weights": "*fp32", "logits": "*fp32"}
SIZES = {"K": 2048, "N": 768, "TOP_K": 8}
GATED = {**SIZES, "ACT": "silu", "GATED": 1, "FROM": 0}

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


def compiled(fn: Any, arch: int, constants: dict[str, Any], **options: Any) -> Any:
    numbers = dict.fromkeys(("pairs", "most_tiles"), "i32")
    types = {name: (POINTERS | numbers).get(name, "*bf16") for name in fn.arg_names}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = [i for i, name in enumerate(fn.arg_names) if types[name].startswith("*")]
    attrs = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn, signature=types, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


@pytest.mark.parametrize(("arch", "product"), [(90, "wgmma.mma_async"), (80, "mma.sync")])
def test_tiles_multiply_on_matrix_units_with_loads_in_flight(arch: int, product: str) -> None:
    tile = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "SWAP": 1, "PDL": arch >= 90}
    constants = {**GATED, **tile, "BY_PLACE": 1}
    kernel = compiled(grouped_linear.linear, arch, constants, num_warps=4, num_stages=4)
    ptx = kernel.asm["ptx"]
    assert product in ptx and ptx.count("cp.async.cg.shared.global") >= 16
    assert kernel.metadata.shared <= 101376


def test_few_pairs_read_weights_in_wide_loads() -> None:
    blocks = {"BLOCK_N": 1, "BLOCK_K": 1024, "PDL": 1}
    kernel = compiled(grouped_linear.few, 90, {**GATED, **blocks}, num_warps=2)
    assert kernel.asm["ptx"].count("v4.b32") >= 8


@pytest.mark.parametrize("arch", [80, 90])
def test_small_kernels_compile(arch: int) -> None:
    pdl = {"PDL": arch >= 90}
    experts = {"EXPERTS": 128, "TOP_K": 8, "RENORMALIZE": True, "BLOCK_E": 128, "BLOCK_J": 8}
    compiled(route_experts.route, arch, experts | pdl, num_warps=1)
    sort = {"EXPERTS": 128, "BLOCK_E": 256, "BLOCK_M": 16, "CHUNK": 512}
    compiled(route_experts.sort_pairs, arch, sort | pdl)
    few: dict[str, int | None] = {
        "K": 768,
        "N": 2048,
        "TOP_K": 8,
        "BLOCK_J": 8,
        "BLOCK_N": 4,
        "BLOCK_K": 256,
    }
    few |= {"residual": None}
    compiled(grouped_linear.few_combined, arch, few | pdl)
    compiled(grouped_linear.combine, arch, {"N": 2048, "TOP_K": 8, "BLOCK": 1024} | pdl)
