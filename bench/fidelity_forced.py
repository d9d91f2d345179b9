"""Teacher forcing: an artifact's logits at every position of a sequence, straight on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np
from sglk.bench.fidelity_rows import Rows, rows_of
from sglk.runtime.capacity import slots_for
from sglk.runtime.selftest import target_name
from sglk.targets.artifact import Artifact
from sglk.targets.device import NO_SLOTS, StepBatch, slots_of
from sglk.targets.registry import open_device

CHUNK = 128
"""Tokens of a step: 25 MB of logits at a vocabulary of 49,152."""


class Forced:
    """An artifact with pages for one sequence of up to ``tokens`` tokens."""

    def __init__(
        self, path: Path, tokens: int, threads: int | None = None, device: str | None = None
    ) -> None:
        self._artifact = Artifact.open(path)
        target = cast(dict[str, int], self._artifact.manifest["target"])
        page = target["page_size"]
        self._executable = open_device(device or target_name(self._artifact)).load(
            self._artifact,
            num_pages=1 + -(-tokens // page),
            max_tokens=CHUNK,
            num_threads=threads,
            **slots_for(self._artifact, 1),
        )

    def rows(self, ids: Sequence[int], last: int) -> Rows:
        """The rows of all positions of ``ids``, and the whole row of position ``last``."""
        return rows_of(self._parts(ids), last)

    def _parts(self, ids: Sequence[int]) -> Iterator[np.ndarray]:
        for start in range(0, len(ids), CHUNK):
            batch = self._batch(ids, start, min(start + CHUNK, len(ids)))
            yield np.asarray(self._executable.step(batch))

    def _batch(self, ids: Sequence[int], start: int, stop: int) -> StepBatch:
        """Tokens ``start`` to ``stop`` of one sequence on pages 1, 2, ..."""
        page = self._executable.page_size
        span = np.arange(start, stop, dtype=np.int32)
        return StepBatch(
            token_ids=np.array(ids[start:stop], np.int32),
            positions=span,
            slots=span + np.int32(page),
            query_start=np.array([0, len(span)], np.int32),
            seq_lens=np.array([stop], np.int32),
            page_table=np.arange(1, 1 + -(-stop // page), dtype=np.int32)[None],
            logit_rows=np.arange(len(span), dtype=np.int32),
            state_slots=np.ones(1, np.int32) if slots_of(self._executable) else NO_SLOTS,
        )

    def close(self) -> None:
        self._executable.close()
        self._artifact.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
