"""Tool calls out of an answer's text as it comes, whatever the sizes of the pieces.

Text before, between and after calls stays content. What begins like a call and turns out to be
none, or names a function that was not offered, stays content too: nothing is lost.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from .call_format import CallFormat

_SPACE = " \t\r\n"
_MAX_CALL_CHARS = 1_000_000


@dataclass(frozen=True)
class Call:
    """One call; the arguments are JSON text, as OpenAI has it."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def as_json(self, index: int | None = None) -> dict[str, Any]:
        """The member of ``tool_calls``; streams add an index."""
        found: dict[str, Any] = {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }
        return found if index is None else {"index": index, **found}


class CallParser:
    """Feed it text; it gives content and calls.

    >>> form = CallFormat('<call>{"name": "', '", "arguments": ', '}</call>', None)
    >>> parser = CallParser(form, {"f"})
    >>> parser.push("Well. <ca"), parser.push('ll>{"name": "f", "arguments": {"x": 1}}</call>')[0]
    (('Well. ', []), '')
    """

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        self._form, self._names = form, frozenset(names)
        self._trigger, self._end = form.trigger, form.end
        self._held = ""
        self._is_in_call = False
        self._is_at_start = True
        self._named = None if form.is_object else _named_pattern(form)

    def push(self, text: str) -> tuple[str, list[Call]]:
        """Content and calls that this text completes."""
        self._held += text
        return self._parse(is_last=False)

    def finish(self) -> tuple[str, list[Call]]:
        """The rest, when no more text comes."""
        return self._parse(is_last=True)

    def _parse(self, is_last: bool) -> tuple[str, list[Call]]:
        content: list[str] = []
        calls: list[Call] = []
        while self._held:
            if not self._is_in_call:
                content.append(self._text_until_call(is_last))
                if not self._is_in_call:
                    break
            found = self._next_call(is_last)
            if found is None:
                break
            call, plain = found
            content.append(plain)
            if call is not None:
                calls.append(call)
        return "".join(content), calls

    def _text_until_call(self, is_last: bool) -> str:
        """Content up to the next call; a tail that may begin one is held back."""
        if not self._trigger:
            return self._bare(is_last)
        at = self._held.find(self._trigger)
        if at >= 0:
            text, self._held = self._held[:at], self._held[at:]
            self._is_in_call = True
            return text
        keep = 0 if is_last else _overlap(self._held, self._trigger)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _bare(self, is_last: bool) -> str:
        """Without a mark a call is an answer that begins with a JSON object."""
        stripped = self._held.lstrip(_SPACE)
        if self._is_at_start and stripped.startswith("{"):
            self._is_in_call = True
            return ""
        if self._is_at_start and not stripped and not is_last:
            return ""
        self._is_at_start = False
        text, self._held = self._held, ""
        return text

    def _next_call(self, is_last: bool) -> tuple[Call | None, str] | None:
        """A call (or the text that turned out to be none); None when more text has to come."""
        read = self._read_call()
        if read is None:
            if not is_last and len(self._held) < _MAX_CALL_CHARS and self._may_be_call():
                return None
            return self._give_up()
        name, arguments, after = read
        if name not in self._names:
            return self._give_up(after)
        rest = self._held[after:].lstrip(_SPACE)
        if not is_last and len(rest) < len(self._end) and self._end.startswith(rest):
            return None  # the end mark is still coming
        self._held = self._after(rest)
        return Call(name, arguments), ""

    def _after(self, rest: str) -> str:
        """What follows a call: the end mark goes; a comma keeps us among calls."""
        self._is_at_start = False
        if self._end and rest.startswith(self._end):
            rest = rest[len(self._end) :]
            self._is_in_call = False
            return rest.lstrip(_SPACE) if rest.lstrip(_SPACE).startswith(self._trigger) else rest
        following = rest.lstrip(f"{_SPACE},;")
        self._is_in_call = following.startswith("{") and self._form.is_object
        return following if self._is_in_call or not following else rest

    def _give_up(self, end: int | None = None) -> tuple[None, str]:
        """It was no call: its first part is content, the rest is looked at again."""
        end = max(1, len(self._trigger)) if end is None else end
        text, self._held = self._held[:end], self._held[end:]
        self._is_in_call = self._is_at_start = False
        return None, text

    def _may_be_call(self) -> bool:
        """Whether what follows the mark can still become a call."""
        rest = self._held.removeprefix(self._trigger).lstrip(f"{_SPACE}[")
        return self._named is not None or not rest or rest.startswith("{")

    def _read_call(self) -> tuple[str, str, int] | None:
        """(name, arguments, where it ends), if it is all there."""
        if self._named is not None:
            return self._read_named(self._named)
        start = self._held.find("{", len(self._trigger) if self._has_trigger() else 0)
        if start < 0 or "}" not in self._held:
            return None
        between = self._held[:start].removeprefix(self._trigger)
        decoded = _decode(self._held, start) if not between.strip(f"{_SPACE}[,") else None
        if decoded is None:
            return None
        value, end = decoded
        name = value.get("name")
        arguments = value.get(self._form.argument_key, value.get("arguments", {}))
        return (name if isinstance(name, str) else ""), _as_text(arguments), end

    def _read_named(self, pattern: re.Pattern[str]) -> tuple[str, str, int] | None:
        found = pattern.match(self._held)
        decoded = _decode(self._held, found.end()) if found is not None else None
        if found is None or decoded is None:
            return None
        end = decoded[1]
        closing = self._form.closing.strip()
        rest = self._held[end:].lstrip(_SPACE)
        joint = (self._form.joint or "").strip()
        if joint and rest.startswith(joint):
            # The next call follows with no mark of its own: give it one.
            self._held = (
                f"{self._held[:end]}{closing}{self._form.opening.strip()}{rest[len(joint) :]}"
            )
        return found[1].strip(), _as_text(decoded[0]), end

    def _has_trigger(self) -> bool:
        return bool(self._trigger) and self._held.startswith(self._trigger)


def _decode(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    """The JSON object at a place and where it ends; None if it is none, or not all there."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return (value, end) if isinstance(value, dict) else None


def _as_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of a text that begins the mark."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0


def _named_pattern(form: CallFormat) -> re.Pattern[str]:
    """``opening NAME middle``, blank where the template has blanks."""
    opening, middle = (
        r"\s*".join(re.escape(word) for word in part.split())
        for part in (form.opening, form.middle)
    )
    return re.compile(rf"{opening}\s*([\w.-]+?)\s*{middle}\s*(?=\{{)", re.DOTALL)
