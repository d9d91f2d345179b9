"""Candidates of products: what fits, which kernels which rows get, costs that follow the shape."""

from __future__ import annotations

import pytest
from sglk.targets.cuda.tiles import (
    MOST_SHARED,
    SHARED,
    LinearConfig,
    linear_candidates,
    linear_cost,
)

LLAMA = (4096, 4096)


def modules(m: int, arch: str = "sm_90") -> set[str]:
    return {c.kernel.split(".")[0] for c in linear_candidates(m, *LLAMA, False, arch)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("m", [1, 4, 16, 64, 256, 2048])
@pytest.mark.parametrize("gated", [False, True])
def test_every_arch_has_candidates_that_fit(arch: str, m: int, gated: bool) -> None:
    candidates = linear_candidates(m, 3072, 1024, gated, arch)
    assert candidates
    assert all(c.smem_bytes <= SHARED.get(arch, MOST_SHARED) for c in candidates)


def test_kernels_by_rows() -> None:
    assert modules(1) == {"gemv"}
    assert modules(4) == {"gemv", "matmul_parts", "split_k", "matmul_tma"}
    assert modules(64) == {"matmul_parts", "split_k", "matmul_tma"}
    assert modules(256) == {"matmul_parts", "matmul_tiles", "matmul_wide"}
    assert modules(4096) == {"matmul_tiles", "matmul_wide"}
    assert modules(256, "sm_80") == {"split_k"}
    assert modules(16, "sm_80") == {"matmul_parts", "split_k"}


def test_streams_say_what_scratch_they_need() -> None:
    every = linear_candidates(16, *LLAMA, False, "sm_90")
    streamed = [c for c in every if "STREAM" in c.constants and c.streams]
    for c in streamed:
        tile = c.constants["BLOCK_M"] * c.constants["BLOCK_N"]
        assert c.partials_bytes() == 8 * c.constants["PROGRAMS"] * tile
        assert c.locks_bytes() == 8 * c.constants["PROGRAMS"]
        assert c.grid(16, 4096, False) == c.constants["PROGRAMS"]
    assert streamed


def test_tiles_that_fill_no_round_are_split() -> None:
    def cost(config: LinearConfig) -> float:
        c = linear_cost(config, 256, 4096, 4096, False)
        return c.flops

    wide = [
        c
        for c in linear_candidates(256, *LLAMA, False, "sm_80")
        if (c.constants["BLOCK_M"], c.constants["BLOCK_N"]) == (128, 128)
    ]
    streamed, whole = sorted(wide, key=lambda c: -c.constants["STREAM"])
    assert streamed.splits > whole.splits == 1
    assert cost(streamed) < 0.6 * cost(whole)  # 64 tiles on 108 multiprocessors


def test_few_tiles_are_cut_into_few_parts() -> None:
    assert all(c.splits <= 8 for c in linear_candidates(16, 1024, 2048, False, "sm_90"))


def test_parts_are_launched_for_the_rows_there_are() -> None:
    every = linear_candidates(256, 1000, 4096, True, "sm_90")
    parts = [c for c in every if c.kernel == "matmul_parts.linear"]
    for c in parts:
        k = c.constants
        columns = -(-1000 // (k["BLOCK_N"] // 2))
        rows = -(-200 // k["BLOCK_M"]) if k["GROUP_M"] else 1
        assert c.grid(200, 1000, True) == columns * rows * k["SPLITS"]
        most = c.grid(256, 1000, True) * k["BLOCK_M"] * k["BLOCK_N"] * 4
        assert c.partials_bytes() == (most if k["SPLITS"] > 1 else 0)
    assert {c.constants["SPLITS"] for c in parts} > {1}


def test_products_without_bound_are_not_cut_into_parts() -> None:
    assert all("SPLITS" not in c.constants for c in linear_candidates(4096, 64, 64, False, "sm_90"))


def test_a_short_last_round_is_half_as_long_in_halves() -> None:
    def rounds(rows: int, rest: int) -> float:
        (config,) = (
            c
            for c in linear_candidates(rows, 14336, 4096, True, "sm_90")
            if c.kernel == "matmul_tiles.linear" and c.num_stages == 4
            and c.constants["REST"] == rest
        )  # fmt: skip
        assert config.grid(rows, 14336, True) == 132
        return linear_cost(config, rows, 14336, 4096, True).flops / (2 * 128 * 256 * 4096)

    assert (rounds(512, 0), rounds(512, 1)) == (4, 3.5)  # 448 tiles: 52 in the last round
    assert rounds(256, 0) == rounds(256, 1) == 2  # 224 tiles: 92 are too many to halve
