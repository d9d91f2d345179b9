"""Cases of the matrix products for CUDA; as a program, runs them on a device and prints the faults.

``matmul_cases.py cpu`` under TRITON_INTERPRET=1 (the interpreter multiplies bf16 as if it were
integers, so there tiles are products of f16); on a GPU `check_all("cuda")`. Outputs are
poisoned, results compared with f64, a second run with the first, locks with zero.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from sglk.targets.kernels import (
    gemv,
    matmul_parts,
    matmul_tiles,
    matmul_tma,
    matmul_wide,
    split_k,
)

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """One product: sizes, epilogue, and the constants of the kernel's tiles."""

    kernel: Any
    m: int
    n: int
    k: int
    tiles: dict[str, Any]
    act: str = "none"
    gated: bool = False
    bias: bool = False
    residual: bool = False
    norm: float | None = None
    out: torch.dtype = torch.bfloat16
    options: dict[str, int] = field(default_factory=dict)


def gemv_case(m: int, n: int, k: int, block_n: int, block_k: int, **more: Any) -> Case:
    rows = 1 << (m - 1).bit_length()
    tiles = {"ROWS": rows, "BLOCK_N": block_n, "BLOCK_K": block_k}
    return Case(gemv.linear, m, n, k, tiles, **more)


def tile_case(
    kernel: Any, m: int, n: int, k: int, block: tuple[int, int, int], programs: int, **more: Any
) -> Case:
    tiles = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    tiles["PROGRAMS"] = programs
    tiles["GROUP_M"] = 0 if m <= block[0] else 2
    tiles["STREAM"] = int(more.pop("stream", 1))
    tiles["SWAP"] = int(more.pop("swap", 0))
    if kernel is matmul_tma.linear:
        tiles["MAPS"] = 0
    return Case(kernel, m, n, k, tiles, **more)


def part_case(
    m: int, n: int, k: int, block: tuple[int, int, int], splits: int, **more: Any
) -> Case:
    tiles = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    tiles |= {"GROUP_M": 0 if m <= block[0] else 2, "SPLITS": splits}
    tiles |= {name.upper(): more.pop(name, 0) for name in ("swap", "maps", "ahead")}
    return Case(matmul_parts.linear, m, n, k, tiles, **more)


def whole_case(
    m: int, n: int, k: int, block: tuple[int, int, int], programs: int, **more: Any
) -> Case:
    tiles = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    tiles |= {"GROUP_M": 2, "PROGRAMS": programs, "FLAT": more.pop("flat", 0), "MAPS": 0}
    tiles["REST"] = more.pop("rest", 0)
    return Case(matmul_tiles.linear, m, n, k, tiles, **more)


def wide_case(
    m: int, n: int, k: int, block: tuple[int, int, int], extra: int, programs: int, **more: Any
) -> Case:
    tiles = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    tiles |= {"GROUP_M": 0 if m <= block[0] else 2, "EXTRA": extra}
    tiles["PROGRAMS"] = programs
    return Case(matmul_wide.linear, m, n, k, tiles, **more)


SPLIT, TMA = split_k.linear, matmul_tma.linear
GATED: dict[str, Any] = {"gated": True, "act": "silu"}
CASES = [
    gemv_case(1, 33, 96, 4, 32),
    gemv_case(1, 64, 80, 4, 32, act="gelu_tanh", bias=True, residual=True),
    gemv_case(1, 24, 64, 2, 64, norm=0.0, residual=True),
    gemv_case(3, 17, 72, 4, 32, norm=1.0, **GATED),
    gemv_case(4, 16, 256, 1, 128, out=torch.float32),
    tile_case(SPLIT, 5, 96, 160, (16, 32, 32), 7, bias=True, act="relu"),
    tile_case(SPLIT, 16, 64, 512, (16, 64, 64), 11, swap=1, residual=True),
    tile_case(SPLIT, 64, 40, 96, (64, 64, 32), 4, swap=1, **GATED),
    tile_case(SPLIT, 70, 72, 88, (32, 32, 32), 4, residual=True, bias=True),
    tile_case(SPLIT, 40, 96, 64, (16, 32, 32), 4, stream=0, out=torch.float32),
    tile_case(SPLIT, 4, 32, 32, (16, 32, 32), 9),
    tile_case(TMA, 70, 136, 200, (64, 64, 64), 5, bias=True, residual=True, act="silu"),
    tile_case(TMA, 130, 96, 128, (64, 64, 64), 4, **GATED),
    tile_case(TMA, 66, 512, 128, (64, 256, 64), 5, out=torch.float32),
    tile_case(TMA, 70, 384, 64, (64, 256, 64), 4, stream=0, out=torch.float32),
    tile_case(TMA, 20, 128, 256, (32, 64, 64), 3, swap=1, residual=True),
    tile_case(TMA, 256, 128, 64, (64, 64, 64), 3, stream=0, residual=True),
    part_case(20, 72, 160, (16, 32, 32), 1, maps=2, bias=True, act="relu"),
    part_case(5, 96, 512, (16, 64, 64), 4, maps=2, swap=1, residual=True),
    part_case(40, 96, 192, (64, 64, 32), 3, maps=2, **GATED),
    part_case(5, 72, 512, (16, 64, 64), 4, maps=2, swap=1, ahead=1, residual=True),
    part_case(20, 72, 160, (16, 32, 32), 1, maps=2, ahead=1, bias=True, **GATED),
    part_case(70, 136, 200, (64, 64, 64), 2, bias=True, residual=True),
    part_case(30, 128, 256, (32, 64, 64), 1, swap=1, out=torch.float32),
    part_case(130, 96, 128, (64, 64, 64), 1, **GATED),
    whole_case(130, 96, 128, (64, 64, 64), 4, bias=True, residual=True),
    whole_case(70, 136, 200, (64, 64, 64), 3, residual=True, act="relu"),
    whole_case(70, 96, 128, (64, 64, 64), 2, **GATED),
    whole_case(130, 120, 128, (64, 64, 64), 4, rest=1, bias=True, residual=True, act="relu"),
    whole_case(70, 72, 128, (64, 64, 64), 4, rest=1, **GATED),
    whole_case(70, 136, 64, (64, 64, 64), 4, rest=1, residual=True),
    wide_case(70, 192, 200, (64, 64, 64), 32, 4, bias=True, residual=True, act="relu"),
    wide_case(130, 136, 96, (64, 32, 32), 16, 0, out=torch.float32),
    wide_case(70, 136, 128, (64, 64, 64), 32, 3, bias=True, **GATED),
]

BIG = {"num_warps": 8, "num_stages": 3}
DEEPER = {"num_warps": 8, "num_stages": 4}
DEEP = {"num_warps": 8, "num_stages": 6}
SMALL = {"num_warps": 4, "num_stages": 3}
FEW: dict[str, Any] = {"swap": 1, "maps": 2, "ahead": 1, "options": SMALL}
GPU_CASES = [
    gemv_case(1, 4096, 4096, 4, 1024, residual=True),
    gemv_case(4, 1536, 1024, 2, 512, norm=0.0, **GATED),
    gemv_case(2, 151, 3072, 4, 512, bias=True),
    tile_case(SPLIT, 16, 4096, 4096, (16, 64, 128), 264, swap=1, residual=True),
    tile_case(SPLIT, 33, 1000, 1048, (64, 64, 128), 132, swap=1, bias=True),
    tile_case(SPLIT, 300, 520, 1024, (128, 128, 64), 132, options=BIG, **GATED),
    tile_case(TMA, 8, 14336, 1024, (16, 128, 128), 132, swap=1, **GATED),
    tile_case(TMA, 256, 4096, 4096, (128, 128, 64), 132, options=BIG, residual=True),
    tile_case(TMA, 257, 1000, 1048, (128, 256, 64), 132, options=BIG, bias=True),
    tile_case(TMA, 512, 3072, 1024, (128, 256, 64), 132, options=BIG, **GATED),
    tile_case(TMA, 2048, 6144, 512, (128, 256, 64), 132, options=BIG, stream=0),
    part_case(16, 1024, 3072, (16, 64, 256), 4, swap=1, maps=2, options=SMALL, residual=True),
    part_case(9, 1000, 1048, (16, 64, 256), 1, swap=1, maps=2, options=SMALL, **GATED),
    part_case(8, 4096, 3072, (16, 64, 256), 2, **FEW, residual=True),
    part_case(8, 3000, 1048, (16, 64, 128), 1, **FEW, **GATED),
    part_case(250, 4096, 4096, (128, 128, 64), 2, options=DEEP, residual=True),
    part_case(256, 4096, 4096, (64, 128, 128), 1, options=SMALL, residual=True),
    part_case(300, 1000, 1048, (128, 128, 64), 1, options=DEEP, bias=True, **GATED),
    whole_case(2048, 6144, 512, (128, 256, 64), 132, options=BIG, flat=1),
    whole_case(257, 1000, 1048, (128, 256, 64), 132, options=BIG, residual=True),
    whole_case(257, 1000, 1048, (128, 256, 64), 3, options=BIG, residual=True, act="silu"),
    whole_case(512, 3072, 1024, (128, 256, 64), 132, options=BIG, flat=1, bias=True, **GATED),
    whole_case(300, 1000, 1024, (128, 256, 64), 5, options=BIG, flat=1, out=torch.float32),
    whole_case(512, 14336, 512, (128, 256, 64), 132, options=DEEPER, rest=1, **GATED),
    whole_case(300, 1000, 1048, (128, 256, 64), 11, options=DEEPER, rest=1, bias=True, **GATED),
    whole_case(300, 1000, 1024, (128, 256, 64), 5, options=DEEPER, rest=1, residual=True),
    wide_case(512, 6144, 1024, (128, 128, 64), 64, 132, options={"num_warps": 4, "num_stages": 4}),
    wide_case(500, 3000, 512, (128, 128, 64), 64, 132, options=SMALL, **GATED),
    wide_case(250, 1000, 1048, (64, 128, 64), 64, 0, options=SMALL, residual=True, bias=True),
]


def inputs(case: Case, device: str, seed: int) -> dict[str, Any]:
    """Random arguments; y and the partial sums are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16
    if device == "cpu" and case.kernel is not gemv.linear:
        dtype = torch.float16

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    w_rows = case.n * (2 if case.gated else 1)
    given: dict[str, Any] = {
        "x": normal(case.m, case.k),
        "w": normal(w_rows, case.k),
        "bias": normal(w_rows) if case.bias else None,
        "residual": normal(case.m, case.n) if case.residual else None,
        "y": torch.full((case.m, case.n), float("nan"), dtype=case.out, device=device),
        "rows": case.m,
    }
    if case.kernel is gemv.linear:
        norm = None if case.norm is None else normal(case.k)
        return given | {"norm": norm, "scale": None, "eps": 1e-5}
    if case.kernel in (matmul_parts.linear, matmul_tiles.linear):
        given |= {"x_scale": None, "w_scale": None, "w_zero": None}
    if case.kernel in (matmul_tiles.linear, matmul_wide.linear):
        return given
    programs, block = grid(case), case.tiles["BLOCK_M"] * case.tiles["BLOCK_N"]
    partials = torch.full((2 * programs * block,), float("nan"), device=device)
    locks = torch.zeros(2 * programs, dtype=torch.int32, device=device)
    return given | {"partials": partials, "locks": locks}


def activation(name: str, x: Tensor) -> Tensor:
    functions: dict[str, Any] = {
        "none": lambda v: v,
        "relu": torch.relu,
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    }
    y: Tensor = functions[name](x)
    return y


def reference(case: Case, given: dict[str, Any]) -> Tensor:
    """The product and its epilogue in f64."""
    x: Tensor = given["x"].double()
    w: Tensor = given["w"].double()
    if case.norm is not None:
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        x = x * (given["norm"].double() + case.norm)
    product = x @ w.T
    if case.bias:
        product = product + given["bias"].double()
    if case.gated:
        y = activation(case.act, product[:, : case.n]) * product[:, case.n :]
    else:
        y = activation(case.act, product)
    if case.residual:
        y = y + given["residual"].double()
    return y


def grid(case: Case) -> int:
    """Programs of a launch."""
    tiles = case.tiles
    if tiles.get("PROGRAMS"):
        return int(tiles["PROGRAMS"])
    if case.kernel is gemv.linear:
        return -(-case.n // int(tiles["BLOCK_N"]))
    tall = -(-case.m // tiles["BLOCK_M"])
    return int(tall * -(-case.n // outputs_of(case)) * tiles.get("SPLITS", 1))


def outputs_of(case: Case) -> int:
    """Outputs of a tile."""
    columns = int(case.tiles["BLOCK_N"]) + int(case.tiles.get("EXTRA", 0))
    return columns // (2 if case.gated else 1)


def launch(case: Case, given: dict[str, Any]) -> None:
    constants = {"K": case.k, "N": case.n, "ACT": case.act, "GATED": int(case.gated), "PDL": 0}
    if case.kernel is gemv.linear:
        constants["OFFSET"] = case.norm or 0.0
    if "w_zero" in given:
        constants |= {"FORM": "same", "GROUP": 0}
    constants |= case.tiles
    case.kernel[(grid(case),)](**given, **constants, **case.options)


def check(case: Case, device: str, seed: int = 0) -> str:
    """Runs a case twice in the same buffers; "" or what is wrong."""
    given = inputs(case, device, seed)
    expected = reference(case, given)
    launch(case, given)
    first = given["y"].clone()
    error = ((first.double() - expected).norm() / expected.norm()).item()
    bound = 4e-3 if case.out is torch.bfloat16 else 1e-5
    if not error < bound:
        return f"relative error {error:.2e}, expected under {bound}"
    given["y"].fill_(float("nan"))
    launch(case, given)
    if not torch.equal(given["y"], first):
        return "a second run gave other bits"
    if "locks" in given and given["locks"].any():
        return "locks were left set"
    return ""


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
