"""A step's plan (`Plan`) and the arrays that the device reads (`BatchBuffers`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..targets.device import StepBatch
from .request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``start..end-1`` of a request, computed in one step."""

    request: Request
    start: int
    end: int
    is_last: bool
    """Whether the step reaches the request's newest token, so that it yields the next one."""

    @classmethod
    def next(cls, request: Request, count: int) -> Chunk:
        """The next ``count`` tokens of a request."""
        end = request.num_computed + count
        return cls(request, request.num_computed, end, end == request.num_tokens)

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Plan:
    """What one step computes. A plan that is not committed, as after a failed step, is harmless."""

    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def sampled(self) -> list[Request]:
        """The requests that get a token, in the order of the logits' rows."""
        return [chunk.request for chunk in self.chunks if chunk.is_last]


class BatchBuffers:
    """The arrays of a step, allocated once; `fill` returns views of them.

    >>> buffers = BatchBuffers(page_size=4, max_tokens=8, max_seqs=2)
    >>> request = Request("r", [7, 8, 9], max_new=1)
    >>> request.page_row = np.array([5], np.int32)
    >>> buffers.fill([Chunk(request, 1, 3, True)]).slots
    array([21, 22], dtype=int32)
    """

    def __init__(self, page_size: int, max_tokens: int, max_seqs: int) -> None:
        self._page_size = page_size
        self._token_ids = np.zeros(max_tokens, dtype=np.int32)
        self._positions = np.zeros(max_tokens, dtype=np.int32)
        self._slots = np.zeros(max_tokens, dtype=np.int32)
        self._query_start = np.zeros(max_seqs + 1, dtype=np.int32)
        self._seq_lens = np.zeros(max_seqs, dtype=np.int32)
        self._logit_rows = np.zeros(max_seqs, dtype=np.int32)
        self._page_table = np.zeros(max_seqs, dtype=np.int32)
        self._counting = np.arange(max_tokens, dtype=np.int32)

    def fill(self, chunks: Sequence[Chunk]) -> StepBatch:
        """The step's arrays for these chunks, in their order; valid until the next call."""
        size = self._page_size
        pages = max(-(-chunk.end // size) for chunk in chunks)
        table = self._table(len(chunks), pages)
        at = rows = 0
        for seq, chunk in enumerate(chunks):
            self._query_start[seq] = at
            self._seq_lens[seq] = chunk.end
            row, used = table[seq], -(-chunk.end // size)
            row[:used] = chunk.request.page_row[:used]
            row[used:] = 0
            self._fill_tokens(chunk, at)
            at += chunk.count
            if chunk.is_last:
                self._logit_rows[rows] = at - 1
                rows += 1
        self._query_start[len(chunks)] = at
        return StepBatch(
            token_ids=self._token_ids[:at],
            positions=self._positions[:at],
            slots=self._slots[:at],
            query_start=self._query_start[: len(chunks) + 1],
            seq_lens=self._seq_lens[: len(chunks)],
            page_table=table,
            logit_rows=self._logit_rows[:rows],
        )

    def _fill_tokens(self, chunk: Chunk, at: int) -> None:
        request, start, count = chunk.request, chunk.start, chunk.count
        if count == 1:  # decoding: scalars are faster than arrays of one
            self._token_ids[at] = request.tokens[start]
            self._positions[at] = start
            page, offset = divmod(start, self._page_size)
            self._slots[at] = request.page_row[page] * self._page_size + offset
            return
        part = slice(at, at + count)
        positions = self._positions[part]
        np.add(self._counting[:count], start, out=positions)
        self._token_ids[part] = request.tokens[start : start + count]
        pages = request.page_row[positions // self._page_size]
        self._slots[part] = pages * self._page_size + positions % self._page_size

    def _table(self, seqs: int, pages: int) -> NDArray[np.int32]:
        """A contiguous [seqs, pages] view; the buffer doubles when contexts outgrow it."""
        if seqs * pages > len(self._page_table):
            self._page_table = np.zeros(2 * seqs * pages, dtype=np.int32)
        return self._page_table[: seqs * pages].reshape(seqs, pages)
