"""The answers of one request as the event loop sees them: unread pieces, ends, who to wake.

What waits for a slow client is bounded by the answer's own limit, and ends with the write timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import RequestError
from ..answer import Output
from ..request import SamplingParams
from ..sampler import TokenLogprob
from ..token_mask import TokenMask
from .problem import Problem, as_problem


@dataclass(frozen=True, slots=True)
class Order:
    """What the engine is asked for: one answer to one prompt."""

    prompt: Sequence[int]
    params: SamplingParams
    sample_index: int = 0
    cache_salt: str = ""
    priority: int = 0
    mask: TokenMask | None = None
    """Of this answer alone: it has state."""


class News(NamedTuple):
    """What came since the last look."""

    text: str
    tokens: list[TokenLogprob]
    """Of the tokens that came, when log-probabilities are asked for."""
    finish_reason: str | None


class Answer:
    """One choice of a response, growing."""

    __slots__ = (
        "_pieces", "_tokens", "error", "finish_reason", "id", "index", "last_token", "num_cached",
        "num_tokens", "order", "reported",
    )  # fmt: skip

    def __init__(self, id: str, index: int, order: Order) -> None:
        self.id, self.index, self.order = id, index, order
        self.num_tokens = self.num_cached = 0
        self.last_token: float | None = None
        """When the newest came, in the engine's clock."""
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.reported = False
        """Whether `take` has handed out the end."""
        self._pieces: list[str] = []
        self._tokens: list[TokenLogprob] = []

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    @property
    def has_news(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._pieces or self._tokens or (self.is_done and not self.reported))

    def add(self, output: Output) -> None:
        """The engine has done a step for it."""
        _, token, text, logprob, num_cached, finish_reason, _, error = output
        if token is not None:
            self.num_tokens += 1
            self.num_cached = num_cached
        if text:
            self._pieces.append(text)
        if logprob is not None:
            self._tokens.append(logprob)
        if finish_reason is not None:
            self.finish_reason, self.error = finish_reason, error

    def take(self) -> News:
        """Everything unread."""
        news = News("".join(self._pieces), self._tokens, self.finish_reason)
        self._pieces, self._tokens = [], []
        self.reported = self.is_done
        return news


class Exchange:
    """One HTTP request: its answers and what happened to its client."""

    def __init__(
        self,
        answers: Sequence[Answer],
        *,
        is_counted: bool = True,
        on_answer_end: Callable[[Answer, float], None] = lambda answer, seconds: None,
    ) -> None:
        self.answers = list(answers)
        self.on_answer_end = on_answer_end
        """Called once for each answer, with the seconds it took, whatever ends it."""
        self.is_counted = is_counted
        """False for the server's own probes: they are in no metric."""
        self.changed = asyncio.Event()
        self.push: Callable[[], bool] | None = None
        """Sends what is new at once, if nobody has to wait for that; else False. Of a stream."""
        self.is_accepted = False
        self.problem: Problem | None = None
        """Why the engine refused it, or what broke under it."""
        self.gone: str | None = None
        """Why nobody waits any more: "disconnect" or "write"."""
        self.blocked_since: float | None = None
        """When the write that has not ended yet began."""
        self.last_sent = time.monotonic()
        self.abort_connection: Callable[[], None] | None = None
        self.wants_ping = False

    def notify(self) -> None:
        """Something came: send it, or wake who will. Waking a task for each token costs more."""
        if self.push is None or not self.push():
            self.changed.set()

    @property
    def is_done(self) -> bool:
        return all(answer.is_done for answer in self.answers)

    @property
    def unfinished(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.is_done]

    def fail(self, problem: Problem) -> None:
        """Every answer that is not complete never will be."""
        if self.problem is None:
            self.problem = problem
        for answer in self.unfinished:
            answer.finish_reason, answer.error = "error", str(problem)
        self.changed.set()

    async def accepted(self) -> None:
        """Wait until the engine has taken all answers, or raise why it did not."""
        while not self.is_accepted and self.problem is None and self.gone is None:
            await self.changed.wait()
            self.changed.clear()
        if self.problem is not None:
            raise self.problem
        self.changed.set()  # outputs may have come along

    async def done(self) -> None:
        """Wait for the end of all answers, or raise what broke them."""
        while not self.is_done and self.gone is None:
            await self.changed.wait()
            self.changed.clear()
        if self.problem is not None:
            raise self.problem
        for answer in self.answers:
            if answer.finish_reason in ("timeout", "error"):
                raise fault_of(answer)


def fault_of(answer: Answer) -> Problem:
    """Why an answer has no regular end."""
    if answer.finish_reason == "timeout":
        return Problem(
            "request: expected an answer within the time limit, got none (send less at once, "
            "lower max_tokens, or raise --request-timeout or --queue-timeout)",
            status=504,
            code="timeout",
            reason="timeout",
        )
    # What the engine ends alone is the request's own fault: a grammar that led nowhere.
    error = RequestError(answer.error or "request: the answer could not go on")
    return as_problem(error, "prompt")
