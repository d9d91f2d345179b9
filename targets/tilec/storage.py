"""Where a materialised value lives: named scalars, named vectors, or an array on the stack.

`Registers` and `Parts` use one C++ variable per vector or element, so that the compiler keeps
them in registers across loops; they can only be read at constant positions and copy themselves to
memory when someone asks for another one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

from .expr import LANES, NARROW, Emitter, Expr, constant, memory_c, scalar_c, vector_c
from .index import Index, flatten
from .integers import extended
from .ir import F32, I32, Element, Pointer, Scalar
from .pointers import advance, load, store_text

REGISTER_VECTORS = 24
"""Tiles of at most this many vectors are held in named variables (AVX-512 has 32 registers)."""


class Storage(Protocol):
    def read(self, em: Emitter, index: Index) -> Expr: ...


@dataclasses.dataclass(frozen=True)
class Bound:
    """A scalar."""

    expr: Expr

    def read(self, em: Emitter, index: Index) -> Expr:
        return self.expr


def buffer_element(element: Element) -> Scalar:
    """What memory holds: floats as f32, narrow integers as i32."""
    assert isinstance(element, Scalar)
    if element.is_float and element.name != "f64":
        return F32
    return I32 if element.name in NARROW else element


@dataclasses.dataclass
class Memory:
    """A row-major array; `pointer` is its C++ name."""

    pointer: str
    shape: tuple[int, ...]
    element: Element
    level: int

    def at(self, em: Emitter, index: Index) -> Expr:
        base = Expr("s", self.pointer, Pointer(buffer_element(self.element)), self.level)
        return advance(em, base, flatten(em, index, self.shape))

    def read(self, em: Emitter, index: Index) -> Expr:
        found = load(em, self.at(em, index), None, None, self.level)
        ext = "s" if isinstance(self.element, Scalar) and self.element.name in NARROW else ""
        return dataclasses.replace(found, type=self.element, ext=ext)

    def write(self, em: Emitter, index: Index, value: Expr) -> None:
        value = dataclasses.replace(extended(em, value, "s"), type=buffer_element(self.element))
        em.line(store_text(em, self.at(em, index), value, None))


@dataclasses.dataclass
class Parts:
    """Fewer than 16 elements, a scalar variable each."""

    elements: list[Expr]
    shape: tuple[int, ...]
    level: int
    spilled: Memory | None = None

    def read(self, em: Emitter, index: Index) -> Expr:
        flat = flatten(em, index, self.shape)
        if flat.const is not None:
            return self.elements[int(flat.const)]
        self.spilled = self.spilled or _spill(em, self.elements, self.shape, self.level, 1)
        return self.spilled.read(em, index)


@dataclasses.dataclass
class Registers:
    """A vector variable per 16 elements in row-major order."""

    vectors: list[Expr]
    shape: tuple[int, ...]
    level: int
    spilled: Memory | None = None

    def read(self, em: Emitter, index: Index) -> Expr:
        flat = flatten(em, index, self.shape)
        at = flat.const if flat.kind == "s" else None
        if flat.kind == "a" and flat.stride == 1 and flat.text.isdigit():
            whole = int(flat.text)
            if whole % LANES == 0:
                return self.vectors[whole // LANES]
        if at is not None:
            vector = self.vectors[int(at) // LANES]
            text = f"lane<{int(at) % LANES}>({em.lanes(vector)})"
            return em.scalar(text, vector.type, vector.level, ext=vector.ext)
        self.spilled = self.spilled or _spill(em, self.vectors, self.shape, self.level, LANES)
        return self.spilled.read(em, index)


def _spill(
    em: Emitter, pieces: list[Expr], shape: tuple[int, ...], level: int, width: int
) -> Memory:
    memory = new_memory(em, shape, pieces[0].type, level)
    for number, piece in enumerate(pieces):
        base = constant(number * width, I32)
        flat = dataclasses.replace(base, kind="a", stride=1, const=None) if width > 1 else base
        pointer = memory.at(em, Index((), flat))
        value = dataclasses.replace(extended(em, piece, "s"), type=buffer_element(memory.element))
        em.line(store_text(em, pointer, value, None), level)
    return memory


def new_memory(em: Emitter, shape: tuple[int, ...], element: Element, level: int) -> Memory:
    name = em.name("buf")
    ctype = memory_c(buffer_element(element))
    em.line(f"alignas(64) {ctype} {name}[{max(math.prod(shape), LANES)}];", level)
    return Memory(name, shape, element, level)


def form_of(shape: tuple[int, ...], in_memory: bool) -> str:
    """``scalar``, ``parts``, ``registers`` or ``memory``."""
    size = math.prod(shape)
    if not shape:
        return "scalar"
    if size < LANES:
        return "parts"
    small = size // LANES <= REGISTER_VECTORS and shape[-1] % LANES == 0
    return "registers" if small and not in_memory else "memory"


def variable_type(element: Element, form: str) -> str:
    return vector_c(element) if form == "registers" else scalar_c(element)
