"""A device that takes no time and whose answers can be foretold: each token is its position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglk.targets.device import StepBatch


class CountingDevice:
    """The token after position p is ``p % vocab_size``, so a lost or doubled one shows."""

    def __init__(self, page_size: int, num_pages: int, max_tokens: int, vocab: int) -> None:
        self.page_size, self.num_pages = page_size, num_pages
        self.max_tokens, self.vocab_size = max_tokens, vocab
        self._logits = np.broadcast_to(np.zeros(vocab, np.float32), (max_tokens, vocab))
        self._next = np.zeros(0, np.int32)

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        self._next = batch.positions[batch.logit_rows] % self.vocab_size
        return self._logits[: len(batch.logit_rows)]

    def argmax(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        return self._next[rows]

    def run(self, entry: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise LookupError(entry)

    def close(self) -> None:
        pass
