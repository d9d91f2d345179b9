"""Tiles by counterfactuals: change one fact of the chip, and the choice moves as stated."""

from __future__ import annotations

from typing import Any

import pytest
from sglk.errors import PassError
from sglk.targets.kunlun.capabilities import Chip, chip
from sglk.targets.kunlun.tiling import (
    Attention,
    Gemm,
    align,
    choose_attention,
    choose_gemm,
    choose_row_block,
    dot_bytes,
    gemm_tiles,
    k_steps,
    uni_sram_need,
)

P800 = chip("xpu3")
PREFILL = Gemm(4096, 4096, 4096, "f16")
ATTENTION = Attention(512, 2048, 32, 128, "f16")


def changed(**facts: Any) -> Chip:
    return chip("xpu3", facts)


@pytest.mark.parametrize(
    ("m", "n", "half", "full"),
    [
        (64, 128, 2048, 1024),
        (128, 128, 1024, 512),
        (160, 128, 1024, 512),
        (256, 256, 512, 256),
        (320, 256, 512, 256),
        (320, 448, 256, 128),
    ],
)
def test_the_uni_sram_formula_admits_what_the_vendors_autotuner_does(
    m: int, n: int, half: int, full: int
) -> None:
    """K halved from 4096 until the published formula (operands as they are) admits it."""
    for dtype, want in (("f16", half), ("f32", full), ("bf16", full)):
        k, b = 4096, dot_bytes(dtype)

        def fits(k: int, b: int = b) -> bool:
            operands = align(k * b, 128) * m + align(n * b, 128) * k
            return operands <= (P800.uni_sram_bytes - align(n * b, 128) * m) / 2

        while not fits(k):
            k //= 2
        assert k == want
        assert uni_sram_need(P800, m, n, k, dtype) <= P800.uni_sram_bytes
        assert uni_sram_need(P800, m, n, 2 * k, dtype) > P800.uni_sram_bytes


def test_candidates_are_granules_and_published_lists() -> None:
    pairs = {(m, n) for m, n, _ in gemm_tiles(P800, 4096, 4096)}
    assert {(80 * i, 64 * j) for i in range(1, 5) for j in range(1, 8)} <= pairs
    assert {(64, 128), (128, 256), (256, 256)} <= pairs
    assert all(k % 128 == 0 for _, _, k in gemm_tiles(P800, 4096, 4096))
    assert {k for _, _, k in gemm_tiles(P800, 576, 576)} == {32, 64}, (
        "no multiple of 128 divides 576"
    )


def test_the_default_is_a_fitting_tile_with_reasons() -> None:
    choice = choose_gemm(P800, PREFILL, 256)
    assert choice.tile == {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 256}
    assert choice.on_chip_bytes <= choice.on_chip_limit == P800.uni_sram_bytes
    assert choice.on_chip_name == "uni_sram"
    assert (choice.programs, choice.per_unit) == (256, 22)
    assert "next BLOCK_M=" in choice.runner_up
    assert any("is no power of two (tiles_of_any_size is off)" in r for r in choice.refused)
    assert any("bytes of uni_sram" in r for r in choice.refused)


def test_less_uni_sram_makes_the_tile_smaller() -> None:
    less = choose_gemm(changed(uni_sram_bytes=500_000), PREFILL, 256)
    assert less.tile == {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128}
    least = choose_gemm(changed(uni_sram_bytes=250_000), PREFILL, 256)
    assert least.tile["BLOCK_M"] * least.tile["BLOCK_N"] < 256 * 256
    with pytest.raises(PassError, match="no tile fits"):
        choose_gemm(changed(uni_sram_bytes=10_000), PREFILL, 256)


def test_four_byte_elements_halve_the_depth() -> None:
    """bf16 is widened: four bytes in the budget, and the rate of f32."""
    assert choose_gemm(P800, PREFILL, 256).tile["BLOCK_K"] == 256
    wide = choose_gemm(P800, Gemm(4096, 4096, 4096, "bf16"), 256)
    assert wide.tile["BLOCK_K"] == 128
    assert wide.on_chip_bytes == choose_gemm(P800, Gemm(4096, 4096, 4096, "f32"), 256).on_chip_bytes


def test_less_bandwidth_makes_it_memory_bound_and_more_makes_it_compute_bound() -> None:
    assert choose_gemm(changed(hbm_bytes_per_second=1e11), PREFILL, 256).bound == "memory"
    assert choose_gemm(changed(hbm_bytes_per_second=1e14), PREFILL, 256).bound == "compute"


def test_granules_of_80_rows_win_where_tiles_may_have_any_size() -> None:
    """A tile of 64 rows fills four fifths of a granule of 80."""
    any_size = changed(tiles_of_any_size=True)
    assert choose_gemm(any_size, PREFILL, 320).tile["BLOCK_M"] % 80 == 0
    fine = changed(tiles_of_any_size=True, granule_m=64)
    assert choose_gemm(fine, PREFILL, 320).tile["BLOCK_M"] % 64 == 0


def test_fewer_engines_run_more_programs_each_and_prefer_none_idle() -> None:
    problem = Gemm(16, 4096, 1536, "f16")
    wide = choose_gemm(P800, problem, 64)
    narrow = choose_gemm(changed(sdnn_engines=3), problem, 64)
    assert wide.programs == 12, "one program for each engine"
    assert wide.tile["BLOCK_N"] == 128
    assert narrow.tile["BLOCK_N"] == 256
    assert narrow.per_unit == 2


def test_few_rows_take_a_tile_of_few_rows() -> None:
    assert choose_gemm(P800, Gemm(1, 4096, 4096, "f16"), 64).tile["BLOCK_M"] == 16
    refused = choose_gemm(P800, Gemm(1, 4096, 4096, "f16"), 64).refused
    assert any("more than the 64 rows" in r for r in refused)


def test_prefill_attention_is_64x128_by_default() -> None:
    choice = choose_attention(P800, ATTENTION, 128)
    assert choice.tile == {"BLOCK_M": 64, "BLOCK_N": 128}
    narrow = choose_attention(P800, Attention(512, 2048, 9, 64, "f16"), 128)
    assert narrow.tile == {"BLOCK_M": 64, "BLOCK_N": 64}, "BLOCK_N is at most head_dim"


def test_attention_leaves_its_default_where_that_does_not_fit() -> None:
    small = choose_attention(changed(uni_sram_bytes=150_000), ATTENTION, 128)
    assert small.tile != {"BLOCK_M": 64, "BLOCK_N": 128}
    assert "BLOCK_M=64 BLOCK_N=128 needs 212992 of 150000 bytes of uni_sram" in small.refused
    wider = choose_attention(changed(attention_tile=(128, 128)), ATTENTION, 128)
    assert wider.tile == {"BLOCK_M": 128, "BLOCK_N": 128}


def test_blocks_of_rows_divide_the_row_and_fit_local_memory() -> None:
    assert choose_row_block(P800, 4096, 512).tile == {"BLOCK": 4096}
    uneven = choose_row_block(P800, 576, 512)
    assert uneven.tile == {"BLOCK": 64}
    assert "BLOCK=512 does not divide a row of 576" in uneven.refused
    tight = choose_row_block(changed(lm_user_bytes=512), 4096, 512)
    assert tight.tile == {"BLOCK": 2048}
    assert "BLOCK=4096 needs 768 bytes of LM in 3 tiles" in tight.refused
    short = choose_row_block(changed(lm_buffer_bytes=64), 4096, 512)
    assert short.tile == {"BLOCK": 1024}


@pytest.mark.parametrize(("k", "step"), [(4096, 128), (96, 32), (48, 16), (16, 16)])
def test_the_step_divides_the_depth(k: int, step: int) -> None:
    assert k_steps(P800, k)[0] == step
    choose_gemm(P800, Gemm(64, k, 128, "f16"), 64)
