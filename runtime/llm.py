"""`LLM.generate`: the door for programs. Requests share steps."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..errors import RequestError, SglkError
from ..targets.artifact import Artifact
from .answer import Output
from .chat import ChatTemplate, Message
from .engine import Engine
from .request import FinishReason, SamplingParams
from .request_checks import Ids, as_ids
from .sampler import TokenLogprob


@dataclass
class Generation:
    """One answer. ``str()`` of it is its text."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """Generated ids, the stop token included if there was one."""
    finish_reason: FinishReason | None = None
    """"stop" (end token or stop string), "length", "abort", "timeout" or "error"."""
    logprobs: list[TokenLogprob] | None = None
    """One per token when asked for."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache."""
    seed: int = 0
    """The seed in use: pass it to get the same answer again."""
    ttft: float = 0.0
    """Seconds from the call to the first token."""
    itl: list[float] = field(default_factory=list)
    """Seconds between tokens."""

    def __str__(self) -> str:
        return self.text


class _Pending:
    """An answer that is still growing, and the pieces of it nobody has read yet."""

    def __init__(self, request_id: str, generation: Generation, started: float) -> None:
        self.id = request_id
        self.generation = generation
        self.unread: deque[str] = deque()
        self._pieces: list[str] = []
        self._last = started

    @property
    def is_done(self) -> bool:
        return self.generation.finish_reason is not None

    def add(self, output: Output, now: float) -> None:
        generation = self.generation
        if output.token_id is not None:
            self._add_token(output.token_id, now)
            generation.num_cached_tokens = output.num_cached
        if generation.logprobs is not None and output.logprob is not None:
            generation.logprobs.append(output.logprob)
        if output.text:
            self._pieces.append(output.text)
            self.unread.append(output.text)
        if output.finish_reason is not None:
            self.end(output.finish_reason)

    def _add_token(self, token_id: int, now: float) -> None:
        generation = self.generation
        if generation.token_ids:
            generation.itl.append(now - self._last)
        else:
            generation.ttft = now - self._last
        self._last = now
        generation.token_ids.append(token_id)

    def end(self, reason: FinishReason) -> None:
        self.generation.text = "".join(self._pieces)
        self.generation.finish_reason = reason


class Stream(Iterator[str]):
    """Pieces of one answer as they are decided; `generation` has the rest. Closing it aborts."""

    def __init__(self, llm: LLM, pending: _Pending) -> None:
        self._llm = llm
        self._pending = pending

    @property
    def generation(self) -> Generation:
        """The answer so far; complete once the pieces have ended."""
        return self._pending.generation

    def __next__(self) -> str:
        try:
            while not self._pending.unread:
                if self._pending.is_done:
                    raise StopIteration
                self._llm._step([self._pending])
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise
        return self._pending.unread.popleft()

    def close(self) -> None:
        """Stop generating."""
        self._llm._abort([self._pending])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # May run anywhere, inside a step too, so it only leaves a note.
        self._llm._abandoned.append(self._pending)


class LLM:
    """A loaded model. Threads may share it: their requests are batched together."""

    def __init__(
        self,
        engine: Engine,
        *,
        chat_template: ChatTemplate | None = None,
        defaults: Mapping[str, Any] | None = None,
        artifact: Artifact | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self.chat_template = chat_template
        self.recommended: Mapping[str, Any] = dict(defaults or {})
        """Sampling values the model's makers recommend; ``generate(..., **llm.recommended)``."""
        self.artifact = artifact
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._pending: dict[str, _Pending] = {}
        self._abandoned: deque[_Pending] = deque()
        self._is_closed = False

    def generate(
        self,
        prompt: str | Ids | Sequence[str] | Sequence[Ids],
        *,
        params: SamplingParams | None = None,
        stream: bool = False,
        cache_salt: str = "",
        **sampling: Any,
    ) -> Any:
        """Continue a prompt (text or token ids), or a list of them.

        One prompt gives a `Generation`, a list a list of them; ``stream=True`` gives a `Stream` of
        text pieces for one prompt. Sampling values are the fields of `SamplingParams`, by name or
        as ``params``; the default is greedy. A prompt that occurs several times in a list gets a
        different sample each time; otherwise the answer depends on prompt, values and seed alone.
        """
        started = time.perf_counter()
        params = _sampling(params, sampling)
        is_single = _is_single(prompt)
        prompts: list[Any] = [prompt] if is_single else list(prompt)
        if stream and not is_single:
            raise RequestError(f"stream: expected one prompt, got a list of {len(prompts)}")
        ids = [self._ids(each) for each in prompts]
        return self._deliver(self._submit(ids, params, cache_salt, started), stream, is_single)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        params: SamplingParams | None = None,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
        cache_salt: str = "",
        **sampling: Any,
    ) -> Any:
        """Answer a conversation: `generate` on what the model's chat template makes of it."""
        started = time.perf_counter()
        params = _sampling(params, sampling)
        ids = self.chat_ids(messages, tools=tools, **dict(template_args or {}))
        return self._deliver(self._submit([ids], params, cache_salt, started), stream, True)

    def chat_ids(self, messages: Sequence[Message], **template_args: Any) -> list[int]:
        """The token ids of a conversation, as the template writes them."""
        if self.chat_template is None or self.tokenizer is None:
            raise RequestError("chat: the artifact has no chat template (use generate)")
        text = self.chat_template.render(messages, **template_args)
        return self.tokenizer.encode(text, context=self.engine.limits.max_context, add_bos=False)

    def close(self) -> None:
        """Give the device and the file back; every later call is refused."""
        if self._is_closed:
            return
        self._abort(list(self._pending.values()))
        self._is_closed = True
        self.engine.close()
        if self.artifact is not None:
            self.artifact.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _ids(self, prompt: str | Ids) -> Ids:
        if not isinstance(prompt, str):
            return as_ids(prompt)
        if self.tokenizer is None:
            raise RequestError("prompt: expected token ids, got text (there is no tokenizer)")
        return self.tokenizer.encode(prompt, context=self.engine.limits.max_context)

    def _submit(
        self, prompts: Sequence[Ids], params: SamplingParams, salt: str, started: float
    ) -> list[_Pending]:
        """Queue all prompts or none."""
        if self._is_closed:
            raise SglkError("llm: expected an open model, got a closed one (load it again)")
        repeats: Counter[bytes] = Counter()
        added: list[_Pending] = []
        with self._lock:
            try:
                for prompt in prompts:
                    key = np.asarray(prompt).tobytes()
                    pending = self._new(len(prompt), params, started)
                    pending.generation.seed = self.engine.add_request(
                        pending.id, prompt, params, sample_index=repeats[key], cache_salt=salt
                    )
                    repeats[key] += 1
                    added.append(pending)
                    self._pending[pending.id] = pending
            except BaseException:
                self._abort(added)
                raise
        return added

    def _new(self, prompt_len: int, params: SamplingParams, started: float) -> _Pending:
        logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        generation = Generation(logprobs=logprobs, num_prompt_tokens=prompt_len)
        return _Pending(f"r{next(self._numbers)}", generation, started)

    def _deliver(self, pending: list[_Pending], stream: bool, is_single: bool) -> Any:
        if stream:
            return Stream(self, pending[0])
        try:
            while not all(each.is_done for each in pending):
                self._step(pending)
        finally:
            self._abort(pending)
        generations = [each.generation for each in pending]
        return generations[0] if is_single else generations

    def _step(self, wanted: list[_Pending]) -> None:
        """One step for everybody, unless another thread's step has served the wanted ones."""
        with self._lock:
            while self._abandoned:
                self._abort([self._abandoned.popleft()])
            if all(each.is_done for each in wanted):
                return
            outputs = self.engine.step()
            until = self.engine.wait_until
            now = time.perf_counter()
            for output in outputs:
                self._pending[output.request_id].add(output, now)
                if output.finish_reason is not None:
                    del self._pending[output.request_id]
        if until is not None:  # without the lock: others may join the batch meanwhile
            time.sleep(max(0.0, until - self.engine.clock()))

    def _abort(self, pending: Sequence[_Pending]) -> None:
        with self._lock:
            for each in pending:
                if not each.is_done:
                    self.engine.abort(each.id)
                    self._pending.pop(each.id, None)
                    each.end("abort")


def _sampling(params: SamplingParams | None, sampling: Mapping[str, Any]) -> SamplingParams:
    if params is not None and sampling:
        raise RequestError(f"params: expected either params or names, got both ({[*sampling]})")
    unknown = sorted(set(sampling) - set(SamplingParams.__dataclass_fields__))
    if unknown:
        known = ", ".join(SamplingParams.__dataclass_fields__)
        raise RequestError(f"{unknown[0]}: no such sampling value (known: {known})")
    return params or SamplingParams(**sampling)


def _is_single(prompt: object) -> bool:
    """Whether this is one prompt (text or ids) and not a list of them."""
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, np.ndarray):
        return prompt.ndim == 1
    if not isinstance(prompt, Sequence) or not prompt:
        raise RequestError(
            f"prompt: expected text, token ids or a list of them, got {prompt!r:.80}"
        )
    return isinstance(prompt[0], int | np.integer)
