"""Tile choice by counterfactuals: change one fact of the chip, and the choice moves."""

from __future__ import annotations

import dataclasses

import pytest
from sglk.errors import PassError
from sglk.ir.dtype import F32
from sglk.ir.target import MemoryLevel, Target, Unit
from sglk.passes.choose_tiles import Tile, TileCost, choose_tile

CHIP = Target(
    name="chip",
    arch="a",
    dtypes=frozenset({F32}),
    units=(Unit("vector", {"f32": 1e12}),),
    memory=(MemoryLevel("SRAM", 64 << 10, 1e13), MemoryLevel("DRAM", 0, 1e10)),
    programs=4,
    lanes=16,
    page_size=32,
    token_buckets=(),
)


def product(m: int, n: int, k: int) -> list[tuple[Tile, TileCost]]:
    """Candidates of a product: bigger tiles read less and need more room."""
    tiles = [(64, 64), (64, 128), (128, 128), (256, 256)]
    return [
        (
            {"BLOCK_M": a, "BLOCK_N": b},
            TileCost(
                programs=-(-m // a) * -(-n // b),
                flops=2.0 * a * b * k,
                bytes=4.0 * (a + b) * k,
                on_chip_bytes=4 * (a * b) // 2,
            ),
        )
        for a, b in tiles
    ]


def test_what_does_not_fit_is_refused_with_its_size() -> None:
    choice = choose_tile(CHIP, "vector", "f32", product(1024, 1024, 512))
    assert choice.refused == ("BLOCK_M=256 BLOCK_N=256 needs 131072 of 65536 bytes of SRAM",)
    assert choice.tile == {"BLOCK_M": 128, "BLOCK_N": 128}
    assert choice.bound == "memory"
    assert "32768 of 65536 bytes on chip; next BLOCK_M=64 BLOCK_N=128" in choice.reason()


def test_more_room_moves_the_choice_to_the_bigger_tile() -> None:
    roomy = dataclasses.replace(CHIP, memory=(MemoryLevel("SRAM", 1 << 20, 1e13), CHIP.memory[1]))
    choice = choose_tile(roomy, "vector", "f32", product(1024, 1024, 512))
    assert choice.tile == {"BLOCK_M": 256, "BLOCK_N": 256}


FAST = dataclasses.replace(CHIP, memory=(CHIP.memory[0], MemoryLevel("DRAM", 0, 1e13)))


def test_more_bandwidth_makes_it_compute_bound() -> None:
    assert choose_tile(FAST, "vector", "f32", product(1024, 1024, 512)).bound == "compute"


def test_a_small_problem_takes_the_tile_that_fills_the_chip() -> None:
    choice = choose_tile(FAST, "vector", "f32", product(128, 128, 512))
    assert choice.tile == {"BLOCK_M": 64, "BLOCK_N": 64}


def test_nothing_fits_is_an_error_that_lists_all() -> None:
    tiny = dataclasses.replace(CHIP, memory=(MemoryLevel("SRAM", 16, 1e13), CHIP.memory[1]))
    with pytest.raises(PassError, match=r"chip:a: no tile fits: BLOCK_M=64 BLOCK_N=64 needs 8192"):
        choose_tile(tiny, "vector", "f32", product(64, 64, 64))


def test_a_rate_that_is_not_stated_is_refused() -> None:
    with pytest.raises(PassError, match="unit 'tensor' has no stated rate for bf16"):
        choose_tile(CHIP, "tensor", "bf16", product(64, 64, 64))
