"""All inputs of a step in one block of int32: written here, copied to the device at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from ...device import SAMPLED_ROW, STEP_FIELDS, Int32s, StepBatch
from .step_sizes import StepSizes

INT32_MAX, UINT32_MAX = 2**31 - 1, 2**32 - 1
ALIGNED_WORDS = 32
"""Each input starts at a multiple of 128 bytes: kernels are promised aligned pointers."""
DRAW_FIELDS = tuple(name for name in SAMPLED_ROW.names or () if name != "row")
"""How each row of logits becomes a token: inputs of the program "sample"."""
_DRAW_BYTES = 8


class StepLayout:
    """Where each input of one class of steps lies in the block, and which values it may have."""

    def __init__(self, sizes: StepSizes, page_size: int, num_pages: int, vocab_size: int) -> None:
        self.sizes = sizes
        tokens, seqs, pages, rows = sizes
        counts = (tokens, tokens, tokens, seqs + 1, seqs, seqs * pages, rows)
        bounds = (
            vocab_size - 1, INT32_MAX, min(num_pages * page_size - 1, INT32_MAX), tokens,
            min(pages * page_size, INT32_MAX), num_pages - 1, max(0, tokens - 1),
        )  # fmt: skip
        self.places: dict[str, tuple[int, int]] = {}
        """First word and number of words of each input."""
        at = 0
        for name, count in zip(STEP_FIELDS, counts, strict=True):
            self.places[name] = (at, count)
            at = _aligned(at + count)
        self.num_words = at
        # Between two inputs lies whatever other layouts have left there.
        self.limits = np.full(at, UINT32_MAX, np.uint32)
        """Highest value of each word; a negative one is high as well."""
        for name, bound in zip(STEP_FIELDS, bounds, strict=True):
            first, count = self.places[name]
            self.limits[first : first + count] = bound
        for name in DRAW_FIELDS:
            self.places[name] = (at, rows * _DRAW_BYTES // 4)
            at = _aligned(at + rows * _DRAW_BYTES // 4)
        self.num_words_with_draws = at

    def inputs(self, address: int) -> dict[str, tuple[int, int]]:
        """Address and bytes of each input when the block is at `address`."""
        places = self.places.items()
        return {name: (address + 4 * first, 4 * count) for name, (first, count) in places}


def _aligned(words: int) -> int:
    return -(-words // ALIGNED_WORDS) * ALIGNED_WORDS


class StagedStep:
    """Views of a block in pinned memory, one for each input of a layout."""

    def __init__(self, layout: StepLayout, block: NDArray[np.int32], where: str) -> None:
        self.layout = layout
        self._where = where
        self._unsigned = block[: layout.num_words].view(np.uint32)
        self._is_outside = np.zeros(layout.num_words, np.bool_)
        self._views = {
            name: block[first : first + count] for name, (first, count) in layout.places.items()
        }
        self._vectors = [self._views[name] for name in ("token_ids", "positions", "slots")]
        self._starts = self._views["query_start"]
        self._lens = self._views["seq_lens"]
        self._rows = self._views["logit_rows"]
        self._table = self._views["page_table"].reshape(layout.sizes.seqs, layout.sizes.pages)

    def fill(self, batch: StepBatch, sizes: StepSizes) -> None:
        """Copy a batch in, padded: extra tokens write to slot 0, extra sequences are empty."""
        tokens, seqs, pages, rows = sizes
        values = (batch.token_ids, batch.positions, batch.slots)
        for view, array in zip(self._vectors, values, strict=True):
            view[:tokens] = array
            view[tokens:] = 0
        self._starts[: seqs + 1] = batch.query_start
        self._starts[seqs + 1 :] = batch.query_start[seqs]
        self._lens[:seqs] = batch.seq_lens
        self._lens[seqs:] = 0
        self._rows[:rows] = batch.logit_rows
        self._rows[rows:] = 0
        self._table[:seqs, :pages] = batch.page_table
        self._table[:seqs, pages:] = 0
        self._table[seqs:] = 0

    def check(self, sizes: StepSizes, num_ahead: int = 0) -> None:
        """Refuse values that would make a kernel read or write foreign memory.

        `num_ahead` rows of the step before may stand in for tokens: ids down to ``-num_ahead``.
        """
        tokens, seqs, _, _ = sizes
        np.greater(self._unsigned, self.layout.limits, out=self._is_outside)
        ids = self._vectors[0]
        if num_ahead and ids.min() >= -num_ahead:
            self._is_outside[: len(ids)] &= ids >= 0
        starts, lens = self._starts[: seqs + 1], self._lens[:seqs]
        # Kernels walk the rows of each sequence, so the starts must grow, by at most its length.
        counts = starts[1:] - starts[:-1]
        is_sound = (
            not self._is_outside.any()
            and starts[seqs] <= tokens
            and counts.min() >= 0
            and (counts <= lens).all()
            and (sizes.rows == 0 or self._rows.max() < tokens)
        )
        if not is_sound:
            self._explain(sizes, num_ahead)

    def _explain(self, sizes: StepSizes, num_ahead: int) -> None:
        """The sentence for the first value that is outside."""
        tokens, seqs, _, _ = sizes
        for name in STEP_FIELDS:
            first, _ = self.layout.places[name]
            values = self._views[name]
            low = -num_ahead if name == "token_ids" else 0
            high = int(self.layout.limits[first]) if len(values) else 0
            high = min(high, tokens - 1) if name == "logit_rows" else high
            high = min(high, tokens) if name == "query_start" else high
            outside = np.flatnonzero((values < low) | (values > high))
            if len(outside):
                raise DeviceError(
                    f"{self._where}: step input {name}: expected values in {low}..{high},"
                    f" got {values[outside[0]]} at {outside[0]}"
                )
        starts, lens = self._starts[: seqs + 1].tolist(), self._lens[:seqs].tolist()
        raise DeviceError(
            f"{self._where}: step: expected query_start to grow by at most seq_lens,"
            f" got {starts[:20]} and {lens[:20]}"
        )

    def fill_draws(
        self, rows: NDArray[np.void], dtypes: Mapping[str, np.dtype[np.generic]]
    ) -> None:
        """How the rows become tokens; rows that are not named take their likeliest one."""
        count = self.layout.sizes.rows
        for name, dtype in dtypes.items():
            view = self._views[name].view(dtype)[:count]
            view[:] = LIKELIEST[name]
            view[rows["row"]] = rows[name]


LIKELIEST: dict[str, float] = {
    "top_k": 1, "temperature": 1.0, "lowest": -np.inf, "top_p": 1.0, "uniform": 0.0,
}  # fmt: skip


def sizes_of(batch: StepBatch, max_tokens: int, where: str) -> StepSizes:
    """Sizes of a well-formed batch."""
    num_tokens, num_rows = len(batch.token_ids), len(batch.logit_rows)
    num_seqs, num_pages = batch.page_table.shape if batch.page_table.ndim == 2 else (-1, -1)
    shapes = (
        (num_tokens,), (num_tokens,), (num_tokens,), (num_seqs + 1,), (num_seqs,),
        (num_seqs, num_pages), (num_rows,),
    )  # fmt: skip
    for name, array, shape in zip(STEP_FIELDS, _arrays(batch), shapes, strict=True):
        if array.shape != shape or array.dtype != np.int32:
            raise DeviceError(
                f"{where}: step input {name}: expected int32 of shape {shape},"
                f" got {array.dtype} of shape {array.shape}"
            )
    if not 1 <= num_tokens <= max_tokens or num_seqs < 1:
        raise DeviceError(
            f"{where}: step: expected 1 to {max_tokens} tokens and at least one sequence,"
            f" got {num_tokens} and {num_seqs}"
        )
    return StepSizes(num_tokens, num_seqs, num_pages, num_rows)


def _arrays(batch: StepBatch) -> tuple[Int32s, ...]:
    return (
        batch.token_ids, batch.positions, batch.slots, batch.query_start, batch.seq_lens,
        batch.page_table, batch.logit_rows,
    )  # fmt: skip
