"""Tiles of Kunlun kernels: candidates from granules and published lists, the fitting ones ranked.

A candidate is refused by name: too much uni_sram (the vendor autotuner's formula), sizes that
Triton does not take, more rows than a call has. The others are ranked by modelled time: the
programs that one engine runs after another, each bounded by its arithmetic (whole granules), by its
share of the bandwidth, or by setting up the rows of its transfers; plus the cost of launching. An
idle engine wastes its share, so grids near a multiple of the engines win.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from ...errors import PassError
from ...passes.choose_tiles import Tile, TileChoice, tile_text
from .capabilities import Chip

Candidate = tuple[Tile, "Work"]


@dataclass(frozen=True)
class Gemm:
    """y[rows, n] = x[rows, k] @ w[n, k]^T, ``halves`` weights of n rows each."""

    rows: int
    k: int
    n: int
    weight: str
    """dtype in memory."""
    halves: int = 1
    has_bias: bool = False
    x_bytes: int = 4

    @property
    def weight_bytes(self) -> int:
        return 4 if self.weight == "f32" else 2


@dataclass(frozen=True)
class Work:
    """What one program of a candidate does."""

    programs: int
    flops: float
    bytes: float
    dma_rows: int
    on_chip_bytes: int


@dataclass(frozen=True)
class Timed:
    """A candidate with its modelled time, in parts."""

    tile: Tile
    work: Work
    parts: tuple[tuple[str, float], ...]
    overhead: float

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda part: part[1])[0]

    @property
    def seconds(self) -> float:
        return self.overhead + max(seconds for _, seconds in self.parts)


def dot_bytes(dtype: str) -> int:
    """Bytes of an element in a matrix engine: only fp16 has two, bf16 is widened.

    >>> dot_bytes("f16"), dot_bytes("bf16"), dot_bytes("f32")
    (2, 4, 4)
    """
    return 2 if dtype == "f16" else 4


def align(n: int, to: int) -> int:
    return -(-n // to) * to


def uni_sram_need(chip: Chip, m: int, n: int, k: int, dtype: str, gemm: Gemm | None = None) -> int:
    """Bytes of uni_sram that a tile takes: both operands twice, and the result's rows.

    FlagTree's autotuner asks ``align(K b) M + align(N b) K <= (total - align(N b) (M + bias)) / 2``
    with ``bias`` of 2 + M rows. A weight [n, k] is a transposed operand: its rows are K long.
    """
    b, row = dot_bytes(dtype), chip.uni_sram_row_align
    halves = gemm.halves if gemm else 1
    bias = (2 + m) if gemm and gemm.has_bias else 0
    operands = align(k * b, row) * (m + halves * n)
    return chip.uni_sram_buffers * operands + halves * align(n * b, row) * (m + bias)


# Candidates -----------------------------------------------------------------------------------


def gemm_tiles(chip: Chip, k: int, n: int) -> list[tuple[int, int, int]]:
    """BLOCK_M, BLOCK_N, BLOCK_K from granules and published lists; the K step divides k. Weights of
    fewer outputs than a granule get tiles of a part of it."""
    pairs = {
        (chip.granule_m * i, chip.granule_n * j)
        for i in range(1, chip.granules_m + 1)
        for j in range(1, chip.granules_n + 1)
    }
    pairs |= set(chip.published_tiles)
    pairs |= {(m, n) for m in (16, 32) for n in (64, 128, 256)}  # few rows: decode
    if n < chip.granule_n:
        pairs |= {(m, part) for m in (16, 32, 64) for part in (16, 32)}
    return [(m, wide, step) for m, wide in sorted(pairs) for step in k_steps(chip, k)]


def k_steps(chip: Chip, k: int) -> list[int]:
    """Multiples of the granule that divide k, by powers of two; else published shorter steps, else
    the least that a product takes."""
    aligned = [chip.granule_k << i for i in range(5) if k % (chip.granule_k << i) == 0]
    short = [step for step in chip.published_k if step < chip.granule_k and k % step == 0]
    least = [chip.dot_size_min] if k % chip.dot_size_min == 0 else []
    return aligned or short or least


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def _refusal(chip: Chip, gemm: Gemm, rows_max: int, tile: tuple[int, int, int]) -> str:
    """Why a candidate cannot be, or ""."""
    m, n, k = tile
    if not chip.tiles_of_any_size and not all(is_power_of_two(size) for size in tile):
        return "is no power of two (tiles_of_any_size is off)"
    if m > rows_max:
        return f"has more than the {rows_max} rows that any call here has memory for"
    if n > gemm.n:
        return f"has more than the {gemm.n} columns of the weight"
    need = uni_sram_need(chip, m, n, k, gemm.weight, gemm)
    if need > chip.uni_sram_bytes:
        return f"needs {need} of {chip.uni_sram_bytes} bytes of uni_sram"
    return ""


def gemm_work(chip: Chip, gemm: Gemm, tile: tuple[int, int, int]) -> Work:
    """Arithmetic in whole granules; operands read once for each tile."""
    m, n, k = tile
    steps = -(-gemm.k // k)
    granules = align(m, chip.granule_m) * align(n, chip.granule_n) * align(k, chip.granule_k)
    moved = gemm.k * (m * gemm.x_bytes + gemm.halves * n * gemm.weight_bytes) + m * n * 4
    return Work(
        programs=-(-gemm.rows // m) * -(-gemm.n // n),
        flops=2.0 * gemm.halves * granules * steps,
        bytes=float(moved),
        dma_rows=steps * (m + gemm.halves * n) + m,
        on_chip_bytes=uni_sram_need(chip, m, n, k, gemm.weight, gemm),
    )


@cache
def choose_gemm(chip: Chip, gemm: Gemm, rows_max: int) -> TileChoice:
    """The tile of least modelled time. ``rows_max``: rows that every call has memory for."""
    fitting: list[Candidate] = []
    refused = []
    for m, n, k in gemm_tiles(chip, gemm.k, gemm.n):
        tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
        reason = _refusal(chip, gemm, rows_max, (m, n, k))
        if reason:
            refused.append(f"{tile_text(tile)} {reason}")
        else:
            fitting.append((tile, gemm_work(chip, gemm, (m, n, k))))
    peak = chip.sdnn_f16_flops if gemm.weight == "f16" else chip.sdnn_f32_flops
    timed = [time_of(chip, tile, work, chip.sdnn_engines, peak) for tile, work in fitting]
    return best(timed, chip.uni_sram_bytes, "uni_sram", chip.sdnn_engines, refused, gemm.rows)


# Attention ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """Prefill of ``queries`` tokens over ``keys`` keys, a tile for each query head."""

    queries: int
    keys: int
    heads: int
    head_dim: int
    cache: str
    """dtype of the KV cache."""


def attention_need(chip: Chip, m: int, n: int, attention: Attention) -> int:
    """q once, K and V twice, scores, result: all in rows of whole lines."""
    b, row = dot_bytes(attention.cache), chip.uni_sram_row_align
    wide = align(attention.head_dim * b, row)
    pages = chip.uni_sram_buffers * 2 * n * wide
    return m * wide + pages + m * align(n * 4, row) + m * align(attention.head_dim * 4, row)


def attention_work(chip: Chip, m: int, n: int, attention: Attention) -> Work:
    steps = -(-attention.keys // n)
    wide = align(m, chip.granule_m)
    d = align(attention.head_dim, chip.granule_n)
    product = wide * align(n, chip.granule_n) * d
    cache_bytes = 4 if attention.cache == "f32" else 2
    moved = attention.head_dim * (8 * m + 2 * cache_bytes * attention.keys)
    return Work(
        programs=attention.heads * -(-attention.queries // m),
        flops=4.0 * product * steps,
        bytes=float(moved),
        dma_rows=2 * m + 2 * attention.keys,
        on_chip_bytes=attention_need(chip, m, n, attention),
    )


def attention_tiles(chip: Chip, head_dim: int, page: int) -> list[tuple[int, int]]:
    """The default first; BLOCK_N is at most head_dim and divides a page."""
    default = (chip.attention_tile[0], min(chip.attention_tile[1], head_dim, page))
    wide = [n for n in (32, 64, 128, 256) if n <= min(head_dim, page) and page % n == 0]
    return list(dict.fromkeys([default, *((m, n) for m in (16, 32, 64, 128) for n in wide)]))


@cache
def choose_attention(chip: Chip, attention: Attention, page: int) -> TileChoice:
    """The published default where it fits, else the fitting tile of least time."""
    timed, refused = [], []
    peak = chip.sdnn_f16_flops if attention.cache == "f16" else chip.sdnn_f32_flops
    for m, n in attention_tiles(chip, attention.head_dim, page):
        tile = {"BLOCK_M": m, "BLOCK_N": n}
        work = attention_work(chip, m, n, attention)
        if not is_power_of_two(n):
            refused.append(f"{tile_text(tile)} is no power of two")
        elif work.on_chip_bytes > chip.uni_sram_bytes:
            need = f"needs {work.on_chip_bytes} of {chip.uni_sram_bytes} bytes of uni_sram"
            refused.append(f"{tile_text(tile)} {need}")
        elif m <= chip.attention_tile[0]:
            timed.append(time_of(chip, tile, work, chip.sdnn_engines, peak))
    has_default = bool(timed) and timed[0].tile["BLOCK_M"] == chip.attention_tile[0]
    first = timed[0] if has_default else None
    rows = attention.queries
    return best(timed, chip.uni_sram_bytes, "uni_sram", chip.sdnn_engines, refused, rows, first)


# Row kernels ----------------------------------------------------------------------------------


@cache
def choose_row_block(chip: Chip, width: int, rows: int, tiles: int = 3) -> TileChoice:
    """The chunk of a row that the cores of a cluster hold at a time, ``tiles`` f32 values of it.

    Only chunks that divide the row: a masked block would read on into what follows.
    """
    timed, refused = [], []
    for block in (1 << i for i in range(14, 3, -1)):
        tile = {"BLOCK": block}
        lanes = -(-block // chip.cores_per_cluster)
        buffer = align(4 * lanes, chip.dma_align)
        if width % block:
            if block <= 2 * width:
                refused.append(f"{tile_text(tile)} does not divide a row of {width}")
        elif 4 * lanes > chip.lm_buffer_bytes or tiles * buffer > chip.lm_user_bytes:
            refused.append(f"{tile_text(tile)} needs {tiles * buffer} bytes of LM in {tiles} tiles")
        else:
            chunks = width // block
            work = Work(rows, 4.0 * width, 12.0 * width, 3 * chunks, tiles * buffer)
            timed.append(time_of(chip, tile, work, chip.clusters, chip.cluster_f32_flops))
    return best(timed, chip.lm_user_bytes, "LM of a core", chip.clusters, refused, rows)


# Ranking --------------------------------------------------------------------------------------


def time_of(chip: Chip, tile: Tile, work: Work, engines: int, peak: float) -> Timed:
    """Modelled time: only good for comparing tiles of one problem."""
    turns = -(-work.programs // engines)
    parts = (
        ("compute", turns * work.flops / (peak / engines)),
        ("memory", turns * work.bytes / (chip.hbm_bytes_per_second / engines)),
        ("transfer set-up", turns * work.dma_rows * chip.dma_row_seconds),
    )
    return Timed(tile, work, parts, chip.launch_seconds + turns * chip.program_seconds)


def best(
    timed: Sequence[Timed],
    limit: int,
    level: str,
    engines: int,
    refused: Iterable[str],
    rows: int,
    default: Timed | None = None,
) -> TileChoice:
    """The default if there is one, else the quickest; ties go to the first listed."""
    if not timed:
        raise PassError(f"kunlun: no tile fits: {'; '.join(refused)}")
    ranked = sorted(timed, key=lambda candidate: candidate.seconds)
    first = default or ranked[0]
    others = [candidate for candidate in ranked if candidate is not first]
    return TileChoice(
        tile=first.tile,
        seconds=first.seconds,
        bound=first.bound,
        on_chip_bytes=first.work.on_chip_bytes,
        on_chip_limit=limit,
        runner_up=_runner_up(first, others[0]) if others else "",
        refused=tuple(refused),
        on_chip_name=level,
        programs=first.work.programs,
        per_unit=-(-first.work.programs // engines),
        rows=rows,
    )


def _runner_up(first: Timed, second: Timed) -> str:
    """``; next BLOCK_M=64 at 80.0 us: 1.2x the compute``: what the winner beat it by."""
    text = f"; next {tile_text(second.tile)} at {second.seconds * 1e6:.1f} us"
    if second.seconds < first.seconds:
        return f"{text}: modelled to be quicker, but this is the published default"
    name, more = second.bound, dict(second.parts)[second.bound]
    less = dict(first.parts)[name]
    if second.seconds - first.seconds < 1e-3 * first.seconds:
        return f"{text}: as quick, listed later"
    if less and more / less > 1.001:
        return f"{text}: {more / less:.2f}x the {name}"
    return f"{text}: {(second.overhead - first.overhead) * 1e6:.1f} us more for launching programs"
