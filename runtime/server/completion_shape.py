"""Text completions and their chunks, as OpenAI's clients read them."""

from __future__ import annotations

import time
import uuid
from typing import Any

from ..sampler import TokenLogprob
from .chat_shape import LEAST_LOGPROB, TokenText, usage_of
from .exchange import Answer, News
from .wire import dumps, quoted


class CompletionShape:
    """One completion with its choices; ``echoes`` are texts to put in front, by choice."""

    def __init__(
        self,
        model: str,
        token_text: TokenText,
        *,
        has_logprobs: bool,
        wants_usage: bool,
        echoes: list[str],
    ) -> None:
        self._token_text = token_text
        self._has_logprobs = has_logprobs
        self._echoes = echoes
        self._offsets = {index: len(text) for index, text in enumerate(echoes)}
        tail = ',"usage":null' if wants_usage else ""
        self._head: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4().hex[:24]}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }
        self._chunk_head = f'data: {dumps(self._head).decode()[:-1]}{tail},"choices":[{{"index":'

    def first(self, answer: Answer) -> bytes:
        text = self._echo(answer)
        return self._event(answer.index, text, None, None) if text else b""

    def pieces(self, answer: Answer, news: News) -> bytes:
        logprobs = self._logprobs(answer.index, news.tokens)
        return self._event(answer.index, news.text, logprobs, news.finish_reason)

    def usage(self, answers: list[Answer]) -> bytes:
        body = {**self._head, "choices": [], "usage": usage_of(answers)}
        return b"data: " + dumps(body) + b"\n\n"

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        choices = []
        for answer in answers:
            news = answer.take()
            logprobs = self._logprobs(answer.index, news.tokens)
            text = self._echo(answer) + news.text
            choices.append(_choice(answer.index, text, logprobs, news.finish_reason))
        return {**self._head, "choices": choices, "usage": usage_of(answers)}

    def _echo(self, answer: Answer) -> str:
        return self._echoes[answer.index] if self._echoes else ""

    def _event(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> bytes:
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        probs = "null" if logprobs is None else dumps(logprobs).decode()
        return (
            f'{self._chunk_head}{index},"text":{quoted(text)},"logprobs":{probs},'
            f'"finish_reason":{reason}}}]}}\n\n'
        ).encode()

    def _logprobs(self, index: int, tokens: list[TokenLogprob]) -> dict[str, Any] | None:
        """OpenAI's older form: lists side by side."""
        if not self._has_logprobs:
            return None
        texts = [self._token_text(token.token_id)[0] for token in tokens]
        offsets = []
        for text in texts:
            offset = self._offsets.get(index, 0)
            offsets.append(offset)
            self._offsets[index] = offset + len(text)
        return {
            "tokens": texts,
            "token_logprobs": [max(token.logprob, LEAST_LOGPROB) for token in tokens],
            "top_logprobs": [
                {self._token_text(id)[0]: max(value, LEAST_LOGPROB) for id, value in token.top}
                for token in tokens
            ],
            "text_offset": offsets,
        }


def _choice(index: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
