"""Typed C++ expressions and the nest of open scopes they are placed in.

An expression is emitted once, into the outermost open scope where its operands exist: what does
not depend on a loop's variable lands before that loop, and equal text in an open scope is reused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager

from .ir import I1, I32, I64, Element, Pointer, Scalar

SCALAR_C = {"f32": "float", "bf16": "float", "f16": "float", "f64": "double", "i1": "bool"}
MEMORY_C = {
    "f32": "float",
    "bf16": "bf16_t",
    "f16": "half_t",
    "f64": "double",
    "i1": "bool_t",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "index": "int64_t",
}
VECTOR_C = {"f32": "vf", "bf16": "vf", "f16": "vf", "i1": "vm", "i64": "vl", "index": "vl"}
NARROW = ("i8", "i16")
LANES = 16


@dataclasses.dataclass(frozen=True)
class Expr:
    """One value, or 16 lanes of it.

    kind ``s``: the same in all lanes, `text` is a C++ scalar.
    kind ``a``: ``text + lane * stride`` (integers, or a pointer in elements).
    kind ``v``: `text` is a C++ vector; for a pointer, `text` the base and `offset` the lanes.
    """

    kind: str
    text: str
    type: Element
    level: int = 0
    const: int | float | bool | None = None
    align: int = 1
    """A power of two that divides an integer's base."""
    stride: int = 0
    ext: str = ""
    """Narrow integers live in 32 bits: ``z`` zero-extended, ``s`` sign-extended, ``zs`` both."""
    offset: Expr | None = None
    nonneg: bool = False
    """Known not to be negative: a division may then be a shift."""
    bound: int | None = None
    """No lane of an integer vector has a greater magnitude, where that is known."""

    @property
    def scalar(self) -> Scalar:
        """The element type of an expression that is no pointer."""
        assert isinstance(self.type, Scalar)
        return self.type

    @property
    def is_uniform(self) -> bool:
        return self.kind == "s"


def scalar_c(element: Element) -> str:
    if isinstance(element, Pointer):
        return f"{memory_c(element.element)}*"
    return SCALAR_C.get(element.name, "int64_t" if element.bits == 64 else "int32_t")


def memory_c(element: Element) -> str:
    return "int64_t" if isinstance(element, Pointer) else MEMORY_C[element.name]


def vector_c(element: Element) -> str:
    assert isinstance(element, Scalar)
    return VECTOR_C.get(element.name, "vi")


def pow2_divisor(value: int) -> int:
    return 1 << 30 if value == 0 else value & -value


def constant(value: int | float | bool, element: Element) -> Expr:
    assert isinstance(element, Scalar)
    if element == I1:
        return Expr("s", "true" if value else "false", I1, const=bool(value))
    if element.is_float:
        return Expr("s", float_text(float(value), element), element, const=float(value))
    whole = int(value)
    text = f"{scalar_c(element)}({whole}LL)" if element.bits == 64 else _int32_text(whole)
    ext = ("zs" if whole >= 0 else "s") if element.name in NARROW else ""
    align = pow2_divisor(whole)
    return Expr("s", text, element, const=whole, align=align, ext=ext, nonneg=whole >= 0)


def _int32_text(value: int) -> str:
    return "INT32_MIN" if value == -(1 << 31) else str(value)


def float_text(value: float, element: Scalar) -> str:
    suffix = "" if element.name == "f64" else "f"
    if math.isnan(value):
        return "float(NAN)"
    if math.isinf(value):
        return "float(INFINITY)" if value > 0 else "float(-INFINITY)"
    return f"{value.hex()}{suffix}"


@dataclasses.dataclass
class Scope:
    header: str
    lines: list[str] = dataclasses.field(default_factory=list)
    known: dict[str, str] = dataclasses.field(default_factory=dict)
    """Expression text -> variable."""
    values: dict[object, Expr] = dataclasses.field(default_factory=dict)
    """(value, index) -> its expression."""
    footer: str = "}"


@dataclasses.dataclass(frozen=True)
class Lookup:
    """``((word >> shift) & 15) - below`` as a float."""

    word: str
    shift: int
    below: int


class Emitter:
    """The stack of open scopes; scope 0 is the function's body."""

    def __init__(self) -> None:
        self.scopes = [Scope("")]
        self.count = 0
        self.nibbles: dict[str, tuple[str, int]] = {}
        """Vectors known to be ``(source & 15) - zero``: variable -> (source, zero)."""
        self.shifts: dict[str, tuple[str, int]] = {}
        """Vectors shifted right by a constant: variable -> (source, shift)."""
        self.lookups: dict[str, Lookup] = {}
        """Vectors of floats that are nibbles of a word."""

    @property
    def level(self) -> int:
        return len(self.scopes) - 1

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def line(self, text: str, level: int | None = None) -> None:
        self.scopes[self.level if level is None else level].lines.append(text)

    def let(self, ctype: str, text: str, level: int, prefix: str = "v") -> str:
        """The variable that holds `text`, emitted at `level` unless an open scope has it."""
        for scope in self.scopes[: level + 1]:
            if text in scope.known:
                return scope.known[text]
        name = self.name(prefix)
        self.scopes[level].lines.append(f"{ctype} const {name} = {text};")
        self.scopes[level].known[text] = name
        return name

    def recall(self, key: object) -> Expr | None:
        for scope in reversed(self.scopes):
            if key in scope.values:
                return scope.values[key]
        return None

    def remember(self, key: object, expr: Expr) -> Expr:
        self.scopes[min(expr.level, self.level)].values[key] = expr
        return expr

    @contextmanager
    def scope(self, header: str) -> Iterator[int]:
        """An open ``header { ... }``; yields its level."""
        self.scopes.append(Scope(header))
        yield self.level
        closed = self.scopes.pop()
        body = [f"  {line}" for line in closed.lines]
        self.scopes[-1].lines += [f"{closed.header} {{", *body, "}"]

    # ---- scalars
    def scalar(self, text: str, element: Element, level: int, **facts: object) -> Expr:
        name = self.let(scalar_c(element), text, level, "s")
        return Expr("s", name, element, level, **facts)  # type: ignore[arg-type]

    def vector(self, text: str, element: Element, level: int, **facts: object) -> Expr:
        name = self.let(vector_c(element), text, level)
        return Expr("v", name, element, level, **facts)  # type: ignore[arg-type]

    def lanes(self, e: Expr) -> str:
        """The C++ vector of an expression of any kind."""
        assert isinstance(e.type, Scalar)
        if e.kind == "v":
            return e.text
        if e.type == I1:
            return self.let("vm", f"msplat({e.text})", e.level)
        wide = "int64_t" if e.type.bits == 64 else "int32_t"
        if e.kind == "a":
            text = f"affine({wide}({e.text}), {wide}({e.stride}))"
            return self.let(vector_c(e.type), text, e.level)
        cast = "float" if e.type.is_float else wide
        return self.let(vector_c(e.type), f"vsplat({cast}({e.text}))", e.level)

    # ---- integer arithmetic on uniform expressions, folded where constant
    def add(self, a: Expr, b: Expr) -> Expr:
        if a.const is not None and b.const is not None:
            return constant(wrap(int(a.const) + int(b.const), a.type), a.type)
        if b.const == 0:
            return a
        if a.const == 0:
            return b
        return self._int("+", a, b, min(a.align, b.align))

    def mul(self, a: Expr, b: Expr) -> Expr:
        if a.const is not None and b.const is not None:
            return constant(wrap(int(a.const) * int(b.const), a.type), a.type)
        for one, other in ((a, b), (b, a)):
            if one.const == 1:
                return other
            if one.const == 0:
                return one
        return self._int("*", a, b, min(a.align * b.align, 1 << 30))

    def _int(self, op: str, a: Expr, b: Expr, align: int) -> Expr:
        level = max(a.level, b.level)
        nonneg = a.nonneg and b.nonneg
        return self.scalar(f"{a.text} {op} {b.text}", a.type, level, align=align, nonneg=nonneg)

    def floor_div(self, a: Expr, divisor: int) -> Expr:
        """Of a non-negative index by a power of two."""
        if a.const is not None:
            return constant(int(a.const) // divisor, a.type)
        if divisor == 1:
            return a
        text = f"{a.text} >> {divisor.bit_length() - 1}"
        align = max(1, a.align // divisor)
        return self.scalar(text, a.type, a.level, align=align, nonneg=a.nonneg)

    def modulo(self, a: Expr, divisor: int) -> Expr:
        if a.const is not None:
            return constant(int(a.const) % divisor, a.type)
        if divisor == 1:
            return constant(0, a.type)
        text = f"{a.text} & {divisor - 1}"
        return self.scalar(text, a.type, a.level, align=a.align, nonneg=True)

    def widen(self, e: Expr) -> Expr:
        """A uniform or affine integer as i64."""
        if e.type == I64:
            return e
        if e.const is not None:
            return constant(e.const, I64)
        text = self.let("int64_t", f"int64_t({e.text})", e.level, "s")
        return dataclasses.replace(e, text=text, type=I64, ext="")


def wrap(value: int, element: Element) -> int:
    """Two's complement of the element's width, read as signed."""
    assert isinstance(element, Scalar)
    half = 1 << (element.bits - 1)
    return (value + half) % (2 * half) - half


ZERO, INDEX = constant(0, I32), I32
