"""Chat completions and their chunks, as OpenAI's clients read them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from ..sampler import TokenLogprob
from .call_parser import Call, CallParser
from .exchange import Answer, News
from .wire import dumps, quoted

TokenText = Callable[[int], tuple[str, list[int]]]
"""Text and bytes of a token."""


class ChatShape:
    """One chat completion with its choices."""

    def __init__(
        self,
        model: str,
        token_text: TokenText,
        *,
        has_logprobs: bool,
        wants_usage: bool,
        make_parser: Callable[[], CallParser] | None,
    ) -> None:
        self.id = f"chatcmpl-{uuid.uuid4().hex[:24]}"
        self._created, self._model = int(time.time()), model
        self._token_text = token_text
        self._has_logprobs = has_logprobs
        self._make_parser = make_parser
        self._parsers: dict[int, CallParser] = {}
        self._num_calls: dict[int, int] = {}
        tail = ',"usage":null' if wants_usage else ""
        head = json.dumps({"id": self.id, "object": "chat.completion.chunk",
                           "created": self._created, "model": model})  # fmt: skip
        self._head = f'data: {head[:-1]},"system_fingerprint":null{tail},"choices":[{{"index":'

    def first(self, answer: Answer) -> bytes:
        return self._event(answer.index, {"role": "assistant", "content": ""}, None, None)

    def pieces(self, answer: Answer, news: News) -> bytes:
        """A chunk of content, one for each call, one for the end."""
        content, calls = self._split(answer, news)
        logprobs = self._logprobs(news.tokens)
        events = []
        if content or (logprobs is not None and news.tokens):
            events.append(self._event(answer.index, {"content": content}, logprobs, None))
        for call in calls:
            at = self._num_calls[answer.index] = self._num_calls.get(answer.index, 0) + 1
            delta = {"tool_calls": [call.as_json(at - 1)]}
            events.append(self._event(answer.index, delta, None, None))
        if news.finish_reason is not None:
            has_calls = bool(self._num_calls.get(answer.index))
            reason = "tool_calls" if has_calls else news.finish_reason
            events.append(self._event(answer.index, {}, None, reason))
        return b"".join(events)

    def usage(self, answers: list[Answer]) -> bytes:
        body = {
            "id": self.id, "object": "chat.completion.chunk", "created": self._created,
            "model": self._model, "system_fingerprint": None, "choices": [],
            "usage": usage_of(answers),
        }  # fmt: skip
        return b"data: " + dumps(body) + b"\n\n"

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "system_fingerprint": None,
            "choices": [self._choice(answer) for answer in answers],
            "usage": usage_of(answers),
        }

    def _choice(self, answer: Answer) -> dict[str, Any]:
        news = answer.take()
        content, calls = self._split(answer, news)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["content"] = content.strip() or None
            message["tool_calls"] = [call.as_json() for call in calls]
        return {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(news.tokens),
            "finish_reason": "tool_calls" if calls else news.finish_reason,
        }

    def _split(self, answer: Answer, news: News) -> tuple[str, list[Call]]:
        """Content and calls of new text."""
        if self._make_parser is None:
            return news.text, []
        parser = self._parsers.get(answer.index)
        if parser is None:
            parser = self._parsers[answer.index] = self._make_parser()
        content, calls = parser.push(news.text)
        if news.finish_reason is not None:
            rest, more = parser.finish()
            content, calls = content + rest, calls + more
        return content, calls

    def _event(
        self, index: int, delta: dict[str, Any], logprobs: Any, finish_reason: str | None
    ) -> bytes:
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        text = delta.get("content")
        if text is not None and len(delta) == 1:  # nearly always
            inner = f'{{"content":{quoted(text)}}}'
        else:
            inner = dumps(delta).decode()
        probs = "null" if logprobs is None else dumps(logprobs).decode()
        return (
            f'{self._head}{index},"delta":{inner},"logprobs":{probs},"finish_reason":{reason}}}]}}\n\n'
        ).encode("utf-8", "replace")

    def _logprobs(self, tokens: list[TokenLogprob]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, token: TokenLogprob) -> dict[str, Any]:
        top = [self._entry(token_id, logprob) for token_id, logprob in token.top]
        return {**self._entry(token.token_id, token.logprob), "top_logprobs": top}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text, data = self._token_text(token_id)
        return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": data}


LEAST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this."""


def usage_of(answers: list[Answer]) -> dict[str, Any]:
    """Tokens in and out; a prompt counts once however many answers it has."""
    prompts = {id(answer.order.prompt): answer for answer in answers}
    completion = sum(answer.num_tokens for answer in answers)
    prompt = sum(len(answer.order.prompt) for answer in prompts.values())
    cached = sum(answer.num_cached for answer in prompts.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
