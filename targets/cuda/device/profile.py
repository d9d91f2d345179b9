"""Where the time of a step goes: events around every launch, no graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .driver import Driver, Handle


@dataclass(frozen=True)
class CallTime:
    """The time of one call of one bucket, over all steps since the profile began."""

    bucket: int
    kernel: str
    op: str
    nanoseconds: int


class LaunchTimer:
    """Times launches one by one: each waits for the one before, and an event costs about 1 µs."""

    def __init__(self, driver: Driver, stream: Handle) -> None:
        self._driver = driver
        self._stream = stream
        self._events: list[Handle] = []
        self._times: dict[tuple[int, int, str, str], int] = {}

    def run(
        self, launches: Sequence[Handle], names: Sequence[tuple[str, str]], bucket: int
    ) -> None:
        """Queue launches, wait for them and add up what each took; `names` has (kernel, op)."""
        while len(self._events) <= len(launches):
            self._events.append(self._driver.make_event(has_time=True))
        self._driver.record(self._events[0], self._stream)
        for launch, event in zip(launches, self._events[1:], strict=False):
            self._driver.launch([launch])
            self._driver.record(event, self._stream)
        for number, (kernel, op) in enumerate(names):
            passed = self._driver.milliseconds(self._events[number], self._events[number + 1])
            key = (bucket, number, kernel, op)
            self._times[key] = self._times.get(key, 0) + round(passed * 1e6)

    def times(self) -> list[CallTime]:
        """What was added up, in the order of the calls."""
        ordered = sorted(self._times.items(), key=lambda item: item[0][:2])
        return [CallTime(bucket, kernel, op, ns) for (bucket, _, kernel, op), ns in ordered]

    def close(self) -> None:
        """Free the events."""
        for event in self._events:
            self._driver.free_event(event)
        self._events.clear()
