"""All inputs of a step in one block of int32: written here, copied to the device at once.

A step that follows another, each sequence a token further on, has no block: "place_tokens" moves
the inputs on where they lie (`kernels/step_inputs.py`), and `turn` tells it to.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from ...device import SAMPLED_ROW, STEP_FIELDS, StepBatch, StepSizes

INT32_MAX, UINT32_MAX = 2**31 - 1, 2**32 - 1
ALIGNED_WORDS = 32
"""Each input starts at a multiple of 128 bytes: kernels are promised aligned pointers."""
DRAW_FIELDS = tuple(name for name in SAMPLED_ROW.names or () if name != "row")
"""How each row of logits becomes a token: inputs of the program "sample"."""
TURN, TURN_WORDS = "turn", 8
IS_NEXT, SLOT, LANDS = 0, 2, 5
"""Words of it, as in `kernels/step_inputs.py`."""
COUNTS, LENS_BEFORE, RAISED_IDS = "counts", "lens before", "raised ids"
_DRAW_BYTES = 8


class StepLayout:
    """Where each input of one class of steps lies in the block, and which values it may have.

    After the inputs come, for the host alone, numbers that are checked like inputs: tokens of each
    sequence, its length without them, and token ids moved up so that none is negative.
    """

    def __init__(self, sizes: StepSizes, page_size: int, num_pages: int, vocab_size: int) -> None:
        self.sizes = sizes
        self.vocab_size = vocab_size
        tokens, seqs, pages, rows = sizes
        counts = (tokens, tokens, tokens, seqs + 1, seqs, seqs * pages, rows)
        slots = min(num_pages * page_size - 1, INT32_MAX)
        context = min(pages * page_size, INT32_MAX)
        bounds = (
            UINT32_MAX, INT32_MAX, slots, tokens, context, num_pages - 1, max(0, tokens - 1),
        )  # fmt: skip
        self.places: dict[str, tuple[int, int]] = {}
        """First word and number of words of each input."""
        self._end = 0
        self._place(TURN, TURN_WORDS)
        for name, count in zip(STEP_FIELDS, counts, strict=True):
            self._place(name, count)
        self.num_words = self._end
        for name in DRAW_FIELDS:
            self._place(name, rows * _DRAW_BYTES // 4)
        self.num_words_with_draws = self._end
        for name, count in ((COUNTS, seqs), (LENS_BEFORE, seqs), (RAISED_IDS, tokens)):
            self._place(name, count)
        self.num_checked_words = self._end
        # Between two inputs lies whatever other layouts have left there.
        self.limits = np.full(self._end, UINT32_MAX, np.uint32)
        """Highest value of each word; a negative one is high as well."""
        for name, bound in zip(STEP_FIELDS, bounds, strict=True):
            self._limits(name)[:] = bound
        self._limits(COUNTS)[:] = tokens
        self._limits(LENS_BEFORE)[:] = INT32_MAX
        self.ahead = np.array(-1, np.int32)
        """Rows of the step before that may stand in for tokens: ids may be as low as minus that."""

    def _place(self, name: str, count: int) -> None:
        self.places[name] = (self._end, count)
        self._end = -(-(self._end + count) // ALIGNED_WORDS) * ALIGNED_WORDS

    def _limits(self, name: str) -> NDArray[np.uint32]:
        first, count = self.places[name]
        return self.limits[first : first + count]

    def set_ahead(self, num_ahead: int) -> None:
        """Set `ahead`, and the highest raised id that goes with it."""
        if num_ahead != self.ahead:
            self._limits(RAISED_IDS)[:] = self.vocab_size - 1 + num_ahead
            self.ahead[...] = num_ahead

    def inputs(self, address: int) -> dict[str, tuple[int, int]]:
        """Address and bytes of each input when the block is at `address`."""
        places = self.places.items()
        return {name: (address + 4 * first, 4 * count) for name, (first, count) in places}


def most_words(sizes: StepSizes) -> int:
    """Words that the block of a class takes at most, parameters of draws included."""
    tokens, seqs, pages, rows = sizes
    draws = len(DRAW_FIELDS) * rows * _DRAW_BYTES // 4
    gaps = ALIGNED_WORDS * (1 + len(STEP_FIELDS) + len(DRAW_FIELDS))
    return 3 * tokens + seqs * (pages + 2) + 1 + rows + draws + gaps


class StagedStep:
    """Views of a block in pinned memory, one for each input of a layout."""

    def __init__(self, layout: StepLayout, block: NDArray[np.int32], where: str) -> None:
        self.layout = layout
        self._where = where
        self._unsigned = block[: layout.num_checked_words].view(np.uint32)
        self._is_outside = np.zeros(layout.num_checked_words, np.bool_)
        self._views = {
            name: block[first : first + count] for name, (first, count) in layout.places.items()
        }
        seqs, pages = layout.sizes.seqs, layout.sizes.pages
        self._ids = self._views["token_ids"]
        self._starts = self._views["query_start"]
        self._lens = self._views["seq_lens"]
        self._rows = self._views["logit_rows"]
        self._table = self._views["page_table"].reshape(seqs, pages)
        self._between = (self._starts[1:], self._starts[:-1])
        self._counts, self._lens_before, self._raised = (
            self._views[name] for name in (COUNTS, LENS_BEFORE, RAISED_IDS)
        )
        self._cut(StepSizes(0, 0, 0, 0))

    def _cut(self, sizes: StepSizes) -> None:
        """Split the views into what a step of these sizes fills and the padding behind it."""
        tokens, seqs, pages, rows = self._sizes = sizes
        vectors = [self._views[name] for name in ("token_ids", "positions", "slots")]
        firsts = (*vectors, self._starts, self._lens, self._rows)
        counts = (tokens, tokens, tokens, seqs + 1, seqs, rows)
        self._filled = [view[:count] for view, count in zip(firsts, counts, strict=True)]
        tails = [v[tokens:] for v in vectors] + [self._lens[seqs:], self._rows[rows:]]
        tails += [self._table[:seqs, pages:], self._table[seqs:]]
        self._padding = [tail for tail in tails if tail.size]
        self._later_starts = self._starts[seqs + 1 :]
        self._real_table = self._table[:seqs, :pages]

    def fill(self, batch: StepBatch, sizes: StepSizes) -> None:
        """Copy a batch in, padded: extra tokens write to slot 0, extra sequences are empty."""
        if sizes != self._sizes:
            self._cut(sizes)
        ids, positions, slots, starts, lens, rows = self._filled
        ids[:] = batch.token_ids
        positions[:] = batch.positions
        slots[:] = batch.slots
        starts[:] = batch.query_start
        lens[:] = batch.seq_lens
        rows[:] = batch.logit_rows
        self._real_table[:] = batch.page_table
        if self._later_starts.size:
            self._later_starts[:] = starts[-1]
        for tail in self._padding:
            tail[:] = 0

    def take_turn(self, may_repeat: bool, slot: int, num_slots: int, slot_rows: int) -> None:
        """Say where the step's tokens land, and whether it may be moved on without the host."""
        num_moving = self._sizes.tokens if may_repeat else 0
        self._views[TURN][: LANDS + 1] = (0, num_moving, slot, num_slots, slot_rows, slot)

    def steps_left(self) -> int:
        """How many steps of one token a sequence may follow before a value is too high."""
        left = INT32_MAX
        for name in ("positions", "slots", "seq_lens"):
            first, _ = self.layout.places[name]
            words = slice(first, first + self._sizes.tokens)
            left = min(left, int((self.layout.limits[words] - self._unsigned[words]).min()))
        return left

    def check(self, sizes: StepSizes, num_ahead: int = 0) -> None:
        """Refuse values that would make a kernel read or write foreign memory.

        `num_ahead` rows of the step before may stand in for tokens: ids down to ``-num_ahead``.
        """
        layout = self.layout
        layout.set_ahead(num_ahead)
        np.add(self._ids, layout.ahead, out=self._raised)
        # Kernels walk the rows of each sequence, so the starts must grow, by at most its length.
        np.subtract(*self._between, out=self._counts)
        np.subtract(self._lens, self._counts, out=self._lens_before)
        np.greater(self._unsigned, layout.limits, out=self._is_outside)
        is_sound = not np.count_nonzero(self._is_outside)  # much faster than `any`
        if sizes.tokens < layout.sizes.tokens and is_sound:
            is_sound = self._starts[-1] <= sizes.tokens and (
                sizes.rows == 0 or self._rows.max() < sizes.tokens
            )
        if not is_sound:
            self._explain(sizes, num_ahead)

    def _explain(self, sizes: StepSizes, num_ahead: int) -> None:
        """The sentence for the first value that is outside."""
        tokens, seqs, _, _ = sizes
        for name in STEP_FIELDS:
            first, _ = self.layout.places[name]
            values = self._views[name]
            low, high = 0, int(self.layout.limits[first]) if len(values) else 0
            if name == "token_ids":
                low, high = -num_ahead, self.layout.vocab_size - 1
            elif name in ("logit_rows", "query_start"):
                high = tokens - (name == "logit_rows")
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
