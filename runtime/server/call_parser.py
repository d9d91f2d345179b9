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
from typing import Any, Literal

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

    >>> form = CallFormat('<call>{"name": "', '", "arguments": ', "}</call>", None)
    >>> parser = CallParser(form, {"f"})
    >>> parser.push("Well. <ca"), parser.push('ll>{"name": "f", "arguments": {"x": 1}}</call>')[0]
    (('Well. ', []), '')
    """

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        self._form, self._names = form, frozenset(names)
        self._trigger, self._end = form.trigger, form.end
        self._joint = "" if form.is_object else (form.joint or "").strip()
        self._held = ""
        self._state: Literal["text", "call", "joined", "after"] = "text"
        self._is_at_start = True
        self._has_called = False
        self._patterns = None if form.is_object else _patterns(form)

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
            before = (self._held, self._state)
            if self._state == "text":
                content.append(self._text(is_last))
            elif self._state == "after":
                self._after(is_last)
            else:
                plain, call = self._call(is_last)
                content.append(plain)
                calls += [call] if call is not None else []
            if before == (self._held, self._state):
                break  # more text has to come
        return "".join(content), calls

    def _text(self, is_last: bool) -> str:
        """Content up to the next call; an end that may begin one is held back."""
        if not self._trigger:
            return self._bare(is_last)
        at = self._held.find(self._trigger)
        if at >= 0:
            text, self._held, self._state = self._held[:at], self._held[at:], "call"
            return "" if self._has_called and not text.strip() else text
        keep = 0 if is_last else _overlap(self._held, self._trigger)
        cut = len(self._held) - keep
        text = self._held[:cut]
        if self._has_called and not text.strip():  # blanks between calls are no content
            if is_last:
                self._held = ""
            return ""
        self._held, self._has_called = self._held[cut:], False
        return text

    def _bare(self, is_last: bool) -> str:
        """Without a mark a call is an answer that begins with a JSON object."""
        stripped = self._held.lstrip(_SPACE)
        if self._is_at_start and stripped.startswith("{"):
            self._state = "call"
            return ""
        if self._is_at_start and not stripped and not is_last:
            return ""
        self._is_at_start = False
        text, self._held = self._held, ""
        return "" if self._has_called and not text.strip() else text

    def _call(self, is_last: bool) -> tuple[str, Call | None]:
        """Read a call, or give back the text that turned out to be none."""
        read = self._read_object() if self._patterns is None else self._read_named()
        if read is None:
            is_open = not is_last and len(self._held) < _MAX_CALL_CHARS and self._may_be_call()
            return ("", None) if is_open else (self._give_up(max(1, len(self._trigger))), None)
        name, arguments, end = read
        if name not in self._names:
            return self._give_up(end), None
        self._held, self._state = self._held[end:], "after"
        self._is_at_start, self._has_called = False, True
        return "", Call(name, arguments)

    def _give_up(self, end: int) -> str:
        """It was no call: its first part is content, the rest is looked at again."""
        text, self._held = self._held[:end], self._held[end:]
        self._state, self._is_at_start, self._has_called = "text", False, False
        return text

    def _after(self, is_last: bool) -> None:
        """What follows a call: the mark of its end, the next call, or text."""
        rest = self._held.lstrip(f"{_SPACE},;" if self._form.is_object else _SPACE)
        marks = [mark for mark in (self._joint, self._end) if mark]
        for mark in marks:
            if rest.startswith(mark):
                self._held = rest[len(mark) :]
                self._state = "joined" if mark == self._joint else "text"
                return
        if not rest or any(mark.startswith(rest) for mark in marks):
            self._held = "" if is_last else self._held
            return
        if self._form.is_object and rest.startswith("{"):
            self._held, self._state = rest, "call"
            return
        self._state = "text"

    def _may_be_call(self) -> bool:
        """Whether what is held can still become a call."""
        if self._patterns is not None:
            return True
        rest = self._held.lstrip(_SPACE).removeprefix(self._trigger).lstrip(f"{_SPACE}[")
        return not rest or rest.startswith("{")

    def _read_object(self) -> tuple[str, str, int] | None:
        """(name, arguments, where it ends) of ``{"name": ..., "arguments": ...}``, if all there."""
        mark = self._trigger if self._held.startswith(self._trigger) else ""
        start = self._held.find("{", len(mark))
        if start < 0 or "}" not in self._held:
            return None
        between = self._held[len(mark) : start]
        decoded = None if between.strip(f"{_SPACE}[") else _decode(self._held, start)
        if decoded is None:
            return None
        value, end = decoded
        name = value.get("name")
        arguments = value.get(self._form.argument_key, value.get("arguments", {}))
        return (name if isinstance(name, str) else ""), _as_text(arguments), end

    def _read_named(self) -> tuple[str, str, int] | None:
        """The same where the name stands outside of the JSON."""
        if self._patterns is None:
            return None
        found = self._patterns[self._state == "joined"].match(self._held)
        decoded = _decode(self._held, found.end()) if found is not None else None
        if found is None or decoded is None:
            return None
        return found[1].strip(), _as_text(decoded[0]), decoded[1]


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


def _patterns(form: CallFormat) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The first call up to its arguments, and one after a joint; blanks may differ."""
    opening, middle = (
        r"\s*".join(re.escape(word) for word in part.split())
        for part in (form.opening, form.middle)
    )
    name = rf"\s*([\w.-]+?)\s*{middle}\s*(?=\{{)"
    return re.compile(opening + name), re.compile(name)
