"""Sizes of a step, rounded up to classes: each class is prepared once and becomes one graph.

Padding costs nothing that tiles do not cost anyway: decode steps round up to a power of two (their
kernels handle so many rows at once), others to the rows of a tile. Page tables get a power of two
columns, so that grids over pages follow the context without a class for each length.
"""

from __future__ import annotations

from ...device import StepSizes

DECODE_CLASSES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGE_DECODE = 128
"""Decode steps above the classes are multiples of this."""
SMALL_TILE, TILE, LARGE_TILE = 16, 64, 128
"""Rows that other steps are multiples of: up to 128 tokens, up to 1,024, above."""
MIN_PAGES = 4


def padded(sizes: StepSizes) -> StepSizes:
    """The class of a step: no size is smaller.

    >>> padded(StepSizes(tokens=5, seqs=5, pages=9, rows=5))
    StepSizes(tokens=8, seqs=8, pages=16, rows=8)
    >>> padded(StepSizes(tokens=300, seqs=3, pages=5, rows=0))
    StepSizes(tokens=320, seqs=4, pages=8, rows=0)
    """
    pages = max(MIN_PAGES, power_of_two(sizes.pages))
    if sizes.is_decode:  # with rows or without: the kernels of prompts skip single tokens
        tokens = _decode_class(sizes.tokens)
        return StepSizes(tokens, tokens, pages, tokens if sizes.rows else 0)
    tile = SMALL_TILE if sizes.tokens <= 128 else TILE if sizes.tokens <= 1024 else LARGE_TILE
    rows = power_of_two(sizes.rows) if sizes.rows else 0
    seqs = power_of_two(sizes.seqs)
    # As many tokens as sequences is how a program knows a decode step.
    tokens = max(sizes.tokens, seqs + 1)
    return StepSizes(-(-tokens // tile) * tile, seqs, pages, rows)


def corners(max_tokens: int, max_seqs: int, pages: int) -> list[StepSizes]:
    """Classes that need the most memory: it is reserved for them.

    Decode steps of every class, and full steps of one sequence and of many.
    """
    decode = decode_classes(max_seqs)
    full = [StepSizes(max_tokens, seqs, pages, seqs) for seqs in (1, max_seqs)]
    return [padded(StepSizes(c, c, pages, c)) for c in decode] + [padded(sizes) for sizes in full]


def decode_classes(max_seqs: int) -> list[int]:
    """Sequences of each class of decode steps up to so many."""
    return [c for c in DECODE_CLASSES if c < max_seqs] + [_decode_class(max_seqs)]


def _decode_class(tokens: int) -> int:
    for size in DECODE_CLASSES:
        if tokens <= size:
            return size
    return -(-tokens // LARGE_DECODE) * LARGE_DECODE


def power_of_two(number: int) -> int:
    """The lowest one that is not below a number."""
    return 1 << max(0, number - 1).bit_length()
