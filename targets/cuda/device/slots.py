"""Pinned memory of the steps in flight: inputs on their way in, tokens on their way out."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ...device import Int32s
from .driver import Driver, Handle, Pinned
from .step_layout import StagedStep, StepLayout

MAX_IN_FLIGHT = 2
NUM_SLOTS = MAX_IN_FLIGHT + 1
"""One more than in flight: the host still reads the tokens of the one before."""
MAX_STAGED = 256
"""Layouts whose views a slot keeps: some have megabytes."""
WORD = 4


class Slot:
    """One step's pinned memory; its event says when the device is done with it."""

    def __init__(self, driver: Driver, number: int, ids: Pinned) -> None:
        self.number = number
        self._driver = driver
        self._inputs: Pinned | None = None
        self._choices: Pinned | None = None
        self.ids_address = ids.address
        self._id_array: Int32s = ids.array.view(np.int32)
        self.inputs_address = 0
        """Of what was staged last."""
        self._event = driver.make_event()
        self._staged: dict[StepLayout, StagedStep] = {}
        self._is_recorded = False
        self.num_rows = 0

    def stage(self, layout: StepLayout) -> StagedStep:
        """Where the inputs of a step of this layout are written."""
        num_bytes = WORD * layout.num_checked_words
        if self._inputs is None or len(self._inputs.array) < num_bytes:
            self._grow(num_bytes)
        staged = self._staged.get(layout)
        if staged is None:
            assert self._inputs is not None
            if len(self._staged) >= MAX_STAGED:
                self._staged.clear()
            block: NDArray[np.int32] = self._inputs.array.view(np.int32)
            staged = self._staged[layout] = StagedStep(layout, block, self._driver.where)
        return staged

    def _grow(self, num_bytes: int) -> None:
        self._staged.clear()
        if self._inputs is not None:
            self._driver.free_pinned(self._inputs)
        self._inputs = self._driver.allocate_pinned(-(-num_bytes * 3 // 2 // 8) * 8, "inputs")
        self.inputs_address = self._inputs.address

    def choices(self, num_bytes: int) -> Pinned:
        """Room for how the step's tokens are chosen."""
        if self._choices is None or len(self._choices.array) < num_bytes:
            if self._choices is not None:
                self._driver.free_pinned(self._choices)
            self._choices = self._driver.allocate_pinned(-(-num_bytes * 3 // 2 // 8) * 8, "choices")
        return self._choices

    def record(self, num_rows: int, stream: Handle) -> None:
        """All work on this slot is queued."""
        self.num_rows = num_rows
        self._driver.record(self._event, stream)
        self._is_recorded = True

    def wait(self) -> None:
        """Until the device is done with this slot."""
        if self._is_recorded:
            self._driver.wait(self._event)
            self._is_recorded = False

    def ids(self) -> Int32s:
        """The tokens [L] of the step, once they are here."""
        self.wait()
        return self._id_array[: self.num_rows]

    def close(self) -> None:
        self._staged.clear()
        self._id_array = np.zeros(0, np.int32)
        if self._inputs is not None:
            self._driver.free_pinned(self._inputs)
            self._inputs = None
        if self._choices is not None:
            self._driver.free_pinned(self._choices)
            self._choices = None
        self._driver.free_event(self._event)


class SlotRing:
    """Slots in turn."""

    def __init__(self, driver: Driver, max_rows: int) -> None:
        self._driver = driver
        self.max_rows = max_rows
        size = WORD * max_rows
        self._landing = driver.allocate_pinned(NUM_SLOTS * size, "tokens")
        parts = [(start, start + size) for start in range(0, NUM_SLOTS * size, size)]
        self._slots = [
            Slot(driver, number, Pinned(self.landing[0] + low, self._landing.array[low:high]))
            for number, (low, high) in enumerate(parts)
        ]
        self._next = 0

    @property
    def landing(self) -> tuple[int, int]:
        """Address and bytes of the tokens of all slots."""
        return self._landing.address, NUM_SLOTS * WORD * self.max_rows

    def take(self, in_flight: Collection[Slot]) -> Slot:
        """The next slot, once the device is done with its last step.

        Steps that were refused leave gaps, so the tokens of one `in_flight` may lie in the next.
        """
        while self._slots[self._next] in in_flight:
            self._next = (self._next + 1) % NUM_SLOTS
        return self._take(self._next)

    def take_after(self, slot: Slot) -> Slot:
        """The one that follows a slot, which is the only one that may be in flight."""
        return self._take((slot.number + 1) % NUM_SLOTS)

    def _take(self, number: int) -> Slot:
        slot = self._slots[number]
        slot.wait()
        self._next = (number + 1) % NUM_SLOTS
        return slot

    def close(self) -> None:
        for slot in self._slots:
            slot.close()
        self._slots = []
        self._driver.free_pinned(self._landing)
