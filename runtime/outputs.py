"""What steps add to answers: an `Output` for each token, or one that says why an answer ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import repeat

from ..errors import RequestError
from .answer import Live, Lives, Output, Timing
from .request import FinishReason
from .scheduler import PlainEvent, Scheduler
from .token_mask import MaskedRow


class Outputs:
    """The answers under way, and what was added to them since somebody took it."""

    def __init__(self, scheduler: Scheduler, *, has_text: bool) -> None:
        self.live = Lives()
        self.finished = Counter[str]()
        """Answers that have ended, by reason."""
        self.num_tokens = 0
        self.ready: list[Output] = []
        self._scheduler, self._has_text = scheduler, has_text
        self._unchanging = _Unchanging(())

    def take(self) -> list[Output]:
        """All that is ready."""
        ready, self.ready = self.ready, []
        return ready

    def add(self, events: Sequence[PlainEvent], now: float) -> None:
        """What each event adds to its answer; little more than that, as it runs for every token."""
        self.num_tokens += len(events)
        lives, new = self.live, tuple.__new__
        for request, token, reason in events:
            live = lives[request.id]
            row, timing, error = live.row, live.timing, None
            if not row.is_simple:
                row.append(token)
            timing.last_token = now
            if timing.first_token is None:
                timing.first_token = now
            if reason is None and row.mask is not None:
                reason, error = _advance_mask(row.mask, token)
            text = ""
            if live.text is not None:
                if reason is None or token not in request.stop_ids:
                    text = live.text.push(token)  # a stop token is no part of the text
                if live.text.stopped:
                    reason = "stop"
            if reason is not None:
                text += self._last_text(live, reason, now)
            self.ready.append(
                new(Output, (request.id, token, text, live.logprob, request.num_cached, reason,
                             timing, error))
            )  # fmt: skip

    def add_next(self, lives: Sequence[Live], tokens: Sequence[int], now: float) -> None:
        """A token for each of these, not its last, and chosen as the likeliest.

        The same list again and again costs little for each of them.
        """
        is_new = self._unchanging.lives is not lives
        if self._has_text or (is_new and any(v.timing.first_token is None for v in lives)):
            return self.add([(v.request, t, None) for v, t in zip(lives, tokens, strict=True)], now)
        self.num_tokens += len(tokens)
        if is_new:
            self._unchanging = _Unchanging(lives)
        self.ready += self._unchanging.with_tokens(tokens)
        return None

    def end(self, live: Live, reason: FinishReason, now: float, error: str | None = None) -> None:
        """End a request without a token: its last output says why."""
        request = live.request
        text = self._last_text(live, reason, now)
        self.ready.append(
            Output(request.id, None, text, None, request.num_cached, reason, live.timing, error)
        )

    def drop(self, live: Live, reason: FinishReason, now: float) -> None:
        """Forget an answer that has ended."""
        del self.live[live.request.id]
        live.timing.finished = now
        self.finished[reason] += 1

    def _last_text(self, live: Live, reason: FinishReason, now: float) -> str:
        """A request ends: what is left of its text."""
        self._scheduler.finish(live.request.id, reason)
        self.drop(live, reason, now)
        return live.text.finish() if live.text is not None else ""


class _Unchanging:
    """What is the same in all outputs of some answers: one list for each field."""

    def __init__(self, lives: Sequence[Live]) -> None:
        self.lives = lives
        self._ids = [live.request.id for live in lives]
        self._num_cached = [live.request.num_cached for live in lives]
        self._timings: list[Timing] = [live.timing for live in lives]

    def with_tokens(self, tokens: Sequence[int]) -> list[Output]:
        no_text, none = repeat(""), repeat(None)
        fields = zip(
            self._ids, tokens, no_text, none, self._num_cached, none, self._timings, none,
            strict=False,
        )  # fmt: skip
        return list(map(tuple.__new__, repeat(Output), fields))


def _advance_mask(mask: MaskedRow, token: int) -> tuple[FinishReason | None, str | None]:
    """Why the answer ends with this token, if its mask says so."""
    try:
        return ("stop" if mask.advance(token) else None), None
    except RequestError as error:
        return "error", str(error)
