"""Where the time of a step goes: events around every launch, no graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .driver import Driver, Handle

LAUNCH_SECONDS = 12e-6
"""What the host takes to queue a launch and an event, at most."""
WRITE_RATE = 3e12
"""Bytes per second that a chip writes, about."""
MOST_WRITES = 256


@dataclass(frozen=True)
class CallTime:
    """The time of one call of one bucket, over all steps since the profile began."""

    bucket: int
    kernel: str
    op: str
    nanoseconds: int


class TimedCall(NamedTuple):
    """A launch's number in its bucket, and its names."""

    number: int
    kernel: str
    op: str


class LaunchTimer:
    """Times launches one by one: each waits for the one before, and an event costs about 1 µs."""

    def __init__(self, driver: Driver, stream: Handle) -> None:
        self._driver = driver
        self._stream = stream
        self._events: list[Handle] = []
        self._times: dict[tuple[int, TimedCall], int] = {}

    def run(
        self,
        launches: Sequence[Handle],
        calls: Sequence[TimedCall],
        bucket: int,
        spare: tuple[int, int],
    ) -> None:
        """Queue launches, wait for them and add up what each took.

        `spare` is memory (address and bytes) that may be overwritten: the device does so while the
        host queues the launches, or it would wait for the host between short ones.
        """
        while len(self._events) <= len(launches):
            self._events.append(self._driver.make_event(has_time=True))
        self._keep_busy(len(launches) * LAUNCH_SECONDS, *spare)
        self._driver.record(self._events[0], self._stream)
        for launch, event in zip(launches, self._events[1:], strict=False):
            self._driver.launch([launch])
            self._driver.record(event, self._stream)
        for number, call in enumerate(calls):
            passed = self._driver.milliseconds(self._events[number], self._events[number + 1])
            key = (bucket, call)
            self._times[key] = self._times.get(key, 0) + round(passed * 1e6)

    def _keep_busy(self, seconds: float, address: int, num_bytes: int) -> None:
        if num_bytes:
            wanted = int(seconds * WRITE_RATE / num_bytes) + 1
            for _ in range(min(wanted, MOST_WRITES)):
                self._driver.set_bytes(address, 0, num_bytes, self._stream)

    def times(self) -> list[CallTime]:
        """What was added up, in the order of the calls; those with an empty grid took no time."""
        found: list[CallTime] = []
        for bucket in sorted({bucket for bucket, _ in self._times}):
            by_number = {
                call.number: CallTime(bucket, call.kernel, call.op, nanoseconds)
                for (at, call), nanoseconds in self._times.items()
                if at == bucket
            }
            idle = CallTime(bucket, "", "", 0)
            found += [by_number.get(n, idle) for n in range(max(by_number) + 1)]
        return found

    def close(self) -> None:
        """Free the events."""
        for event in self._events:
            self._driver.free_event(event)
        self._events.clear()
