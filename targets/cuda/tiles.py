"""Tile candidates of matrix products on CUDA, as data, and what each costs.

Candidates of a range of rows are listed best first as measured on H200: ties of the cost model go
to the first listed, and a tuning file overrides both. Sizes follow the kernels' docstrings:
``kernels/gemv.py``, ``matmul_parts.py``, ``matmul_tiles.py``, ``matmul_wide.py``,
``split_k.py``, ``matmul_tma.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...ir.dim import Dim, cdiv
from ...passes.choose_tiles import TileCost

SMS = {"sm_80": 108, "sm_86": 84, "sm_89": 142, "sm_90": 132, "sm_100": 148, "sm_120": 170}
"""Multiprocessors of the usual chip of an arch: how many programs a persistent launch has."""
SHARED = {"sm_80": 166912, "sm_86": 101376, "sm_89": 101376, "sm_120": 101376}
"""Bytes of shared memory that one program may use, where it is less than MOST_SHARED."""
MOST_SHARED = 232448
E4M3_SPEED = 1.9
"""Products of e4m3 in the time of one of bf16, in tensor cores that have both."""
GEMV_ROWS = 4
SKINNY_ROWS = 64

Block = tuple[int, int, int]
"""BLOCK_M, BLOCK_N, BLOCK_K."""


@dataclass(frozen=True)
class LinearConfig:
    """One way to compute a product: a kernel of ``targets/kernels`` and its tile constants."""

    kernel: str
    """``module.function``"""
    constants: dict[str, int]
    num_warps: int
    num_stages: int
    splits: int
    """Programs that share one tile's sum over K, on average; 1: none."""
    smem_bytes: int
    tiles: int = 1
    """Tiles of the largest product that the config is for; parts of them need scratch."""
    x: str = "bf16"
    """What rows are multiplied as: ``bf16``, or ``e4m3`` with a scale for each row."""

    @property
    def starts_early(self) -> bool:
        """Whether its programs may start while the kernel before them ends."""
        return self.constants.get("PDL", 1) == 1

    @property
    def streams(self) -> bool:
        """Whether the kernel needs partials and locks."""
        return self.constants.get("STREAM", 0) == 1 or self.constants.get("SPLITS", 1) > 1

    @property
    def can_share(self) -> bool:
        """Whether the kernel has arguments for parts of tiles."""
        return "STREAM" in self.constants or "SPLITS" in self.constants

    def grid(self, rows: Dim, n: int, gated: bool) -> Dim:
        """Programs of a launch for rows by n outputs."""
        c = self.constants
        if c.get("PROGRAMS"):
            return c["PROGRAMS"]
        if "ROWS" in c:
            return -(-n // c["BLOCK_N"])
        row_tiles = cdiv(rows, c["BLOCK_M"]) if c["GROUP_M"] else 1
        columns = -(-n // (columns_of(c) // (2 if gated else 1)))
        return row_tiles * columns * c.get("SPLITS", 1)

    def partials_bytes(self) -> int:
        """f32 scratch; needs no initial values."""
        tile = self.constants.get("BLOCK_M", 0) * self.constants["BLOCK_N"]
        return self._parts() * tile * 4 if self.streams else 0

    def locks_bytes(self) -> int:
        """i32 counters, zero before the first launch, left zero by each."""
        return self._parts() * 4 if self.streams else 0

    def _parts(self) -> int:
        c = self.constants
        return 2 * c["PROGRAMS"] if "PROGRAMS" in c else self.tiles * c["SPLITS"]


def linear_candidates(m: int, n: int, k: int, gated: bool, arch: str) -> list[LinearConfig]:
    """Ways to multiply up to m rows by a weight [n, k] (gated: [2n, k]), best first."""
    limit = SHARED.get(arch, MOST_SHARED)
    return [c for c in _candidates(m, n, k, gated, arch) if c.smem_bytes <= limit]


def _candidates(m: int, n: int, k: int, gated: bool, arch: str) -> Iterator[LinearConfig]:
    maps = arch not in SHARED and k % 8 == 0  # tensor maps, and room for tiles that gain by them
    if m <= GEMV_ROWS:
        yield from _gemv(m, k, gated)
    if m > 1:
        yield from _parts(m, n, k, gated, arch, maps)
    if 1 < m <= SKINNY_ROWS:
        yield from _skinny(m, n, gated, arch, maps)
    elif m > 1:
        yield from (_whole if maps else _wide)(m, n, gated, arch)


GEMV_BLOCKS = ((4, 1024, 4), (4, 512, 4), (2, 1024, 4), (8, 512, 4), (2, 512, 2), (1, 1024, 2))
"""BLOCK_N, BLOCK_K, num_warps."""
GEMV_ROW_BLOCKS = ((2, 512, 2), (4, 512, 4), (2, 1024, 4), (4, 256, 2))


def _gemv(m: int, k: int, gated: bool) -> Iterator[LinearConfig]:
    rows = 1 << (m - 1).bit_length()
    for block_n, block_k, warps in GEMV_BLOCKS if m == 1 else GEMV_ROW_BLOCKS:
        if gated and block_n > 4:
            continue
        fit = min(block_k, max(32, 1 << (k - 1).bit_length()))
        tile = {"ROWS": rows, "BLOCK_N": block_n, "BLOCK_K": fit}
        yield LinearConfig("gemv.linear", tile, warps, 1, 1, 1024)


@dataclass(frozen=True)
class PartBlock:
    """A tile of ``matmul_parts.py`` and the rows that it is for."""

    low: int
    high: int
    block: Block
    """BLOCK_M 0: as many rows as there are, 16 at least."""
    num_warps: int
    num_stages: int
    swap: int = 0
    pointers: bool = False


PART_SPLITS = (1, 2, 4)
PART_ROWS = 2048
"""Most rows of a product in parts: its scratch grows with them."""
PART_BLOCKS = (
    PartBlock(2, 16, (16, 64, 256), 4, 3, swap=1, pointers=True),
    PartBlock(2, 32, (0, 64, 256), 4, 4, swap=1),
    PartBlock(17, 64, (0, 64, 256), 4, 3, swap=1, pointers=True),
    PartBlock(17, 256, (16, 64, 256), 4, 4, swap=1),
    PartBlock(33, 256, (64, 64, 128), 4, 6, swap=1),
    PartBlock(33, 512, (64, 32, 256), 4, 4),
    PartBlock(33, 512, (64, 128, 128), 4, 4),
    PartBlock(65, 256, (128, 32, 128), 4, 5),
    PartBlock(65, PART_ROWS, (128, 128, 64), 8, 6),
    PartBlock(65, PART_ROWS, (128, 128, 64), 4, 3),
)
LEAST_STEPS = 2
"""Of a part."""


def _parts(m: int, n: int, k: int, gated: bool, arch: str, maps: bool) -> Iterator[LinearConfig]:
    for way in PART_BLOCKS:
        if not way.low <= m <= way.high or not (maps or way.pointers):
            continue
        block_m, block_n, block_k = way.block
        block = (block_m or max(16, 1 << (m - 1).bit_length()), block_n, block_k)
        tiles = tiles_of(block, m, n, gated)
        for splits in PART_SPLITS:
            few = splits > 1 and tiles * splits > 2 * SMS[arch]
            if not few and -(-k // block_k) >= LEAST_STEPS * splits:
                yield part_config(block, way, splits, m, tiles)


def part_config(block: Block, way: PartBlock, splits: int, m: int, tiles: int) -> LinearConfig:
    """A config of ``matmul_parts.py``."""
    constants = {
        "BLOCK_M": block[0], "BLOCK_N": block[1], "BLOCK_K": block[2],
        "GROUP_M": 0 if m <= block[0] else 8, "SPLITS": splits, "SWAP": way.swap,
        "MAPS": 2 if way.pointers else 0, "AHEAD": 0,
    }  # fmt: skip
    smem = smem_bytes(block, way.num_stages)
    kernel = "matmul_parts.linear"
    return LinearConfig(kernel, constants, way.num_warps, way.num_stages, splits, smem, tiles)


WHOLE_BLOCKS = (
    ((128, 256, 64), 4, 8, 0, 1),
    ((128, 256, 64), 3, 8, 1, 0),
    ((128, 256, 64), 3, 8, 0, 0),
    ((128, 256, 64), 4, 8, 0, 0),
)
"""Block, num_stages, num_warps, FLAT, REST."""
WIDE_BLOCKS = (
    ((128, 128, 64), 64, 5, 4, True),
    ((128, 128, 64), 64, 4, 4, False),
    ((64, 128, 64), 64, 7, 4, False),
)
"""Block, EXTRA, num_stages, num_warps, whether programs are persistent.

Persistent ones have no register left for a residual: they are for gated products. Neither these
nor WHOLE_BLOCKS start early: where programs land beside the last ones of the kernel before, those
that read the same rows of W are no longer neighbours (on an H200 3 to 20 % more time)."""


def _whole(m: int, n: int, gated: bool, arch: str) -> Iterator[LinearConfig]:
    for block, stages, warps, flat, rest in WHOLE_BLOCKS:
        constants = {
            "BLOCK_M": block[0], "BLOCK_N": block[1], "BLOCK_K": block[2], "GROUP_M": 8,
            "PROGRAMS": SMS[arch], "FLAT": flat, "REST": rest, "MAPS": 0, "PDL": 0,
        }  # fmt: skip
        smem = stages * (block[0] + block[1]) * block[2] * 2 + 1024 + 32768 * flat
        tiles = tiles_of(block, m, n, gated)
        kernel = "matmul_tiles.linear"
        yield LinearConfig(kernel, constants, warps, stages, 1, smem, tiles)
    for block, extra, stages, warps, persists in WIDE_BLOCKS:
        if persists and not gated:
            continue
        constants = {
            "BLOCK_M": block[0], "BLOCK_N": block[1], "BLOCK_K": block[2], "EXTRA": extra,
            "GROUP_M": 8, "PROGRAMS": SMS[arch] if persists else 0, "PDL": 0,
        }  # fmt: skip
        whole = block_of(constants)
        smem, tiles = stage_bytes(whole, stages), tiles_of(whole, m, n, gated)
        yield LinearConfig("matmul_wide.linear", constants, warps, stages, 1, smem, tiles)


SKINNY_BLOCKS = (
    ("split_k", 64, 128, 4, 4, 1),
    ("matmul_tma", 64, 128, 4, 4, 1),
    ("matmul_tma", 128, 128, 4, 4, 1),
    ("split_k", 128, 64, 4, 4, 1),
    ("split_k", 64, 64, 4, 4, 1),
    ("split_k", 64, 128, 4, 4, 0),
    ("split_k", 32, 256, 3, 4, 0),
)
"""Kernel, BLOCK_N, BLOCK_K, num_stages, num_warps, SWAP."""
MOST_SPLITS = 8
"""Of a tile: the program that comes last adds all parts."""


def _skinny(m: int, n: int, gated: bool, arch: str, maps: bool) -> Iterator[LinearConfig]:
    block_m = max(16, 1 << (m - 1).bit_length())
    for kernel, block_n, block_k, stages, warps, swap in SKINNY_BLOCKS:
        if kernel == "matmul_tma" and not maps:
            continue
        block = (block_m, block_n, block_k)
        share = max(1, min(3, SHARED.get(arch, MOST_SHARED) // (smem_bytes(block, stages) + 1024)))
        programs = _programs(SMS[arch] * share, tiles_of(block, m, n, gated))
        yield _tiled(kernel, block, stages, warps, programs, m, n, gated, swap=swap)


POINTER_BLOCKS = (((128, 128, 32), 4, 8), ((64, 128, 64), 3, 4), ((128, 64, 64), 3, 4))
"""Block, num_stages, num_warps: for chips without tensor maps."""


def _wide(m: int, n: int, gated: bool, arch: str) -> Iterator[LinearConfig]:
    for block, stages, warps in POINTER_BLOCKS:
        for stream in (1, 0):
            programs = _programs(SMS[arch], tiles_of(block, m, n, gated))
            yield _tiled("split_k", block, stages, warps, programs, m, n, gated, stream=stream)


def _programs(most: int, tiles: int) -> int:
    """Programs of a launch: an even number of parts of every tile where that fills the chip."""
    even = min(most // tiles, MOST_SPLITS) * tiles
    return even if 10 * even >= 9 * most or even == MOST_SPLITS * tiles else most


def _tiled(
    kernel: str, block: Block, stages: int, warps: int, programs: int,
    m: int, n: int, gated: bool, stream: int = 1, swap: int = 0,
) -> LinearConfig:  # fmt: skip
    block_m, block_n, block_k = block
    constants = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
        "GROUP_M": 0 if m <= block_m else 8, "PROGRAMS": programs, "STREAM": stream,
        "SWAP": swap,
    }  # fmt: skip
    if kernel == "matmul_tma":
        constants["MAPS"] = 0
    splits = -(-programs // tiles_of(block, m, n, gated)) if stream else 1
    smem = smem_bytes(block, stages)
    return LinearConfig(f"{kernel}.linear", constants, warps, stages, splits, smem)


def columns_of(constants: Mapping[str, int]) -> int:
    """Rows of the weight that a tile covers."""
    return constants["BLOCK_N"] + constants.get("EXTRA", 0)


def block_of(constants: Mapping[str, int]) -> Block:
    """Rows, columns and depth of a tile."""
    return constants["BLOCK_M"], columns_of(constants), constants["BLOCK_K"]


def tiles_of(block: Block, m: int, n: int, gated: bool) -> int:
    """Tiles of a product of m rows and n outputs."""
    outputs = block[1] // 2 if gated else block[1]
    return -(-m // block[0]) * -(-n // outputs)


def rounds_of(tiles: int, programs: int, in_halves: int) -> float:
    """Tiles that the busiest program computes; ``in_halves``: those of a short last round, halved.

    >>> rounds_of(448, 132, 0), rounds_of(448, 132, 1), rounds_of(224, 132, 1)
    (4, 3.5, 2)
    """
    whole, rest = divmod(tiles, programs)
    if in_halves and 0 < 2 * rest <= programs:
        return whole + 0.5
    return whole + min(rest, 1)


def stage_bytes(block: Block, stages: int, item_bytes: int = 2) -> int:
    """Shared memory of the stages; `matmul_wide` needs no more."""
    block_m, block_n, block_k = block
    return stages * (block_m + block_n) * block_k * item_bytes + 1024


def smem_bytes(block: Block, stages: int, item_bytes: int = 2) -> int:
    """Shared memory: the stages, and a change of layout of up to 32 KiB at the end of a tile."""
    return stage_bytes(block, stages, item_bytes) + min(block[0] * block[1] * 4, 32768)


def linear_cost(
    config: LinearConfig, m: int, n: int, k: int, gated: bool, w_bytes: float = 2.0
) -> TileCost:
    """Work of one program of a launch, for `choose_tile`; ``w_bytes`` for each weight."""
    c = config.constants
    w_rows = 2 * n if gated else n
    if "ROWS" in c:
        programs = -(-n // c["BLOCK_N"])
        weights = w_rows * k / programs
        return TileCost(programs, 2.0 * m * weights, w_bytes * weights, config.smem_bytes)
    tiles = tiles_of(block_of(c), m, n, gated)
    programs = c.get("PROGRAMS") or tiles * c.get("SPLITS", 1)
    cut = config.streams or "SPLITS" in c
    per_program = tiles / programs if cut else rounds_of(tiles, programs, c.get("REST", 0))
    flops = per_program * 2.0 * c["BLOCK_M"] * columns_of(c) * k
    parts = 4.0 * c["BLOCK_M"] * c["BLOCK_N"] * 3 if config.splits > 1 else 0.0
    traffic = (w_bytes * w_rows * k + 2.0 * (m * k + m * n)) / programs
    speed = E4M3_SPEED if config.x == "e4m3" else 1.0
    return TileCost(programs, flops / speed, traffic + parts, config.smem_bytes)
