"""Time limits of requests: which have passed by a given time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from .answer import Live

_SLACK = 64


class Deadlines:
    """Limits in order of time. Entries of ended answers are dropped in bulk, so it stays small."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, bool, Live]] = []
        """A heap by time; those of ended answers too, for a while."""
        self._order = itertools.count()

    def add(self, live: Live, when: float, *, only_waiting: bool) -> None:
        """End ``live`` at ``when``; with ``only_waiting`` only if it has not started by then."""
        heapq.heappush(self.entries, (when, next(self._order), only_waiting, live))

    def passed(self, now: float) -> Iterator[Live]:
        """Answers whose limit has passed by ``now``, each entry once."""
        while self.entries and self.entries[0][0] <= now:
            _, _, only_waiting, live = heapq.heappop(self.entries)
            if live.timing.finished is None and not (only_waiting and live.timing.started):
                yield live

    def prune(self, num_live: int) -> None:
        """Forget ended answers when they are most of the entries."""
        if len(self.entries) > 4 * num_live + _SLACK:
            self.entries = [entry for entry in self.entries if entry[3].timing.finished is None]
            heapq.heapify(self.entries)
