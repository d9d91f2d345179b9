"""Section ``steps``: decoders on the chip against whole sequences on NumPy.

Page-boundary sweeps, chunks, buckets, batches, prefixes that other sequences computed: none of it
may show in a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...errors import SglkError
from .chip import Chip
from .decoder import SHAPES, Shape
from .outcome import Outcome, judged
from .session import Chunk, Mode, Session, compile_decoder, modes_of, opened

SECTION = "steps"
Rule = Callable[[Session], str]
MOST_SEQUENCES = 64
"""Sequences of the largest batch; buckets beyond it are for prompts."""


def check_steps(chip: Chip, quick: bool = False) -> Iterator[Outcome]:
    """Every rule on the first shape in each mode; on the other shapes, results alone."""
    modes = modes_of(chip)
    if not modes:
        yield Outcome(SECTION, "decoders", "failed", "no types of weights and cache fit its facts")
        return
    for mode in modes[:1] if quick else modes:
        yield from _on(chip, SHAPES[0], mode, RULES, is_needed=mode is modes[0])
    for shape in SHAPES[3:4] if quick else SHAPES[1:]:
        yield from _on(chip, shape, modes[0], RESULTS, is_needed=True)


def _on(
    chip: Chip, shape: Shape, mode: Mode, rules: dict[str, Rule], is_needed: bool
) -> Iterator[Outcome]:
    where = f"{shape.name} ({mode.name})"
    try:
        artifact, reference = compile_decoder(chip, shape, mode)
    except SglkError as error:
        yield Outcome(SECTION, where, "failed" if is_needed else "absent", str(error))
        return
    with artifact, opened(chip, artifact, reference, mode) as session:
        for name, rule in rules.items():
            yield judged(SECTION, f"{where}: {name}", lambda rule=rule: rule(session))  # type: ignore[misc]


def boundaries(page: int) -> list[int]:
    """Lengths on both sides of the first two pages."""
    near = {1, 2, page - 1, page, page + 1, 2 * page - 1, 2 * page, 2 * page + 1}
    return sorted(n for n in near if n > 0)


def every_length(session: Session) -> str:
    for length in boundaries(session.page_size):
        tokens = session.sequence(length)
        (pages,) = session.pages(length)
        got = session.step(Chunk(tokens, 0, length, pages), all_rows=True)
        if reason := session.wrong(got, tokens):
            return f"{length} tokens at once: {reason}"
    return ""


def decode_over_pages(session: Session) -> str:
    """Single tokens over the end of a page, after a prompt that ends just before it."""
    page = session.page_size
    start, length = max(1, page - 2), page + 3
    tokens = session.sequence(length)
    (pages,) = session.pages(length)
    session.step(Chunk(tokens, 0, start, pages))
    for place in range(start, length):
        got = session.step(Chunk(tokens, place, place + 1, pages))
        if reason := session.wrong(got, tokens[: place + 1], place):
            return f"token {place} of a page of {page}: {reason}"
    return ""


def mixed_batch(session: Session) -> str:
    """A prompt, a middle chunk and single tokens in one step."""
    page = session.page_size
    lengths = [page + 5, 2 * page, 3, 7]
    starts = [0, page + 1, 2, 6]
    sequences = [session.sequence(n) for n in lengths]
    placed = session.pages(*lengths)
    for tokens, start, pages in zip(sequences, starts, placed, strict=True):
        if start:
            session.step(Chunk(tokens, 0, start, pages))
    parts = zip(sequences, starts, placed, strict=True)
    chunks = [Chunk(tokens, start, len(tokens), pages) for tokens, start, pages in parts]
    rows = session.step(*chunks)
    for number, (got, chunk) in enumerate(zip(rows, chunks, strict=True)):
        last = len(chunk.tokens) - 1
        if reason := session.wrong(got[None], chunk.tokens, last):
            return f"sequence {number} of 4 in one step: {reason}"
    return ""


def chunked(session: Session) -> str:
    """A prompt in chunks around pages and buckets equals the prompt at once."""
    page, length = session.page_size, 2 * session.page_size + 5
    tokens = session.sequence(length)
    first, second = session.pages(length, length)
    wanted = session.whole(tokens, first)
    edges = [b + i for b in session.buckets if b < page for i in (0, 1)]
    for size in sorted({3, page - 1, page, page + 1, *edges}):
        for start in range(0, length, size):
            got = session.step(Chunk(tokens, start, min(start + size, length), second))[0]
        if reason := session.differ(got, wanted, f"in chunks of {size} and at once"):
            return reason
    return ""


def batched(session: Session) -> str:
    """Single tokens beside others, for batches around each bucket, equal the same alone."""
    most = min(MOST_SEQUENCES, session.executable.max_tokens)
    sizes = {2, 3, most} | {b + i for b in session.buckets for i in (-1, 0, 1)}
    lengths = [1 + i % 7 for i in range(most)]
    sequences = [session.sequence(n) for n in lengths]
    placed = session.pages(*lengths)
    chunks = []
    for tokens, pages in zip(sequences, placed, strict=True):
        if len(tokens) > 1:
            session.step(Chunk(tokens, 0, len(tokens) - 1, pages))
        chunks.append(Chunk(tokens, len(tokens) - 1, len(tokens), pages))
    alone = [session.step(chunk)[0] for chunk in chunks]
    for size in sorted(s for s in sizes if 1 < s <= most):
        order = session.rng.permutation(most)[:size]
        rows = session.step(*(chunks[i] for i in order))
        for row, number in zip(rows, order, strict=True):
            if reason := session.differ(row, alone[number], f"in a batch of {size} and alone"):
                return reason
    return ""


def resumed(session: Session) -> str:
    """The rest of a prompt on pages that another sequence filled, and its last token again."""
    page = session.page_size
    shared = session.sequence(2 * page)
    first = (*shared, *session.sequence(5))
    second = (*shared, *session.sequence(page + 1))
    a, b, alone = session.pages(len(first), len(second), len(second))
    session.step(Chunk(first, 0, len(first), a))
    wanted = session.whole(second, alone)
    for count in (1, 2):
        pages = (*a[:count], *b[count:])
        got = session.step(Chunk(second, count * page, len(second), pages))[0]
        if reason := session.differ(got, wanted, f"with {count} cached pages and without"):
            return reason
    again = session.step(Chunk(second, len(second) - 1, len(second), pages))[0]
    return session.differ(again, wanted, "for a last token that is computed again")


def any_pages(session: Session) -> str:
    """The order of pages, what they held before and unused columns of the table are nothing."""
    length = 2 * session.page_size + 3
    tokens, other = session.sequence(length), session.sequence(length)
    (pages,) = session.pages(length)
    wanted = session.whole(tokens, tuple(sorted(pages)))
    session.whole(other, pages)
    got = session.whole(tokens, tuple(sorted(pages, reverse=True)))
    if reason := session.differ(got, wanted, "on pages in another order, used before"):
        return reason
    last = Chunk(tokens, length - 1, length, tuple(sorted(pages, reverse=True)))
    narrow, broad = session.step(last)[0], session.step(last, columns=7)[0]
    return session.differ(broad, narrow, "with unused columns in the page table")


def chosen_rows(session: Session) -> str:
    """Logits of some tokens are those of all tokens."""
    tokens = session.sequence(9)
    (pages,) = session.pages(9)
    every = session.step(Chunk(tokens, 0, 9, pages), all_rows=True)
    last = session.step(Chunk(tokens, 0, 9, pages))
    return session.differ(last[0], np.asarray(every[-1]), "as one row of one and one of nine")


RESULTS: dict[str, Rule] = {
    "every length around a page": every_length,
    "single tokens over the end of a page": decode_over_pages,
    "prompts and single tokens in one step": mixed_batch,
}
RULES: dict[str, Rule] = {
    **RESULTS,
    "chunks": chunked,
    "batches": batched,
    "resumed from a cached prefix": resumed,
    "any pages": any_pages,
    "rows of logits": chosen_rows,
}
