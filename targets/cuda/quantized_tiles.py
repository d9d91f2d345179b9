"""Tile candidates of products with weights of few bits, best first as measured on H200.

e4m3 is multiplied with rows of e4m3 where the chip has such products, but for single rows: there
the kernel is bound by bytes, and rows stay bf16. Integers become bf16 in registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from .tiles import (
    MOST_SHARED,
    PART_ROWS,
    SHARED,
    SMS,
    Block,
    LinearConfig,
    PartBlock,
    tiles_of,
)
from .weight_form import BF16, E4M3, WeightForm

FEW_ROWS = 4
"""A GEMV has a chain of sums for each row."""
UNIT_BYTES = 16
"""Of a unit of `group_gemv.py`."""
GEMV_BLOCKS = ((2, 2048, 4), (2, 1024, 2), (4, 1024, 2), (1, 4096, 4), (4, 512, 4))
"""BLOCK_N, BLOCK_K, num_warps."""
UNIT_BLOCKS = ((2, 64, 2), (4, 128, 4), (2, 128, 4), (4, 64, 2), (2, 32, 1))
"""BLOCK_N, UNITS, num_warps."""
E4M3_BLOCKS = (
    PartBlock(2, 32, (0, 64, 256), 4, 4, swap=1, pointers=True),
    PartBlock(2, 32, (0, 64, 512), 4, 3, swap=1),
    PartBlock(2, 64, (0, 64, 256), 4, 4, swap=1),
    PartBlock(33, 64, (0, 128, 256), 4, 3, swap=1),
    PartBlock(2, 64, (0, 64, 128), 4, 6, swap=1, pointers=True),
    PartBlock(33, 64, (0, 64, 128), 4, 3, swap=1, pointers=True),
    PartBlock(65, 512, (128, 64, 128), 4, 5, swap=1),
    PartBlock(65, 512, (64, 128, 128), 4, 5),
    PartBlock(65, PART_ROWS, (128, 128, 128), 8, 4),
    PartBlock(65, 0, (64, 128, 128), 4, 2, pointers=True),
)
INTEGER_BLOCKS = (
    PartBlock(2, 64, (0, 64, 128), 4, 5, swap=1),
    PartBlock(2, 64, (0, 64, 128), 4, 3, swap=1, pointers=True),
    PartBlock(65, PART_ROWS, (128, 64, 64), 4, 4, swap=1),
    PartBlock(65, 0, (64, 128, 64), 4, 3, pointers=True),
)
"""The last of each reaches over any number of rows."""
WHOLE_BLOCKS = (((128, 256, 128), 3, 8, 1), ((128, 256, 128), 4, 8, 0), ((128, 128, 128), 4, 8, 1))
"""Block, num_stages, num_warps, FLAT; for e4m3."""
PART_SPLITS = (1, 2, 4)
LEAST_STEPS = 2
"""Of a part."""


def quantized_candidates(
    m: int, n: int, k: int, gated: bool, arch: str, form: WeightForm
) -> list[LinearConfig]:
    """Ways to multiply up to m rows by a weight [n, k] (gated: [2n, k]) of that form."""
    limit = SHARED.get(arch, MOST_SHARED)
    found = _candidates(m, n, k, gated, arch, form)
    return [config for config in found if config.smem_bytes <= limit]


def _candidates(
    m: int, n: int, k: int, gated: bool, arch: str, form: WeightForm
) -> Iterator[LinearConfig]:
    if m <= FEW_ROWS:
        yield from _gemv(m, k, form)
    maps = arch not in SHARED and k % 16 == 0 and form.element != "i4"
    if m > 1:
        yield from _parts(m, n, k, gated, arch, form, maps)
    if m > PART_ROWS // 8 and maps and form.element == E4M3:
        yield from _whole(m, n, gated, arch, form)


def _gemv(m: int, k: int, form: WeightForm) -> Iterator[LinearConfig]:
    rows = 1 << (m - 1).bit_length()
    if form == WeightForm(E4M3):
        for block_n, block_k, warps in GEMV_BLOCKS:
            fit = min(block_k, max(32, 1 << (k - 1).bit_length()))
            tile = {"ROWS": rows, "BLOCK_N": block_n, "BLOCK_K": fit}
            yield LinearConfig("gemv.linear", tile, warps, 1, 1, 1024)
        return
    columns = UNIT_BYTES * (2 if form.element == "i4" else 1)
    for block_n, units, warps in UNIT_BLOCKS:
        fit = min(units, 1 << (-(-k // columns) - 1).bit_length())
        tile = {"ROWS": rows, "BLOCK_N": block_n, "UNITS": fit}
        yield LinearConfig("group_gemv.linear", tile, warps, 1, 1, 1024)


def _parts(
    m: int, n: int, k: int, gated: bool, arch: str, form: WeightForm, maps: bool
) -> Iterator[LinearConfig]:
    for way in E4M3_BLOCKS if form.element == E4M3 else INTEGER_BLOCKS:
        if not way.low <= m <= (way.high or m) or not (maps or way.pointers):
            continue
        block_m, block_n, block_k = way.block
        step = min(block_k, form.widest_step) if form.group else block_k
        block = (block_m or max(16, 1 << (m - 1).bit_length()), block_n, step)
        tiles = tiles_of(block, m, n, gated)
        for splits in PART_SPLITS:
            enough = -(-k // step) >= LEAST_STEPS * splits
            enough = enough and tiles * splits <= 4 * SMS[arch] and m <= PART_ROWS
            if splits == 1 or enough:
                yield _part(block, way, splits, m, tiles, form)


def _part(
    block: Block, way: PartBlock, splits: int, m: int, tiles: int, form: WeightForm
) -> LinearConfig:
    constants = {
        "BLOCK_M": block[0], "BLOCK_N": block[1], "BLOCK_K": block[2],
        "GROUP_M": 0 if m <= block[0] else 8, "SPLITS": splits, "SWAP": way.swap,
        "MAPS": 2 if way.pointers else 0, "AHEAD": 0,
    }  # fmt: skip
    x = E4M3 if form.element == E4M3 else BF16
    smem = _smem(block, way.num_stages, form, x)
    stages = way.num_stages
    return LinearConfig(
        "matmul_parts.linear", constants, way.num_warps, stages, splits, smem, tiles, x
    )


def _whole(m: int, n: int, gated: bool, arch: str, form: WeightForm) -> Iterator[LinearConfig]:
    for block, stages, warps, flat in WHOLE_BLOCKS:
        step = min(block[2], form.widest_step)
        fit = (block[0], block[1], step)
        constants = {
            "BLOCK_M": fit[0], "BLOCK_N": fit[1], "BLOCK_K": step, "GROUP_M": 8,
            "PROGRAMS": SMS[arch], "FLAT": flat, "MAPS": 0,
        }  # fmt: skip
        smem = _smem(fit, stages, form, E4M3)
        tiles = tiles_of(fit, m, n, gated)
        yield LinearConfig("matmul_tiles.linear", constants, warps, stages, 1, smem, tiles, E4M3)


def _smem(block: Block, stages: int, form: WeightForm, x: str) -> int:
    """The stages, and a change of layout; integers also lie there as bf16 on some chips."""
    block_m, block_n, block_k = block
    x_bytes = 1 if x == E4M3 else 2
    w_bytes = form.bytes_per_weight if form.element == "i4" else 1
    tiles = stages * (block_m * x_bytes + int(block_n * w_bytes)) * block_k
    return tiles + min(block_m * block_n * 4, 32768) + 1024
