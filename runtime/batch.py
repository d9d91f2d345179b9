"""A step's plan (`Plan`) and the arrays that the device reads (`BatchBuffers`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..targets.device import StepBatch
from .request import Request


class Chunk(NamedTuple):
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
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def is_newest(self) -> bool:
        """Whether this is the newest token alone, as in decoding."""
        return self.is_last and self.end - self.start == 1


@dataclass(slots=True)
class Plan:
    """What one step computes. A plan that is not committed, as after a failed step, is harmless."""

    chunks: list[Chunk] = field(default_factory=list)
    """Decoding requests first (one token each, the newest), then prefills."""
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    """Requests that start, or start again after a preemption, with this step."""
    wait_until: float | None = None
    """In an empty plan: when to plan again, unless a request arrives before."""

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

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
        seqs = len(chunks)
        table = self._fill_table(chunks)
        num_decoding = next((at for at, chunk in enumerate(chunks) if not chunk.is_newest), seqs)
        self._fill_decoding(chunks[:num_decoding])
        self._query_start[:num_decoding] = self._counting[:num_decoding]
        at = num_decoding
        for seq in range(num_decoding, seqs):
            self._query_start[seq] = at
            self._fill_prefill(chunks[seq], at)
            at += chunks[seq].num_tokens
        self._query_start[seqs] = at
        self._seq_lens[:seqs] = [chunk.end for chunk in chunks]
        wanted = [seq + 1 for seq, chunk in enumerate(chunks) if chunk.is_last]
        self._logit_rows[: len(wanted)] = self._query_start[wanted] - 1
        return StepBatch(
            token_ids=self._token_ids[:at],
            positions=self._positions[:at],
            slots=self._slots[:at],
            query_start=self._query_start[: seqs + 1],
            seq_lens=self._seq_lens[:seqs],
            page_table=table,
            logit_rows=self._logit_rows[: len(wanted)],
        )

    def _fill_decoding(self, chunks: Sequence[Chunk]) -> None:
        """One token each, from plain numbers: much faster than an array access per request."""
        size, count = self._page_size, len(chunks)
        self._token_ids[:count] = [chunk.request.last_token for chunk in chunks]
        self._positions[:count] = [chunk.start for chunk in chunks]
        self._slots[:count] = [
            chunk.request.pages[chunk.start // size].number * size + chunk.start % size
            for chunk in chunks
        ]

    def _fill_prefill(self, chunk: Chunk, at: int) -> None:
        request, part = chunk.request, slice(at, at + chunk.num_tokens)
        positions = self._positions[part]
        np.add(self._counting[: chunk.num_tokens], chunk.start, out=positions)
        self._token_ids[part] = request.tokens[chunk.start : chunk.end]
        pages = request.page_row[positions // self._page_size]
        self._slots[part] = pages * self._page_size + positions % self._page_size

    def _fill_table(self, chunks: Sequence[Chunk]) -> NDArray[np.int32]:
        size = self._page_size
        used = [-(-chunk.end // size) for chunk in chunks]
        table = self._table(len(chunks), max(used))
        table.fill(0)
        for row, chunk, count in zip(table, chunks, used, strict=True):
            row[:count] = chunk.request.page_row[:count]
        return table

    def _table(self, seqs: int, pages: int) -> NDArray[np.int32]:
        """A contiguous [seqs, pages] view; the buffer doubles when contexts outgrow it."""
        if seqs * pages > len(self._page_table):
            self._page_table = np.zeros(2 * seqs * pages, dtype=np.int32)
        return self._page_table[: seqs * pages].reshape(seqs, pages)
