"""Tokens of a step that was queued before anybody knew how to choose them.

The programs "adjust_logits" and "mask_logits" change rows of its logits, then "sample" chooses. All
they read goes in by one copy into memory of its own; its lists are padded to powers of two, so that
launches can be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from ...device import LogitChanges
from .bound_program import BoundProgram, Launches
from .draws import Draws
from .driver import Driver, Handle
from .memory import DeviceMemory, aligned
from .recipes import LOGITS
from .slots import Slot
from .step_sizes import power_of_two

ADJUST, MASK = "adjust_logits", "mask_logits"
CHANGES = ("changes", "")
MAX_KEPT = 256
"""Sets of launches: sizes come in powers of two, so there are few."""
_WORD = 4
_ALL = np.uint32(0xFFFFFFFF)


class ChangeSizes(NamedTuple):
    """Symbols of the two programs."""

    changed: int
    biased: int
    seen: int
    forbidden: int
    masked: int


class ChangeLayout:
    """Where each array of changes lies, for sizes that are not below them."""

    def __init__(self, sizes: ChangeSizes, mask_words: int) -> None:
        self.sizes = sizes
        starts = sizes.changed + 1
        self.words = {
            "changed_rows": sizes.changed, "bias_starts": starts, "bias_ids": sizes.biased,
            "bias": sizes.biased, "history_starts": starts, "history_ids": sizes.seen,
            "counts": sizes.seen, "penalties": 3 * sizes.changed, "forbidden_starts": starts,
            "forbidden_ids": sizes.forbidden, "masked_rows": sizes.masked,
            "masks": sizes.masked * mask_words,
        }  # fmt: skip
        self.places: dict[str, tuple[int, int]] = {}
        """First byte and bytes of each array."""
        end = 0
        for name, words in self.words.items():
            self.places[name] = (end, _WORD * words)
            end = aligned(end + _WORD * words)
        self.num_bytes = end

    def fill(self, block: NDArray[np.uint8], changes: LogitChanges) -> None:
        """Write the changes; what they do not fill changes nothing."""
        given = _arrays(changes)
        for name, (first, num_bytes) in self.places.items():
            array = given[name].reshape(-1)
            words = block[first : first + num_bytes].view(array.dtype)
            words[: len(array)] = array
            # rows beyond the last have empty lists, and masks that allow everything
            padding = _ALL if name == "masks" else array[-1] if name.endswith("_starts") else 0
            words[len(array) :] = padding


class Choices:
    """Changes in, tokens into the region "ids" and to the host."""

    def __init__(
        self,
        driver: Driver,
        stream: Handle,
        memory: DeviceMemory,
        programs: Mapping[str, BoundProgram],
        draws: Draws,
        vocab_size: int,
    ) -> None:
        self._driver, self._stream, self._memory = driver, stream, memory
        self._programs, self._draws = programs, draws
        self._vocab_size = vocab_size
        self._mask_words = -(-vocab_size // 32)
        self._kept: dict[tuple[str, ChangeSizes], Launches] = {}
        self._generation = memory.generation

    def queue(
        self, slot: Slot, rows: NDArray[np.void], num_padded: int, changes: LogitChanges
    ) -> None:
        """Queue all of it; `slot` is that of the step."""
        self._check(changes, len(rows))
        layout = ChangeLayout(_padded(changes), self._mask_words)
        after = aligned(self._draws.num_bytes(num_padded))
        pinned = slot.choices(after + layout.num_bytes)
        self._draws.fill(pinned.array, rows, num_padded)
        layout.fill(pinned.array[after:], changes)
        launches = [*self._launches(layout), self._draws.prepared(num_padded)]
        self._draws.copy_in(pinned.address, num_padded)
        if layout.num_bytes:
            at = self._memory.address(CHANGES)
            self._driver.copy_in(at, pinned.address + after, layout.num_bytes, self._stream)
        for some in launches:
            self._driver.launch(some.calls)

    def _launches(self, layout: ChangeLayout) -> list[Launches]:
        sizes = layout.sizes
        if self._memory.num_bytes(CHANGES) < layout.num_bytes:
            self._grow(layout.num_bytes)
        if self._generation != self._memory.generation or len(self._kept) > MAX_KEPT:
            self._kept.clear()
            self._generation = self._memory.generation
        names = [n for n, count in ((ADJUST, sizes.changed), (MASK, sizes.masked)) if count]
        return [self._prepared(name, layout) for name in names]

    def _grow(self, num_bytes: int) -> None:
        """Larger memory for changes alone: nothing else that was prepared reads it."""
        self._kept.clear()
        if CHANGES in self._memory:
            self._driver.synchronize(self._stream)
            self._memory.free(CHANGES)
        self._memory.allocate(CHANGES, aligned(num_bytes * 3 // 2))

    def _prepared(self, name: str, layout: ChangeLayout) -> Launches:
        found = self._kept.get((name, layout.sizes))
        if found is None:
            start = self._memory.address(CHANGES)
            places = {n: (start + first, size) for n, (first, size) in layout.places.items()}
            places["logits"] = (self._memory.address(LOGITS), self._memory.num_bytes(LOGITS))
            program = self._programs[name]
            symbols = layout.sizes._asdict()
            wanted = {symbol: symbols[symbol] for symbol in program.code.own_symbols}
            found = self._kept[name, layout.sizes] = program.prepare(wanted, places)
        return found

    def _check(self, changes: LogitChanges, num_rows: int) -> None:
        """Refuse what would make a kernel read or write foreign memory."""
        where = self._driver.where
        for name, rows in (("rows", changes.rows), ("masked_rows", changes.masked_rows)):
            values = rows.tolist()
            if len(set(values)) != len(values) or not set(values) <= set(range(num_rows)):
                raise DeviceError(
                    f"{where}: {name}: expected rows below {num_rows}, once each, got {values[:20]}"
                )
        count = len(changes.rows)
        for starts, *arrays in (
            (changes.bias_starts, changes.bias_ids, changes.bias),
            (changes.history_starts, changes.history_ids, changes.counts),
            (changes.forbidden_starts, changes.forbidden_ids),
        ):
            sizes = {len(array) for array in arrays}
            is_sound = len(starts) == count + 1 and len(sizes) == 1 and starts[0] == 0
            if not is_sound or starts[-1] not in sizes or (np.diff(starts) < 0).any():
                raise DeviceError(
                    f"{where}: changes: expected {count} lists one after the other,"
                    f" got starts {starts[:20].tolist()} of {sorted(sizes)} entries"
                )
        shapes = changes.penalties.shape, changes.masks.shape
        if shapes != ((count, 3), (len(changes.masked_rows), self._mask_words)):
            raise DeviceError(f"{where}: changes: got penalties and masks of shapes {shapes}")


def _padded(changes: LogitChanges) -> ChangeSizes:
    counts = (
        len(changes.rows), len(changes.bias_ids), len(changes.history_ids),
        len(changes.forbidden_ids), len(changes.masked_rows),
    )  # fmt: skip
    changed, biased, seen, forbidden, masked = (power_of_two(n) if n else 0 for n in counts)
    # a list that nobody has still needs an address
    return ChangeSizes(changed, max(1, biased), max(1, seen), max(1, forbidden), masked)


def _arrays(changes: LogitChanges) -> dict[str, NDArray[np.generic]]:
    names = vars(changes)
    return {"changed_rows": names["rows"], **{n: a for n, a in names.items() if n != "rows"}}
