"""Who waits, and who is next: the aged in order of arrival, then by priority, then by policy.

A request that has waited `Limits.aging_steps` steps counts as aged. Requests age in order of
arrival, so nothing can come before an aged one but what arrived earlier: no priority and no cached
prefix of others starves anybody.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from .request import Request

Rank = tuple[bool, int, int]
"""Orders requests by who gives way last; see `rank_of`."""


def is_aged(request: Request, step: int, aging_steps: int) -> bool:
    """Whether only earlier arrivals may come before this request, at the start of ``step``."""
    return step - request.arrival_step >= aging_steps


def rank_of(request: Request, step: int, aging_steps: int) -> Rank:
    """Sorts aged requests by arrival, and the others after them by priority and arrival."""
    if is_aged(request, step, aging_steps):
        return False, 0, request.arrival
    return True, request.priority, request.arrival


class _Line:
    """Requests in order of arrival. Most are added at the end and leave near the front."""

    def __init__(self) -> None:
        self._arrivals: list[int] = []
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        place = bisect_left(self._arrivals, request.arrival)
        self._arrivals.insert(place, request.arrival)
        self.requests.insert(place, request)

    def remove(self, request: Request) -> None:
        place = bisect_left(self._arrivals, request.arrival)
        del self._arrivals[place], self.requests[place]


class WaitingQueue:
    """The requests that wait; iterating gives their ids in order of arrival.

    >>> queue = WaitingQueue()
    >>> for arrival, (id, priority) in enumerate([("a", 0), ("b", -1), ("c", 0)]):
    ...     request = Request(id, [1], 1, priority=priority)
    ...     request.arrival = request.arrival_step = arrival
    ...     queue.add(request)
    >>> [request.id for request in queue.first(3, step=0, aging_steps=100)]
    ['b', 'a', 'c']
    >>> [request.id for request in queue.first(2, step=100, aging_steps=100)]
    ['a', 'b']
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Request] = {}
        self._line = _Line()
        self._classes: dict[int, _Line] = {}
        self.num_tokens = 0
        """Known tokens of all who wait."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __iter__(self) -> Iterator[str]:
        return iter([request.id for request in self._line.requests])

    def values(self) -> list[Request]:
        """Everyone, in order of arrival."""
        return list(self._line.requests)

    @property
    def oldest(self) -> Request | None:
        """The earliest arrival."""
        return self._line.requests[0] if self._line.requests else None

    def add(self, request: Request) -> None:
        """Queue at the place of its arrival, which for a preempted request is near the front."""
        self._by_id[request.id] = request
        self._line.add(request)
        self._classes.setdefault(request.priority, _Line()).add(request)
        self.num_tokens += request.num_tokens

    def pop(self, request_id: str) -> Request | None:
        """Take a request out; None when it is not here."""
        request = self._by_id.pop(request_id, None)
        if request is None:
            return None
        self._line.remove(request)
        line = self._classes[request.priority]
        line.remove(request)
        if not line.requests:
            del self._classes[request.priority]
        self.num_tokens -= request.num_tokens
        return request

    def first(self, count: int, step: int, aging_steps: int) -> list[Request]:
        """Up to ``count`` requests by rank; costs no more for a longer queue."""
        found: list[Request] = []
        for request in self._line.requests:
            if len(found) == count or not is_aged(request, step, aging_steps):
                break
            found.append(request)
        num_aged = len(found)
        for priority in sorted(self._classes):
            for request in self._classes[priority].requests[: count + num_aged]:
                if len(found) >= count:
                    return found
                if not is_aged(request, step, aging_steps):
                    found.append(request)
        return found
