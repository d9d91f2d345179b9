"""Prompts and messages to token ids; long ones in a worker, so that the loop stays free."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ...errors import RequestError
from ..chat import ChatTemplate
from ..tokenizer import Tokenizer
from .call_format import CallFormat
from .problem import Problem, as_problem
from .request_schema import given

Result = TypeVar("Result")
_INLINE_CHARS = 2_000
"""Tokenizing so much takes less time than handing it to another thread."""
_RESERVED = ("messages", "tools", "add_generation_prompt", "documents")


class Prompts:
    """The text side of one model."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        template: ChatTemplate | None,
        call_format: CallFormat | None,
        context: int,
    ) -> None:
        self.tokenizer, self.template, self.call_format = tokenizer, template, call_format
        self.context = context
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sglk-text")

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def of_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        variables: Mapping[str, Any],
    ) -> list[int]:
        """The ids of a conversation as the model's template writes it."""
        template, tokenizer = self.template, self.tokenizer
        if template is None or tokenizer is None:
            raise Problem(
                "messages: expected a prompt, got messages; this model has no chat template "
                "(use /v1/completions)",
                param="messages",
                code="no_chat_template",
            )
        reserved = [name for name in _RESERVED if name in variables]
        if reserved:
            param = f"chat_template_kwargs.{reserved[0]}"
            raise Problem(f"{param}: expected another name, got one that is set here", param=param)
        plain = [self._plain(message) for message in messages]

        def work() -> list[int]:
            text = template.render(plain, tools=list(tools) or None, **variables)
            return tokenizer.encode(text, context=self.context, add_bos=False)

        size = sum(len(str(message.get("content", ""))) for message in plain)
        return await self._run(work, size, "messages")

    async def of_text(self, text: str, *, add_bos: bool = True) -> list[int]:
        """The ids of a text, with the model's own first token if its policy says so."""
        tokenizer = self.needs_tokenizer("prompt")
        return await self._run(
            lambda: tokenizer.encode(text, context=self.context, add_bos=add_bos),
            len(text),
            "prompt",
        )

    def needs_tokenizer(self, param: str) -> Tokenizer:
        """The tokenizer, or the refusal of text."""
        if self.tokenizer is None:
            raise Problem(
                f"{param}: expected token ids, got text (this model has no tokenizer)", param=param
            )
        return self.tokenizer

    async def _run(self, work: Callable[[], Result], size: int, field: str) -> Result:
        try:
            if size <= _INLINE_CHARS:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except RequestError as error:
            raise as_problem(error, field) from error

    def _plain(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as templates expect it: text content, arguments as objects."""
        found = {k: v for k, v in message.items() if k not in ("refusal", "annotations")}
        if found["role"] == "developer":
            found["role"] = "system"
        if isinstance(found.get("content"), list):
            found["content"] = "".join(part["text"] for part in found["content"])
        calls = given(found, "tool_calls")
        if calls:
            found["tool_calls"] = [self._plain_call(call) for call in calls]
            found.setdefault("content", "")
            found["content"] = found["content"] or ""
        else:
            found.pop("tool_calls", None)
            if found.get("content") is None:
                found["content"] = ""
        return found

    def _plain_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if self.call_format is None or not self.call_format.arguments_as_text:
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except ValueError as error:
                raise Problem(
                    "messages: expected tool call arguments as JSON, "
                    f"got {function['arguments']!r:.80}",
                    param="messages",
                ) from error
        return {**call, "type": "function", "function": function}
