"""What the engine hands out (`Output`, `Timing`) and what it keeps per answer (`Live`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .request import FinishReason, Request
from .sampler import RowState, TokenLogprob
from .text import AnswerText


@dataclass(slots=True)
class Timing:
    """When things happened to a request, in seconds of the engine's clock; None: not yet."""

    arrived: float
    started: float | None = None
    """First admitted: the step that begins its prefill."""
    first_token: float | None = None
    last_token: float | None = None
    """Its newest token; while the same requests decode on side by side, one before that."""
    finished: float | None = None

    @property
    def queue_s(self) -> float | None:
        """Seconds in the queue."""
        return None if self.started is None else self.started - self.arrived

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_token is None else self.first_token - self.arrived


class Output(NamedTuple):
    """What one step adds to one request. ``finish_reason`` marks its last output."""

    request_id: str
    token_id: int | None
    """None in an output that only says why the answer ended ("timeout", "error")."""
    text: str
    """Text that is decided now: it may lag behind the tokens, the last output completes it."""
    logprob: TokenLogprob | None
    num_cached: int
    """Prompt tokens whose keys and values came from the prefix cache."""
    finish_reason: FinishReason | None
    timing: Timing
    """Of the whole request; the same object in all its outputs."""
    error: str | None = None
    """The sentence behind the reason "error"."""


@dataclass(slots=True, eq=False)
class Live:
    """What a request needs besides its place in the scheduler."""

    request: Request
    row: RowState
    text: AnswerText | None
    timing: Timing
    logprob: TokenLogprob | None = None


class Lives(dict[str, Live]):
    """Those under way by id, and apart which of them may want more than their likeliest token."""

    def __init__(self) -> None:
        super().__init__()
        self.special: dict[str, Live] = {}

    def __setitem__(self, id: str, live: Live) -> None:
        super().__setitem__(id, live)
        if not live.row.is_simple:
            self.special[id] = live

    def __delitem__(self, id: str) -> None:
        super().__delitem__(id)
        self.special.pop(id, None)
