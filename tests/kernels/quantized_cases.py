"""Cases of products with weights of few bits; as a program, runs them and prints the faults.

``quantized_cases.py cpu`` under TRITON_INTERPRET=1 (integers only: the interpreter has no e4m3),
``quantized_cases.py cuda`` on a GPU. Weights are `GroupArray`s of random numbers, packed as the
target packs them; results are compared with the product of their exact values in f64.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from sglk.ir.groups import GroupArray, random_groups
from sglk.targets.form_parts import LAYOUTS, part_of
from sglk.targets.kernels import gemv, group_gemv, matmul_parts, matmul_tiles

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """One product: sizes, the weight's form, the kernel with the constants of its tiles."""

    kernel: Any
    m: int
    n: int
    k: int
    form: str
    tiles: dict[str, Any]
    gated: bool = False
    residual: bool = False
    norm: bool = False
    fp8: bool = False
    """Rows of x are e4m3 with a scale each."""
    num_warps: int = 4


def units(m: int, n: int, k: int, form: str, block_n: int, count: int, **more: Any) -> Case:
    rows = 1 << (m - 1).bit_length()
    tiles = {"ROWS": rows, "BLOCK_N": block_n, "UNITS": count}
    return Case(group_gemv.linear, m, n, k, form, tiles, **more)


def rows(m: int, n: int, k: int, block_n: int, block_k: int, **more: Any) -> Case:
    tiles = {"ROWS": 1 << (m - 1).bit_length(), "BLOCK_N": block_n, "BLOCK_K": block_k}
    return Case(gemv.linear, m, n, k, "e4m3_row_f32", tiles, **more)


def part(
    m: int, n: int, k: int, form: str, block: tuple[int, int, int], splits: int = 1, **more: Any
) -> Case:
    tiles = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    tiles |= {"GROUP_M": 0 if m <= block[0] else 2, "SPLITS": splits, "AHEAD": 0}
    tiles |= {"SWAP": more.pop("swap", 0), "MAPS": more.pop("maps", 2)}
    return Case(matmul_parts.linear, m, n, k, form, tiles, **more)


def whole(m: int, n: int, k: int, form: str, block: tuple[int, int, int], **more: Any) -> Case:
    tiles = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    tiles |= {"GROUP_M": 2, "PROGRAMS": 3, "FLAT": more.pop("flat", 0), "REST": 0, "MAPS": 0}
    return Case(matmul_tiles.linear, m, n, k, form, tiles, **more)


CASES = [
    units(1, 24, 96, "i4_g32_f16_z", 4, 2, norm=True),
    units(2, 9, 128, "i4_g64_f16", 2, 4, gated=True),
    units(1, 16, 160, "i8_row_f32", 4, 4, residual=True),
    units(3, 10, 64, "i8_g32_f16_z", 2, 2, residual=True),
    part(20, 72, 160, "i4_g32_f16_z", (16, 32, 32), residual=True),
    part(5, 40, 256, "i4_row_f32", (16, 32, 64), 2, swap=1),
    part(40, 48, 192, "i8_g64_f16", (32, 32, 64), gated=True),
    part(7, 64, 160, "i8_row_f32_z", (16, 32, 64), swap=1),
    whole(70, 40, 128, "i8_g64_f16", (64, 32, 64), residual=True),
]
GPU_CASES = [
    units(1, 4096, 4096, "i4_g128_f16_z", 4, 64, residual=True),
    units(4, 1000, 1120, "i8_g32_f16", 2, 32, gated=True),
    units(1, 1536, 1024, "e4m3_g128_f32", 4, 32, norm=True, gated=True),
    units(2, 100, 576, "i8_row_bf16", 2, 16),
    rows(1, 4096, 4096, 2, 1024, residual=True),
    rows(2, 333, 1120, 4, 512, norm=True, gated=True),
    part(16, 1024, 3072, "i4_g128_f16_z", (16, 64, 128), 4, swap=1, residual=True),
    part(33, 1000, 1120, "i4_g32_f16", (64, 64, 32), gated=True, swap=1),
    part(16, 1024, 3072, "i8_g128_f16", (16, 64, 128), 4, swap=1, maps=0),
    part(130, 1000, 1120, "i8_row_f32", (128, 64, 64), swap=1, maps=0, gated=True),
    part(16, 4096, 4096, "e4m3_row_f32", (16, 64, 256), 2, swap=1, fp8=True, residual=True),
    part(64, 1000, 1120, "e4m3_row_f32", (64, 64, 256), swap=1, maps=0, fp8=True, gated=True),
    part(9, 520, 1024, "e4m3_g128_f32", (16, 64, 128), 2, swap=1, maps=0, fp8=True),
    part(70, 520, 1024, "e4m3_g64_f32", (64, 128, 64), maps=2, fp8=True, gated=True),
    part(256, 1024, 4096, "e4m3_row_f32", (128, 128, 128), maps=0, fp8=True, num_warps=8),
    whole(300, 1000, 1024, "e4m3_row_f32", (128, 256, 128), fp8=True, num_warps=8, flat=1),
    whole(512, 768, 1120, "e4m3_row_f32", (128, 128, 128), fp8=True, residual=True, num_warps=8),
    whole(257, 512, 1024, "e4m3_g128_f32", (128, 128, 128), fp8=True, gated=True, num_warps=8),
]
EPS = 1e-5
SMALL = {"i4": 1 / 16, "i8": 1 / 256, "e4m3": 1 / 512}
"""What rows are multiplied by, so that results are near 1."""


def weight(case: Case, seed: int) -> GroupArray:
    shape = (case.n * (2 if case.gated else 1), case.k)
    return random_groups(case.form, shape, np.random.default_rng(seed))


def as_tensor(array: np.ndarray, form: str, layout: str, device: str) -> Tensor:
    plain = np.int16 if array.itemsize == 2 else array.dtype
    made = torch.tensor(np.ascontiguousarray(array).view(plain))
    if array.dtype == np.float16:
        made = made.view(torch.float16)
    elif array.itemsize == 2:
        made = made.view(torch.bfloat16)
    elif layout == "q" and form.startswith("e4m3"):
        made = made.view(torch.float8_e4m3fn)
    return made.to(device)


def inputs(case: Case, array: GroupArray, device: str, seed: int) -> dict[str, Any]:
    """Random arguments; y and the partial sums are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    # the interpreter multiplies bf16 as if it were integers: there tiles are products of f16
    exact = device == "cpu" and case.kernel not in (gemv.linear, group_gemv.linear)
    dtype = torch.float16 if exact else torch.bfloat16

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    given: dict[str, Any] = {
        "x": (normal(case.m, case.k) * SMALL[array.form.element]).to(dtype),
        "bias": None,
        "residual": normal(case.m, case.n).to(dtype) if case.residual else None,
        "y": torch.full((case.m, case.n), float("nan"), dtype=torch.bfloat16, device=device),
        "rows": case.m,
    }
    for name, layout in zip(("w", "w_scale", "w_zero"), LAYOUTS, strict=True):
        has = layout != "zero" or array.zero is not None
        part = part_of("w", array, layout) if has else None
        given[name] = None if part is None else as_tensor(part, case.form, layout, device)
    if case.kernel in (gemv.linear, group_gemv.linear):
        given |= {"norm": normal(case.k).to(dtype) if case.norm else None, "eps": EPS}
        if case.kernel is gemv.linear:
            given["scale"] = given.pop("w_scale")
            del given["w_zero"]
        return given
    given["x_scale"] = None
    if case.fp8:
        given["x"] = (normal(case.m, case.k) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        scale = (torch.rand(case.m, generator=generator) + 0.5) / 100 * SMALL["e4m3"]
        given["x_scale"] = scale.to(device)
    if case.kernel is matmul_parts.linear:
        size = grid(case) * case.tiles["BLOCK_M"] * case.tiles["BLOCK_N"]
        given["partials"] = torch.full((size,), float("nan"), device=device)
        given["locks"] = torch.zeros(grid(case), dtype=torch.int32, device=device)
    return given


def reference(case: Case, array: GroupArray, given: dict[str, Any]) -> Tensor:
    """The product of exact weights and its epilogue in f64."""
    x: Tensor = given["x"].double().cpu()
    if case.fp8:
        x = x * given["x_scale"].double().cpu()[:, None]
    if case.norm:
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * given["norm"].double().cpu()
    product = x @ torch.tensor(array.dequantize()).double().T
    y = product
    if case.gated:
        y = torch.nn.functional.silu(product[:, : case.n]) * product[:, case.n :]
    if case.residual:
        y = y + given["residual"].double().cpu()
    return y


def grid(case: Case) -> int:
    """Programs of a launch."""
    tiles = case.tiles
    if "PROGRAMS" in tiles:
        return int(tiles["PROGRAMS"])
    if "ROWS" in tiles:
        return -(-case.n // int(tiles["BLOCK_N"]))
    outputs = tiles["BLOCK_N"] // (2 if case.gated else 1)
    return int(-(-case.m // tiles["BLOCK_M"]) * -(-case.n // outputs) * tiles["SPLITS"])


def launch(case: Case, array: GroupArray, given: dict[str, Any]) -> None:
    form = array.form
    constants: dict[str, Any] = {"K": case.k, "N": case.n, "GATED": int(case.gated), "PDL": 0}
    constants |= {"ACT": "silu" if case.gated else "none", **case.tiles}
    if case.kernel is not gemv.linear:
        kind = form.element if not form.is_float else "same" if case.fp8 else "wide"
        constants |= {"FORM": kind, "GROUP": form.group or 0}
    if case.kernel in (gemv.linear, group_gemv.linear):
        constants["OFFSET"] = 0.0
    case.kernel[(grid(case),)](**given, **constants, num_warps=case.num_warps, num_stages=3)


def check(case: Case, device: str, seed: int) -> str:
    """Runs a case twice in the same buffers; "" or what is wrong."""
    array = weight(case, seed)
    given = inputs(case, array, device, seed)
    expected = reference(case, array, given)
    launch(case, array, given)
    first = given["y"].clone()
    error = ((first.double().cpu() - expected).norm() / expected.norm()).item()
    if not error < 4e-3:
        return f"relative error {error:.2e}, expected under 4e-3"
    given["y"].fill_(float("nan"))
    launch(case, array, given)
    if not torch.equal(given["y"], first):
        return "a second run gave other bits"
    return "locks were left set" if "locks" in given and given["locks"].any() else ""


def check_all(device: str, share: int = 0, shares: int = 1) -> list[str]:
    """Every case that fits the device, or one of so many shares of them; the faults."""
    cases = CASES if device == "cpu" else CASES + GPU_CASES
    if device != "cpu":  # memory for tensor maps that a kernel makes
        triton.set_allocator(lambda size, _, __: torch.empty(size, dtype=torch.int8, device=device))
    chosen = list(enumerate(cases))[share::shares]
    found = ((case, check(case, device, seed)) for seed, case in chosen)
    return [f"{case}: {fault}" for case, fault in found if fault]


if __name__ == "__main__":
    print(*check_all(sys.argv[1]), sep="\n")
