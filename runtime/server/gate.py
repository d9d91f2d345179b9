"""Who gets in: bounded by answers and by prompt tokens, decided before any work is done.

A place is taken when the request's size is known, before its text is tokenized, and given back
when its answer ends, whatever ends it.
"""

from __future__ import annotations

import math

from .exchange import Answer
from .problem import Problem

_LONGEST_WAIT = 60


class Gate:
    """Counts answers that are queued or running, and the prompt tokens that wait.

    >>> gate = Gate(max_running=1, max_queued=1, max_queued_tokens=100, max_choices=4)
    >>> gate.enter(2, 10)
    >>> gate.enter(1, 10)
    Traceback (most recent call last):
    sglk.runtime.server.problem.Problem: queue: expected at most 2 answers, got 3 (try again)
    """

    def __init__(
        self, max_running: int, max_queued: int, max_queued_tokens: int, max_choices: int
    ) -> None:
        self.max_running, self.max_queued = max_running, max_queued
        self.max_queued_tokens, self.max_choices = max_queued_tokens, max_choices
        self.is_draining = False
        self.num_answers = self.num_tokens = 0
        self._seconds = 1.0
        """What an answer took of late."""

    @property
    def capacity(self) -> int:
        """Most answers at once."""
        return self.max_running + self.max_queued

    def enter(self, count: int, num_tokens: int) -> None:
        """Take places for the answers of one request, or raise `Problem` with status 429."""
        if self.is_draining:
            raise Problem(
                "server: expected to be serving, got a shutdown under way (another one answers)",
                status=503,
                code="draining",
                retry_after=1,
                reason="draining",
            )
        most = min(self.max_choices, self.capacity)
        if count > most:
            raise Problem(
                f"n: expected at most {most} answers of one request, got {count}", param="n"
            )
        wanted = self.num_answers + count
        if wanted > self.capacity:
            raise self._full(f"at most {self.capacity} answers, got {wanted}")
        tokens = self.num_tokens + num_tokens
        if self.num_answers >= self.max_running and tokens > self.max_queued_tokens:
            raise self._full(
                f"at most {self.max_queued_tokens} waiting prompt tokens, got {tokens}"
            )
        self.num_answers += count
        self.num_tokens += num_tokens

    def leave(self, count: int, num_tokens: int) -> None:
        """Give places back."""
        self.num_answers -= count
        self.num_tokens -= num_tokens

    def note(self, answer: Answer, seconds: float) -> None:
        """Remember how long an answer took, for `Retry-After`."""
        if answer.finish_reason in ("stop", "length"):
            self._seconds += 0.1 * (seconds - self._seconds)

    @property
    def retry_after(self) -> int:
        """Seconds until a place is likely to be free."""
        rounds = max(1.0, (self.num_answers - self.max_running + 1) / self.max_running)
        return max(1, min(_LONGEST_WAIT, math.ceil(rounds * self._seconds)))

    def _full(self, expected: str) -> Problem:
        return Problem(
            f"queue: expected {expected} (try again)",
            status=429,
            code="queue_full",
            retry_after=self.retry_after,
            reason="queue_full",
        )


class Places:
    """What one request holds of a gate; answers give theirs back one by one, `close` the rest."""

    def __init__(self, gate: Gate, count: int, num_tokens: int) -> None:
        gate.enter(count, num_tokens)
        self._gate = gate
        self._left, self._tokens = count, num_tokens

    def answer_ended(self) -> None:
        """One answer needs its place no longer."""
        if self._left:
            tokens = self._tokens // self._left
            self._gate.leave(1, tokens)
            self._left -= 1
            self._tokens -= tokens

    def close(self) -> None:
        """Give everything back that is still held."""
        self._gate.leave(self._left, self._tokens)
        self._left = self._tokens = 0
