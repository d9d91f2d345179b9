"""One model being served: requests in, pieces of their answers out, one device step at a time.

    engine.add_request("a", prompt_ids, SamplingParams(max_tokens=8))
    while engine.has_work:
        for output in engine.step():
            ...

Not thread-safe: one thread adds, steps and aborts. A step that raises has changed nothing, so the
caller may abort requests and step again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError
from .admission import Limits
from .executor import Executor
from .request import FinishReason, Request, SamplingParams
from .sampler import RowState, TokenLogprob, sample
from .scheduler import Event, Scheduler, Stats
from .text import AnswerText
from .tokenizer import GenerationConfig, Tokenizer

Ids = Sequence[int] | NDArray[np.int32]


class Output(NamedTuple):
    """What one step adds to one request. ``finish_reason`` marks its last output."""

    request_id: str
    token_id: int
    text: str
    """Text that is decided now: it may lag behind the tokens, the last output completes it."""
    logprob: TokenLogprob | None
    num_cached: int
    """Prompt tokens whose keys and values came from the prefix cache."""
    finish_reason: FinishReason | None


@dataclass(slots=True)
class _Live:
    """What a request needs besides its place in the scheduler."""

    row: RowState
    text: AnswerText | None
    logprob: TokenLogprob | None = None


def _fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")


def as_ids(prompt: object) -> NDArray[np.signedinteger[Any]]:
    """A prompt as an array of at least one whole number, or `RequestError`.

    >>> as_ids([3, 1, 2])
    array([3, 1, 2])
    """
    try:
        ids = np.asarray(prompt)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"prompt: expected token ids, got {prompt!r:.80}") from error
    if ids.size == 0:
        raise RequestError("prompt: expected at least one token, got none")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise RequestError(f"prompt: expected token ids, got {prompt!r:.80}")
    return ids


class Engine:
    """Scheduler, executor, sampler and text of one model."""

    def __init__(
        self,
        executor: Executor,
        limits: Limits,
        tokenizer: Tokenizer | None = None,
        config: GenerationConfig | None = None,
    ) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.tokenizer = tokenizer
        self._config = config or GenerationConfig()
        self._executor = executor
        self.vocab_size = executor.executable.vocab_size
        self._live: dict[str, _Live] = {}

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    def add_request(
        self,
        request_id: str,
        prompt: Ids,
        params: SamplingParams,
        *,
        sample_index: int = 0,
        cache_salt: str = "",
    ) -> int:
        """Queue a prompt, or raise `RequestError`; returns the seed in use.

        ``sample_index`` tells apart samples of one prompt under one seed. Requests share cached
        prefixes only with requests of the same ``cache_salt``.
        """
        ids = self._checked_prompt(prompt)
        self._check_params(params)
        eos = () if params.ignore_eos else self._config.eos_token_ids
        request = Request(
            request_id,
            ids,
            self._max_new(len(ids), params),
            stop_ids=(*eos, *params.stop_token_ids),
            namespace=cache_salt,
        )
        self.scheduler.add(request)
        seed = _fresh_seed() if params.seed is None else int(params.seed)
        self._live[request_id] = _Live(
            RowState(params, ids, seed, sample_index), self._answer_text(params)
        )
        return seed

    def step(self) -> list[Output]:
        """Run one step of whatever is due; at most one output per request."""
        plan = self.scheduler.schedule()
        if not plan.chunks:
            if self.has_work:
                raise AssertionError("scheduler: there is work, but the plan is empty")
            return []
        logits = self._executor.run(plan)
        rows = [self._live[request.id] for request in plan.sampled]
        sampled = sample(logits, [live.row for live in rows])
        for live, logprob in zip(rows, sampled.logprobs, strict=True):
            live.logprob = logprob
        return [self._output(event) for event in self.scheduler.commit(plan, sampled.token_ids)]

    def abort(self, request_id: str) -> bool:
        """Drop a request in any state and free its pages at once; False if it has ended already."""
        self._live.pop(request_id, None)
        return self.scheduler.abort(request_id)

    def stats(self) -> Stats:
        """Numbers for logs and metrics."""
        return self.scheduler.stats()

    def close(self) -> None:
        """Give the device back."""
        self._executor.close()

    def _output(self, event: Event) -> Output:
        request_id, token, reason = event.request.id, event.token_id, event.finish_reason
        live = self._live[request_id]
        live.row.append(token)
        text = ""
        if live.text is not None:
            if reason != "stop":  # a stop token is no part of the text
                text = live.text.push(token)
            if live.text.stopped:
                self.scheduler.finish(request_id, "stop")
                reason = "stop"
            if reason is not None:
                text += live.text.finish()
        if reason is not None:
            del self._live[request_id]
        return Output(request_id, token, text, live.logprob, event.request.num_cached, reason)

    def _checked_prompt(self, prompt: Ids) -> NDArray[np.int32]:
        ids = as_ids(prompt)
        if len(ids) >= self.limits.max_context:
            raise RequestError(
                f"prompt: expected fewer tokens than the context of {self.limits.max_context}, "
                f"got {len(ids)} (shorten it)"
            )
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            bad = int(ids[(ids < 0) | (ids >= self.vocab_size)][0])
            raise RequestError(f"prompt: expected ids in [0, {self.vocab_size}), got {bad}")
        return ids.astype(np.int32)

    def _check_params(self, params: SamplingParams) -> None:
        if params.stop and self.tokenizer is None:
            raise RequestError("stop: expected stop_token_ids, got strings (there is no tokenizer)")
        for name, ids in (
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
        ):
            if any(token >= self.vocab_size for token in ids):
                raise RequestError(f"{name}: expected ids below {self.vocab_size}, got {max(ids)}")

    def _max_new(self, prompt_len: int, params: SamplingParams) -> int:
        """Most tokens to generate: a longer answer than the context ends with reason "length"."""
        if params.max_tokens is None:
            return max(1, self.limits.max_total - prompt_len)
        return min(params.max_tokens, self.limits.max_context - prompt_len)

    def _answer_text(self, params: SamplingParams) -> AnswerText | None:
        if self.tokenizer is None:
            return None
        stops = (params.stop,) if isinstance(params.stop, str) else params.stop
        return AnswerText(self.tokenizer.detokenizer(params.skip_special_tokens), stops)
