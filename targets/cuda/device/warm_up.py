"""Steps that make the kernels and graphs of later ones: a server runs them before it is ready."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...device import StepBatch
from .step_sizes import MIN_PAGES, decode_classes


def decode_batches(
    max_seqs: int, max_context: int, page_size: int, num_pages: int
) -> Iterator[StepBatch]:
    """One decode step of every class, on sequences of one token in pages of their own.

    Page tables are as wide as those of contexts up to `max_context`. They write to the first pages:
    nothing may be cached yet.
    """
    smaller = 0
    for count in decode_classes(max_seqs):
        seqs = min(count, max_seqs, num_pages - 1)
        width = MIN_PAGES
        while seqs > smaller:
            yield _batch(seqs, width, page_size)
            width *= 2
            if (width // 2) * page_size >= max_context:
                break
        smaller = count


def _batch(seqs: int, width: int, page_size: int) -> StepBatch:
    numbers = np.arange(seqs, dtype=np.int32)
    table = np.zeros((seqs, width), np.int32)
    table[:, 0] = 1 + numbers
    return StepBatch(
        token_ids=np.zeros(seqs, np.int32),
        positions=np.zeros(seqs, np.int32),
        slots=table[:, 0] * np.int32(page_size),
        query_start=np.arange(seqs + 1, dtype=np.int32),
        seq_lens=np.ones(seqs, np.int32),
        page_table=table,
        logit_rows=numbers,
    )
