"""Tokens of TTIR text, and the table of source locations at its end."""

from __future__ import annotations

import re
from pathlib import PurePath

from ...errors import LoweringError
from .ir import Element, Pointer, Scalar, Tensor, Type

_TOKEN = re.compile(
    r"""\s+ | //[^\n]*
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<arrow>->)
    | (?P<number>0x[0-9A-Fa-f]+ | -?\d+\.\d*(?:[eE][-+]?\d+)? | -?\d+(?:[eE][-+]?\d+)?)
    | (?P<value>%[\w$.-]+(?:\#\d+)?)
    | (?P<label>[\^\#@!]?[A-Za-z_][\w$.]*)
    | (?P<punct>[()\[\]{}<>=:,*?])""",
    re.VERBOSE,
)
_SHAPE = re.compile(r"tensor<((?:\d+x)+)(!tt\.ptr<[^>]*>|[\w]+)(?:,[^>]*)?>")
_LOC_DEF = re.compile(r"^#(loc\d*) = loc\((.*)\)\s*$")
_SCALARS = frozenset(("f64", "f32", "f16", "bf16", "i1", "i8", "i16", "i32", "i64", "index"))

Token = tuple[str, str]


class Tokens:
    """A cursor over the tokens; types are single tokens of kind ``type``."""

    def __init__(self, text: str) -> None:
        self.items = list(_tokenize(text))
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        return self.items[self.at + ahead][1]

    def kind(self, ahead: int = 0) -> str:
        return self.items[self.at + ahead][0]

    def next(self) -> str:
        self.at += 1
        return self.items[self.at - 1][1]

    def take(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            around = " ".join(item[1] for item in self.items[max(0, self.at - 8) : self.at + 3])
            raise LoweringError(f"ttir: expected {text!r}, got {self.peek()!r} (in: {around})")


def _tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        shaped = _SHAPE.match(text, at) if text.startswith("tensor<", at) else None
        pointer = re.compile(r"!tt\.ptr<[^>]*>").match(text, at)
        match = shaped or pointer or _TOKEN.match(text, at)
        if match is None:
            raise LoweringError(f"ttir: expected a token, got {text[at : at + 40]!r}")
        if shaped or pointer:
            tokens.append(("type", match.group()))
        elif match.lastgroup:
            tokens.append((match.lastgroup, match.group()))
        at = match.end()
    tokens.append(("end", ""))
    return tokens


def is_type(token: Token) -> bool:
    return token[0] == "type" or token[1] in _SCALARS


def parse_type(text: str) -> Type:
    """``tensor<4x16xf32>``, ``!tt.ptr<f32>`` or ``i32``."""
    shaped = _SHAPE.fullmatch(text)
    if shaped:
        dims = tuple(int(dim) for dim in shaped.group(1).split("x")[:-1])
        return Tensor(dims, _element(shaped.group(2)))
    return _element(text)


def _element(text: str) -> Element:
    if text.startswith("!tt.ptr<"):
        return Pointer(_element(text[len("!tt.ptr<") : -1].split(",")[0].strip()))
    if text not in _SCALARS:
        raise LoweringError(f"ttir: expected a type among {sorted(_SCALARS)}, got {text!r}")
    return Scalar(text)


def split_locations(text: str) -> tuple[str, dict[str, str]]:
    """The text without its ``#loc`` table, and the table: name -> ``file.py:line``."""
    raw: dict[str, str] = {}
    kept: list[str] = []
    for line in text.splitlines():
        match = _LOC_DEF.match(line)
        if match:
            raw[match.group(1)] = match.group(2)
        else:
            kept.append(line)
    return "\n".join(kept), {name: _resolve(name, raw, 0) for name in raw}


def _resolve(name: str, raw: dict[str, str], depth: int) -> str:
    body = raw.get(name, "")
    place = re.search(r'"([^"]*)":(\d+):\d+', body)
    if place:
        return f"{PurePath(place.group(1)).name}:{place.group(2)}"
    inner = re.search(r"#(loc\d*)", body)
    return _resolve(inner.group(1), raw, depth + 1) if inner and depth < 50 else ""
