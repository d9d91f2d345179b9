"""How attention is cut up on CUDA, as data: tiles of prompts, parts of a decoded sequence.

All by measurements on an H200 (heads / KV heads, head_dim, contexts), in µs.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import sympy

from ...ir.dim import Dim, as_dim, cdiv, dim_max, dim_min, floordiv
from ...ir.target import Target
from .facts import TENSOR_MAPS


@dataclass(frozen=True)
class PromptTile:
    """A tile of `flash_attention.py` and how it is compiled."""

    rows: int
    """Queries times heads of a group."""
    keys: int
    num_warps: int
    num_stages: int
    loads: str = "pointers"
    max_registers: int | None = None

    def options(self) -> dict[str, object]:
        limit = {} if self.max_registers is None else {"maxnreg": self.max_registers}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **limit}


SHORT_PROMPT = 1024
"""Tokens of a step up to which small tiles win: they are more, and fill the chip.

512 tokens of 32/8 heads of 128: 12.8 in tiles of 64 x 64, 14.2 to 20 in others; 16/8: 10.7.
"""
SHORT = PromptTile(64, 64, 4, 3)
LONG = PromptTile(128, 64, 8, 2, "maps", 128)
"""2,048 tokens of 32/8 heads of 128: 80 by maps, 82 by pointers, 88 in small tiles; 8,192: 1,089
(505 TFLOP/s), 1,140, 1,263. With at most 128 registers two programs share a multiprocessor."""
LONG_POINTERS = PromptTile(128, 64, 8, 2, "pointers", 128)
NARROW_SHORT = PromptTile(64, 128, 4, 2)
NARROW_LONG = PromptTile(128, 64, 8, 3)
"""Heads of 64, 9/3: 512 and 2,048 tokens 7.6 and 25.6 in the first, 8,192 204 in the second."""
NARROW_SHORT_PROMPT = 2048
WIDE = PromptTile(64, 64, 4, 2)
"""Heads above 128: two stages of 64 keys are what shared memory has room for."""


def prompt_tile(target: Target, tokens: int | None, head_dim: int) -> PromptTile:
    """The tile for steps of up to so many tokens (None: any number)."""
    if head_dim > 128:
        return WIDE
    if head_dim <= 64:
        is_short = tokens is not None and tokens <= NARROW_SHORT_PROMPT
        return NARROW_SHORT if is_short else NARROW_LONG
    if tokens is not None and tokens <= SHORT_PROMPT:
        return SHORT
    return LONG if TENSOR_MAPS in target.features else LONG_POINTERS


@dataclass(frozen=True)
class DecodeTile:
    """How `rope_attention.py` is compiled for some number of programs."""

    ahead: int
    """Pages that are read before the product is there."""
    num_warps: int
    num_stages: int
    max_registers: int | None = None

    def options(self) -> dict[str, object]:
        limit = {} if self.max_registers is None else {"maxnreg": self.max_registers}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **limit}


DECODE_TILES = (
    (1, DecodeTile(4, 8, 3)),
    (2, DecodeTile(2, 4, 3)),
    (4, DecodeTile(0, 4, 2, 128)),
    (None, DecodeTile(0, 4, 3, 128)),
)
"""Up to so many programs for each multiprocessor. 32/8 heads of 128, in brackets with one page
ahead, four warps and three stages for any number: 8 sequences of 208 keys 4.9 (7.8), 16 7.5 (9.1),
32 10.1 (11.5), 64 18.8 (26), 128 36 (45), 256 63 (87); 16 of 4,096 73 (86), 32 of 1,024 34 (46),
64 65 (75), 256 of 528 138 (147). With at most 128 registers four programs share a multiprocessor,
with three stages three of them."""
WIDE_DECODE = DecodeTile(1, 4, 3)
"""Heads above 128: more pages ahead have no room in registers."""


def decode_tile(target: Target, tokens: int | None, kv_heads: int, head_dim: int) -> DecodeTile:
    """The tile for steps of one token in each of up to so many sequences (None: any number)."""
    if head_dim > 128:
        return WIDE_DECODE
    programs = math.inf if tokens is None else tokens * kv_heads
    return next(
        tile for most, tile in DECODE_TILES if most is None or programs <= most * target.programs
    )


DECODE_KEYS = 64
"""Keys of a block: a page. Blocks of 128 need twice the registers and are slower up to 64 sequences
(1 x 1,024: 6.2 and 6.5; 64 x 192: 18.5 and 20), alike above."""
DECODE_WARPS, DECODE_STAGES = 4, 3
MERGED_AT_ONCE = 8
"""Parts that the combining kernel loads at a time."""
MOST_SPLITS = 16
"""More parts take longer again: 1 x 8,192 14.9 in 16, 16.1 in 32, 21.2 in 64."""
LONGEST_PART = 2048
"""Keys that one program walks at most, about 30 µs: among 64 sequences of up to 700 keys and one of
16,384 the one takes 212 alone, 83 in 8 parts."""
FEW_BLOCKS = 8
"""Blocks that are not worth a part of their own where other sequences fill the chip."""


@functools.cache
def splits(units: int, page_size: int, kv_heads: int, seqs: Dim, pages: Dim) -> Dim:
    """Parts of a sequence: one program for each multiprocessor, two blocks or more in each.

    One part up to 256 keys, where a second launch takes as long as it saves. 1 x 1,024: 14.5 in one
    part, 7.1 in 4, 6.2 in 7 and 8. 8 x 8,192: 102 in one, 69.8 in 2, 69.3 in 4. 64 x 1,024: 68.1 in
    one, 75.5 in 2.
    """
    keys = as_dim(sympy.sympify(pages) * page_size)
    fill = floordiv(units, as_dim(kv_heads * sympy.sympify(seqs)))
    useful = dim_max(1, as_dim(sympy.sympify(floordiv(keys, 2 * DECODE_KEYS)) - 1))
    wanted = dim_max(1, dim_max(fill, cdiv(keys, LONGEST_PART)))
    return dim_min(useful, dim_min(wanted, MOST_SPLITS))


def least_blocks(target: Target, tokens: int | None, kv_heads: int) -> int:
    """Blocks of a part at least, in steps of up to so many tokens."""
    is_full = tokens is None or tokens * kv_heads >= target.programs
    return FEW_BLOCKS if is_full else 1


@functools.cache
def has_decode(tokens: Dim, seqs: Dim) -> Dim:
    """0 where one sequence has several tokens, so that none has one; else 1."""
    is_short = sympy.sympify(dim_max(0, as_dim(2 - sympy.sympify(tokens))))
    return dim_min(1, as_dim(sympy.sympify(seqs) - 1 + is_short))


@functools.cache
def is_decode(tokens: Dim, seqs: Dim) -> Dim:
    """1 where every sequence has one token, else 0; the device pads no other step to that."""
    return dim_max(0, as_dim(1 - sympy.sympify(tokens) + seqs))


@functools.cache
def prompt_tiles(tokens: Dim, seqs: Dim, group: int, rows: int) -> Dim:
    """Tiles of rows of all sequences; none in a step of as many tokens as sequences."""
    has_prompts = dim_min(1, dim_max(0, as_dim(sympy.sympify(tokens) - seqs)))
    whole = floordiv(as_dim(sympy.sympify(tokens) * group), rows)
    return as_dim((sympy.sympify(whole) + seqs) * has_prompts)
