"""Physical KV pages: who owns which. Chip-independent; a target only decides what a page holds.

Every page is in exactly one state, so ``free + cached + held == total`` always:

    free --allocate--> held --publish--> cached --evict--> free
                       held --release------------------->  free

``held`` pages belong to one request, ``cached`` pages to the radix tree. Page 0 is reserved for
padded rows and never handed out. A `Page` carries the generation it was allocated in: a stale
handle is caught the moment it is used, even if the page has a new owner by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

RESERVED, FREE, HELD, CACHED = range(4)
_STATE_NAMES = ("reserved", "free", "held", "cached")


class Page(NamedTuple):
    """A page and the allocation it stems from."""

    number: int
    generation: int


class PageError(AssertionError):
    """The runtime broke its own page accounting; never the fault of a request."""


class PagePool:
    """Hands out pages; every change is all or nothing.

    >>> pool = PagePool(4)
    >>> pages = pool.allocate(2)
    >>> pool.num_free, pool.num_held
    (1, 2)
    >>> pool.allocate(2) is None
    True
    >>> pool.release(pages)
    >>> pool.num_free
    3
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise PageError(
                f"page pool: expected 2 pages or more (one is reserved), got {num_pages}"
            )
        self.num_pages = num_pages
        self._states = bytearray([RESERVED]) + bytearray([FREE]) * (num_pages - 1)
        self._generations = [0] * num_pages
        # A stack with low pages on top: a small load touches little memory.
        self._free = list(range(num_pages - 1, 0, -1))
        self.num_cached = 0

    @property
    def total(self) -> int:
        """Pages that can be handed out."""
        return self.num_pages - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.total - self.num_free - self.num_cached

    def allocate(self, count: int) -> list[Page] | None:
        """``count`` pages, or None and no change when there are not enough."""
        if count > len(self._free):
            return None
        return [self._take() for _ in range(count)]

    def release(self, pages: Sequence[Page]) -> None:
        """Held pages become free."""
        self._move(pages, HELD, FREE)
        self._free.extend(page.number for page in reversed(pages))

    def publish(self, pages: Sequence[Page]) -> None:
        """Held pages become the radix tree's."""
        self._move(pages, HELD, CACHED)
        self.num_cached += len(pages)

    def evict(self, pages: Sequence[Page]) -> None:
        """Pages that left the radix tree become free."""
        self._move(pages, CACHED, FREE)
        self.num_cached -= len(pages)
        self._free.extend(page.number for page in reversed(pages))

    def free_numbers(self) -> list[int]:
        """Numbers of the free pages (for tests and audits)."""
        return sorted(self._free)

    def check(self, cached: Sequence[Page], held: Sequence[Page]) -> None:
        """Raise `PageError` unless free, ``cached`` and ``held`` are a partition of the pages."""
        self._require(cached, CACHED)
        self._require(held, HELD)
        listed = [*self._free, *(page.number for page in cached), *(page.number for page in held)]
        if sorted(listed) != list(range(1, self.num_pages)):
            raise PageError(f"page pool: no partition of {self.num_pages} pages: {sorted(listed)}")

    def _take(self) -> Page:
        index = self._free.pop()
        self._states[index] = HELD
        return Page(index, self._generations[index])

    def _move(self, pages: Sequence[Page], source: int, to: int) -> None:
        self._require(pages, source)
        for index, _ in pages:
            self._states[index] = to
            if to == FREE:
                self._generations[index] += 1

    def _require(self, pages: Sequence[Page], state: int) -> None:
        for index, generation in pages:
            if self._states[index] != state or self._generations[index] != generation:
                raise PageError(
                    f"page pool: expected page {index} of generation {generation} to be "
                    f"{_STATE_NAMES[state]}, got {_STATE_NAMES[self._states[index]]} "
                    f"of generation {self._generations[index]}"
                )
        if len(pages) > 1 and len({page.number for page in pages}) != len(pages):
            raise PageError(f"page pool: a page is named twice in {list(pages)}")
