"""A small SSA form of TTIR: types, values, operations with regions. Both back ends read this."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Scalar:
    """``f32``, ``bf16``, ``f16``, ``f64``, ``i1`` ... ``i64``, ``index``; integers have no sign."""

    name: str

    @property
    def is_float(self) -> bool:
        return self.name in ("f32", "bf16", "f16", "f64")

    @property
    def bits(self) -> int:
        return 64 if self.name == "index" else int(self.name.lstrip("bfi"))

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Pointer:
    element: Element

    def __str__(self) -> str:
        return f"!tt.ptr<{self.element}>"


Element = Scalar | Pointer


@dataclasses.dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    element: Element

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"tensor<{'x'.join(map(str, self.shape))}x{self.element}>"


Type = Scalar | Pointer | Tensor
F32, BF16 = Scalar("f32"), Scalar("bf16")
I1, I32, I64 = Scalar("i1"), Scalar("i32"), Scalar("i64")


def element_of(type_: Type) -> Element:
    return type_.element if isinstance(type_, Tensor) else type_


def shape_of(type_: Type) -> tuple[int, ...]:
    return type_.shape if isinstance(type_, Tensor) else ()


def with_element(type_: Type, element: Element) -> Type:
    return Tensor(type_.shape, element) if isinstance(type_, Tensor) else element


@dataclasses.dataclass(eq=False, repr=False)  # values and operations refer to each other
class Value:
    """Defined once, by an operation or as a block argument (`op` is None)."""

    name: str
    type: Type
    op: Op | None = None
    users: list[Op] = dataclasses.field(default_factory=list)
    steps: dict[int, int | str | None] = dataclasses.field(default_factory=dict)
    """Strides per axis as `strides.step` found them."""

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.type)

    @property
    def element(self) -> Element:
        return element_of(self.type)


Attribute = int | float | bool | str | tuple[int, ...]


@dataclasses.dataclass(eq=False, repr=False)
class Op:
    name: str
    operands: list[Value]
    results: list[Value]
    attrs: dict[str, Attribute]
    regions: list[Block]
    loc: str
    """``file.py:12`` of the Triton source, or empty."""
    place: str = ""
    """The location with its calls, as the text names it: copies of one loop share it."""

    def __repr__(self) -> str:
        return f"{self.results} = {self.name} {self.operands} at {self.loc or '?'}"

    @property
    def result(self) -> Value:
        return self.results[0]

    def walk(self) -> Iterator[Op]:
        yield self
        for region in self.regions:
            yield from region.walk()


@dataclasses.dataclass(eq=False, repr=False)
class Block:
    args: list[Value]
    ops: list[Op]

    def walk(self) -> Iterator[Op]:
        for op in self.ops:
            yield from op.walk()

    @property
    def terminator(self) -> Op:
        return self.ops[-1]


@dataclasses.dataclass(eq=False, repr=False)
class Function:
    name: str
    args: list[Value]
    body: Block

    def walk(self) -> Iterator[Op]:
        return self.body.walk()


def link_users(function: Function) -> Function:
    """Fill `Value.users`, one entry per operand slot."""
    for op in function.walk():
        for operand in op.operands:
            operand.users.append(op)
    return function
