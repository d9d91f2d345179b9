"""How a model's chat template writes tool calls, found by letting it write some.

No table of models: the template gets an answer with calls to functions of known names, and what it
puts before the name, between name and arguments, between calls and at the end is the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError
from ..chat import ChatTemplate

_DEFINED = "probe_defined"
_NAMES = ("probe_alpha", "probe_beta")
_KEY, _VALUE = "probe_key", "probe_value"
_TEXT = "probe_text"
_TAG = re.compile(r"<[^<>\s=]+>|\[[A-Z_]+\]")


@dataclass(frozen=True)
class CallFormat:
    """``opening NAME middle ARGUMENTS (joint NAME middle ARGUMENTS)* closing``.

    Arguments are a JSON object. ``joint`` is None where a template writes one call only.
    """

    opening: str
    middle: str
    closing: str
    joint: str | None
    arguments_as_text: bool = False
    """Whether the template wants earlier calls' arguments as JSON text and not as an object."""

    @property
    def is_object(self) -> bool:
        """Whether name and arguments are members of one JSON object."""
        return self.opening.rstrip().endswith('"') and "{" in self.opening

    @property
    def trigger(self) -> str:
        """What begins a call in an answer; empty where a bare JSON object is one."""
        head = self.opening[: self.opening.rindex("{")] if self.is_object else self.opening
        tag = _TAG.search(head)
        return tag[0] if tag else head.strip()

    @property
    def end(self) -> str:
        """What follows the last call."""
        after = self.closing
        if self.is_object:
            after = after[after.find("}") + 1 :]
        return after.strip()

    @property
    def argument_key(self) -> str:
        """Name of the member that holds the arguments."""
        found = re.search(r'"(\w+)"\s*:\s*$', self.middle)
        return found[1] if found else "arguments"


def find_call_format(template: ChatTemplate) -> CallFormat | None:
    """The format of a template, or None if it does not know tools."""
    for as_text in (False, True):
        try:
            return _probe(template, as_text)
        except (RequestError, ValueError):
            continue
    return None


def _probe(template: ChatTemplate, as_text: bool) -> CallFormat:
    """`ValueError` where the template leaves something of the call out."""
    one = _render(template, _NAMES[:1], as_text)
    if _DEFINED not in one:
        raise ValueError("the template ignores tools")
    head, tail = _frame(template)
    body = _body(one, head, tail)
    at = body.index(_NAMES[0])
    start, end = _arguments(body, at)
    opening, middle = body[:at], body[at + len(_NAMES[0]) : start]
    return CallFormat(
        opening=opening,
        middle=middle,
        closing=body[end:],
        joint=_joint(template, as_text, head, tail),
        arguments_as_text=as_text,
    )


def _joint(template: ChatTemplate, as_text: bool, head: str, tail: str) -> str | None:
    """What stands between two calls; None if the template refuses or drops the second."""
    try:
        body = _body(_render(template, _NAMES, as_text), head, tail)
        _, end = _arguments(body, body.index(_NAMES[0]))
        return body[end : body.index(_NAMES[1], end)]
    except (RequestError, ValueError):
        return None


def _arguments(body: str, at: int) -> tuple[int, int]:
    """Where the JSON object with the arguments begins and ends, after a place."""
    key = body.index(f'"{_KEY}"', at)
    start = body.rindex("{", at, key)
    value, end = json.JSONDecoder().raw_decode(body, start)
    if value != {_KEY: _VALUE}:
        raise ValueError("the template rewrites arguments")
    return start, end


def _frame(template: ChatTemplate) -> tuple[str, str]:
    """What stands before and after the text of a plain answer, up to the same question."""
    messages = [_question(), {"role": "assistant", "content": _TEXT}]
    text = template.render(messages, tools=_tools(), add_generation_prompt=False)
    at = text.index(_TEXT)
    return text[:at], text[at + len(_TEXT) :]


def _body(text: str, head: str, tail: str) -> str:
    """The answer alone. The header of an answer may differ a little when it holds calls."""
    common = 0
    while common < min(len(head), len(text)) and head[common] == text[common]:
        common += 1
    end = tail.strip()
    body = text[common:].rstrip()
    return body.removesuffix(end).rstrip() if end else body


def _render(template: ChatTemplate, names: Sequence[str], as_text: bool) -> str:
    arguments: Any = {_KEY: _VALUE}
    calls = [
        {
            "id": f"call{at:05d}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": json.dumps(arguments) if as_text else arguments,
            },
        }
        for at, name in enumerate(names)
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    return template.render([_question(), answer], tools=_tools(), add_generation_prompt=False)


def _question() -> dict[str, str]:
    return {"role": "user", "content": "probe_question"}


def _tools() -> list[Mapping[str, Any]]:
    parameters = {"type": "object", "properties": {}}
    function = {"name": _DEFINED, "description": "A probe.", "parameters": parameters}
    return [{"type": "function", "function": function}]
