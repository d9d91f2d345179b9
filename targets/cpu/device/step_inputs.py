"""Checks of a step's arrays: a wrong index would make a kernel read or write foreign memory."""

from __future__ import annotations

import numpy as np

from ....errors import ArtifactError, DeviceError
from ...device import STATE_SLOTS, STEP_FIELDS, Int32s, StepBatch, StepSizes, arrays_of
from .library import Library
from .plan_code import PlanCode

SYMBOLS = frozenset({*StepSizes._fields, "num_pages"})
INT32_MAX = 2**31 - 1


def check_step_program(plan: PlanCode, page_size: int) -> None:
    """Refuse a step program that wants other inputs than a step has."""
    inputs = {buffer.name: buffer.dtype for buffer in plan.inputs}
    outputs = [buffer.dtype for buffer in plan.outputs]
    if (
        set(inputs) - {*STEP_FIELDS, STATE_SLOTS}
        or set(inputs.values()) - {"i32"}
        or outputs != ["f32"]
    ):
        raise ArtifactError(
            f"cpu: program {plan.entry}: expected int32 inputs out of {STEP_FIELDS} and one f32"
            f" output, got {inputs} and {outputs}"
        )
    if set(plan.own_symbols) - SYMBOLS or page_size < 1:
        raise ArtifactError(
            f"cpu: program {plan.entry}: expected symbols out of {sorted(SYMBOLS)} and a"
            f" page_size, got {plan.own_symbols} and {page_size}"
        )


def checked_slots(batch: StepBatch, num_slots: int) -> Int32s:
    """The slots of a batch's sequences: each another, none outside, or two would share a state."""
    slots, seqs = batch.state_slots, len(batch.seq_lens)
    if slots.shape != (seqs,) or slots.dtype != np.int32:
        raise DeviceError(
            f"cpu: step input {STATE_SLOTS}: expected int32 of ({seqs},),"
            f" got {slots.dtype} of shape {slots.shape}"
        )
    found = set(slots.tolist())
    if (
        not slots.flags.c_contiguous
        or len(found) != seqs
        or not 1 <= min(found) <= max(found) < num_slots
    ):
        raise DeviceError(
            f"cpu: step input {STATE_SLOTS}: expected different values in 1..{num_slots - 1},"
            f" got {slots.tolist()[:20]}"
        )
    return slots


class ValueChecker:
    """Bounds of each input's values for one executable."""

    def __init__(self, library: Library, page_size: int, num_pages: int, vocab_size: int) -> None:
        self._find_outside = library.find_outside
        self._is_sound = library.is_step_sound
        self._page_size = page_size
        self._num_pages = num_pages
        self._vocab_size = vocab_size
        self._ranges = np.zeros((len(STEP_FIELDS), 4), np.int64)
        self._ranges_at = self._ranges.ctypes.data

    def check(self, batch: StepBatch, addresses: list[int], symbols: dict[str, int]) -> None:
        """Refuse a batch with a value that points outside; arrays are in `STEP_FIELDS` order."""
        bounds = self._bounds(symbols)
        if self._is_sound is not None:
            ranges = zip(addresses, arrays_of(batch), bounds, strict=True)
            self._ranges[:] = [(at, array.size, *bound) for at, array, bound in ranges]
            starts, lengths, seqs = addresses[3], addresses[4], symbols["seqs"]
            if self._is_sound(self._ranges_at, len(bounds), starts, lengths, seqs):
                return
        self._explain(batch, addresses, bounds)

    def _bounds(self, symbols: dict[str, int]) -> tuple[tuple[int, int], ...]:
        tokens = symbols["tokens"]
        slots = min(self._num_pages * self._page_size - 1, INT32_MAX)
        context = min(symbols["pages"] * self._page_size, INT32_MAX)
        return (
            (0, self._vocab_size - 1), (0, INT32_MAX), (0, slots), (0, tokens), (0, context),
            (0, self._num_pages - 1), (0, tokens - 1),
        )  # fmt: skip

    def _explain(
        self, batch: StepBatch, addresses: list[int], bounds: tuple[tuple[int, int], ...]
    ) -> None:
        """The same checks one by one, for the sentence, or with a library of the first release."""
        fields = zip(STEP_FIELDS, arrays_of(batch), addresses, bounds, strict=True)
        for name, array, address, (low, high) in fields:
            index = self._find_outside(address, array.size, low, high)
            if index >= 0:
                raise DeviceError(
                    f"cpu: step input {name}: expected values in {low}..{high},"
                    f" got {array.reshape(-1)[index]} at {index}"
                )
        # Kernels walk the rows of each sequence, so the starts must grow, by at most its length.
        lengths = np.diff(batch.query_start)
        if (lengths < 0).any() or (lengths > batch.seq_lens).any():
            raise DeviceError(
                "cpu: step: expected query_start to grow by at most seq_lens,"
                f" got {batch.query_start.tolist()[:20]} and {batch.seq_lens.tolist()[:20]}"
            )
