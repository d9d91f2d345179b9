"""Which tokens an answer may continue with: the hook for grammars and schemas.

A mask is filled in a worker thread as soon as the token before it is known, so that it is ready, or
nearly so, when the device has computed the logits.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
"""Bit ``t % 32`` of word ``t // 32``, lowest first: whether token ``t`` is allowed."""


class TokenMask(Protocol):
    """The state of one answer's grammar. Calls never overlap, but come from two threads.

    Any method may raise `RequestError`: this request alone then ends, with reason "error".
    """

    def fill(self, words: Words) -> None:
        """Set the bits of the tokens that may come next; ``words`` [ceil(V / 32)] is all zero.

        The model's end token is one of them when the answer may end here.
        """

    def accept(self, token_id: int) -> None:
        """The answer continues with this token, which the last mask allowed."""

    def is_terminated(self) -> bool:
        """Whether the answer is complete, so that nothing can follow."""


class MaskedRow:
    """A mask and the words of its next token, filled ahead of time."""

    def __init__(self, mask: TokenMask, vocab_size: int, worker: Executor) -> None:
        self._mask = mask
        self._worker = worker
        self._words = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
        self._filled: Future[None] = worker.submit(self._fill)

    def words(self) -> Words:
        """The bits for the next token; waits for them, raises what `TokenMask.fill` raised."""
        self._filled.result()
        return self._words

    def advance(self, token: int) -> bool:
        """Accept a token and start on the next mask; whether the answer is complete instead."""
        self._mask.accept(token)
        if self._mask.is_terminated():
            return True
        self._filled = self._worker.submit(self._fill)
        return False

    def _fill(self) -> None:
        self._words.fill(0)
        self._mask.fill(self._words)


def forbid(row: NDArray[np.float32], words: Words) -> None:
    """Set the logits [V] of tokens that are not allowed to -inf, in place.

    >>> row = np.array([1.0, 2.0, 3.0], np.float32)
    >>> forbid(row, np.array([0b101], np.uint32))
    >>> row.tolist()
    [1.0, -inf, 3.0]
    """
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), count=len(row), bitorder="little")
    row[bits == 0] = -np.inf
