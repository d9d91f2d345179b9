"""Sizes and grids as text of a tiny integer language, checked once, run as stack code; no `eval`.

The language: whole numbers, known symbols, ``+ - * // %``, ``min(a, b, ...)``, ``max(a, b, ...)``,
``cdiv(a, b)`` (division rounded up), ``align(a, n)`` (``a`` rounded up to a multiple of ``n``) and
parentheses. Division and remainder round down, as in Python. Every intermediate result must fit
in 64 bits.

>>> size = parse("align(tokens * 576 * 4, 64)", ["tokens"])
>>> size.evaluate({"tokens": 3})
6912
>>> str(parse("(tokens+15)//16*2", ["tokens"]))
'(tokens + 15) // 16 * 2'
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from ..errors import ArtifactError, DeviceError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_TEXT = 16384
"""Characters of one expression."""
MAX_DEPTH = 64
"""Nesting of parentheses, calls and signs; also the stack slots of the C player (player.h)."""

CONST, SYMBOL = 0, 1
_OPCODES = {
    "+": 2, "-": 3, "*": 4, "//": 5, "%": 6, "min": 7, "max": 8, "cdiv": 9, "align": 10,
}  # fmt: skip
_NAMES = {code: name for name, code in _OPCODES.items()}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}
_FUNCTIONS = frozenset({"min", "max", "cdiv", "align"})
_ATOM = 3
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_]*)|(//|[-+*%(),]))")


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


_ARITHMETIC: dict[int, Callable[[int, int], int]] = {
    2: lambda a, b: a + b,
    3: lambda a, b: a - b,
    4: lambda a, b: a * b,
    5: lambda a, b: a // b,
    6: lambda a, b: a % b,
    7: min,
    8: max,
    9: _cdiv,
    10: lambda a, n: _cdiv(a, n) * n,
}
_DIVIDES = frozenset({5, 6, 9, 10})

Instruction = tuple[int, int | str]
"""One instruction: (CONST, value), (SYMBOL, name) or (operation, 0)."""


@dataclasses.dataclass(frozen=True)
class DimExpr:
    """A checked expression as postfix code; made by `parse`, equal when the code is equal."""

    code: tuple[Instruction, ...]

    @functools.cached_property
    def symbols(self) -> frozenset[str]:
        """Names the value depends on."""
        return frozenset(str(value) for op, value in self.code if op == SYMBOL)

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The value under `env`; `DeviceError` on overflow and division by zero."""
        stack: list[int] = []
        for op, value in self.code:
            if op == SYMBOL:
                result = self._lookup(str(value), env)
            elif op == CONST:
                result = int(value)
            else:
                right, left = stack.pop(), stack.pop()
                result = self._apply(op, left, right)
            if not INT64_MIN <= result <= INT64_MAX:
                raise DeviceError(f"size {self}: expected a value within 64 bits, got {result}")
            stack.append(result)
        return stack[0]

    def _lookup(self, name: str, env: Mapping[str, int]) -> int:
        if name not in env:
            raise DeviceError(f"size {self}: expected a value for {name}, got only {sorted(env)}")
        return int(env[name])

    def _apply(self, op: int, left: int, right: int) -> int:
        if right == 0 and op in _DIVIDES:
            raise DeviceError(f"size {self}: division of {left} by zero")
        return _ARITHMETIC[op](left, right)

    def encode(self, symbols: Sequence[str]) -> list[int]:
        """Stack code for the C player: int64 words, symbols as indices into `symbols`.

        >>> parse("2 * n", ["n"]).encode(["m", "n"])
        [0, 2, 1, 1, 4]
        """
        words: list[int] = []
        for op, value in self.code:
            words.append(op)
            if op == SYMBOL:
                words.append(symbols.index(str(value)))
            elif op == CONST:
                words.append(int(value))
        return words

    def __str__(self) -> str:
        stack: list[tuple[str, int]] = []
        for op, value in self.code:
            if op in (CONST, SYMBOL):
                stack.append((str(value), _ATOM))
                continue
            (right, right_rank), (left, left_rank) = stack.pop(), stack.pop()
            name = _NAMES[op]
            is_call = left_rank == _ATOM and left.startswith(f"{name}(")
            if name in ("min", "max") and is_call:
                stack.append((f"{left[:-1]}, {right})", _ATOM))
                continue
            if name in _FUNCTIONS:
                stack.append((f"{name}({left}, {right})", _ATOM))
                continue
            rank = _PRECEDENCE[name]
            left = left if left_rank >= rank else f"({left})"
            right = right if right_rank > rank else f"({right})"
            stack.append((f"{left} {name} {right}", rank))
        return stack[0][0]


class _Parser:
    """Precedence climbing that emits postfix code, so a long sum costs no recursion."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._split()
        self.position = 0
        self.code: list[Instruction] = []

    def fail(self, expected: str) -> ArtifactError:
        token = self.tokens[self.position] or "the end"
        shown = self.text if len(self.text) <= 200 else self.text[:200] + "..."
        return ArtifactError(f"size {shown!r}: expected {expected}, got {token!r}")

    def _split(self) -> list[str]:
        shown = self.text[:200]
        if len(self.text) > MAX_TEXT:
            raise ArtifactError(f"size {shown!r}...: expected at most {MAX_TEXT} characters")
        tokens, end, stop = [], 0, len(self.text.rstrip())
        while end < stop:
            match = _TOKEN.match(self.text, end)
            if match is None or not self.text.isascii():
                raise ArtifactError(f"size {shown!r}: unexpected {self.text[end:stop][:20]!r}")
            tokens.append(match.group().strip())
            end = match.end()
        return [*tokens, ""]

    def take(self, *wanted: str) -> str | None:
        token = self.tokens[self.position]
        if token not in wanted or not token:
            return None
        self.position += 1
        return token

    def expect(self, token: str) -> None:
        if self.take(token) is None:
            raise self.fail(repr(token))

    def parse(self) -> tuple[Instruction, ...]:
        self.sum(0)
        if self.tokens[self.position]:
            raise self.fail("an operator or the end")
        return tuple(self.code)

    def sum(self, depth: int) -> None:
        self.product(depth)
        while (op := self.take("+", "-")) is not None:
            self.product(depth)
            self.code.append((_OPCODES[op], 0))

    def product(self, depth: int) -> None:
        self.atom(depth)
        while (op := self.take("*", "//", "%")) is not None:
            self.atom(depth)
            self.code.append((_OPCODES[op], 0))

    def atom(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self.fail(f"at most {MAX_DEPTH} nested levels")
        token = self.tokens[self.position]
        if self.take("("):
            self.sum(depth + 1)
            self.expect(")")
        elif self.take("-"):
            self.negative(depth + 1)
        elif self.take(*_FUNCTIONS):
            self.call(token, depth + 1)
        elif token[:1].isdigit():
            self.literal(token)
        elif token.isidentifier():
            self.position += 1
            self.code.append((SYMBOL, token))
        else:
            raise self.fail("a number, a symbol or '('")

    def negative(self, depth: int) -> None:
        """``-5`` is a number, ``-x`` is ``0 - x``."""
        token = self.tokens[self.position]
        if token[:1].isdigit():
            self.literal("-" + token)
            return
        self.code.append((CONST, 0))
        self.atom(depth)
        self.code.append((_OPCODES["-"], 0))

    def literal(self, token: str) -> None:
        # Length first: int() itself refuses very long texts with an error of its own.
        if len(token) > 20 or not INT64_MIN <= int(token) <= INT64_MAX:
            raise self.fail("a number within 64 bits")
        self.position += 1
        self.code.append((CONST, int(token)))

    def call(self, name: str, depth: int) -> None:
        self.expect("(")
        self.sum(depth)
        self.expect(",")
        self.sum(depth)
        self.code.append((_OPCODES[name], 0))
        while name in ("min", "max") and self.take(","):
            self.sum(depth)
            self.code.append((_OPCODES[name], 0))
        self.expect(")")


def _stack_slots(code: Sequence[Instruction]) -> int:
    depth = deepest = 0
    for op, _ in code:
        depth += 1 if op in (CONST, SYMBOL) else -1
        deepest = max(deepest, depth)
    return deepest


@functools.lru_cache(maxsize=65536)
def _parse(text: str) -> DimExpr:
    expr = DimExpr(_Parser(text).parse())
    if _stack_slots(expr.code) > MAX_DEPTH:
        raise ArtifactError(f"size {text[:200]!r}: expected at most {MAX_DEPTH} pending operands")
    return expr


def parse(text: str, symbols: Collection[str]) -> DimExpr:
    """Check `text` and compile it; a name outside `symbols` raises `ArtifactError`."""
    if not isinstance(text, str):
        raise ArtifactError(f"size: expected a text, got {type(text).__name__}")
    expr = _parse(text)
    unknown = sorted(expr.symbols.difference(symbols))
    if unknown:
        raise ArtifactError(
            f"size {text[:200]!r}: unknown symbol {unknown[0]!r} (known: {sorted(symbols)})"
        )
    return expr
