"""One use of one op: its attributes, its operands, and how random operands are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir.dim import concrete
from ...ir.dtype import BF16, round_bf16
from ...ir.graph import Graph, Value
from ...ir.op import Array, Op
from ...ir.parser import parse_type
from ...ir.printer import attribute_text
from ...ir.testing import random_array
from ...ir.types import TensorType

Rng = np.random.Generator
Draw = Callable[[Rng, tuple[int, ...]], Array]
Build = Callable[[Graph, Sequence[Value]], Sequence[Value]]
WEIGHT = "w "
"""In front of the type of an operand that is a weight of the artifact, not an input."""


@dataclass(frozen=True)
class Case:
    """``operands`` are texts such as ``f32[n, 64]``; size n is swept.

    ``build`` adds the op and whatever must stand around it for some rows; by default the op alone.
    """

    op: Op
    operands: tuple[str, ...]
    draws: Mapping[int, Draw] = field(default_factory=dict)
    build: Build | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """``linear{activation=silu}(f32[n, 64], w f32[65, 64])``."""
        given = {k: v for k, v in vars(self.op).items() if v != getattr(type(self.op), k, None)}
        inside = ", ".join(f"{k}={attribute_text(v)}" for k, v in given.items())
        attributes = f"{{{inside}}}" if inside else ""
        note = f" {self.note}" if self.note else ""
        return f"{self.op.name}{attributes}({', '.join(self.operands)}){note}"

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(parse_type(text.removeprefix(WEIGHT)) for text in self.operands)

    def is_weight(self, index: int) -> bool:
        return self.operands[index].startswith(WEIGHT)

    def draw(self, index: int, rng: Rng, sizes: Mapping[str, int]) -> Array:
        type = self.types[index]
        if index in self.draws:
            shape = tuple(concrete(d, sizes) for d in type.shape)
            drawn = np.asarray(self.draws[index](rng, shape), type.dtype.numpy)
            return round_bf16(drawn) if type.dtype == BF16 else drawn
        return random_array(type, rng, sizes)

    def add_to(self, graph: Graph, leaves: Sequence[Value]) -> tuple[Value, ...]:
        """The op on these operands; its results, and those of what stands around it."""
        if self.build is not None:
            return tuple(self.build(graph, leaves))
        return graph.append(self.op, *leaves)


def case(
    op: Op,
    *operands: str,
    x0: Draw | None = None,
    x1: Draw | None = None,
    x2: Draw | None = None,
    x3: Draw | None = None,
    note: str = "",
    build: Build | None = None,
) -> Case:
    """``case(Embedding(), "w f32[50, 64]", "i32[n]", x1=below(50))``: x1 draws operand 1."""
    draws = {i: draw for i, draw in enumerate((x0, x1, x2, x3)) if draw is not None}
    return Case(op, operands, draws, build, note)


def below(limit: int) -> Draw:
    """Integers from 0 up, all values in use, the last one for certain."""

    def draw(rng: Rng, shape: tuple[int, ...]) -> Any:
        ids = rng.integers(0, limit, shape)
        if ids.size:
            ids.reshape(-1)[-1] = limit - 1
        return ids

    return draw


def below_own(rng: Rng, shape: tuple[int, ...]) -> Any:
    """Indices of rows: as many as the operand has."""
    return rng.integers(0, shape[0], shape)


def positive(rng: Rng, shape: tuple[int, ...]) -> Any:
    """Floats from 1/16 to 16, evenly by powers."""
    return 2.0 ** rng.uniform(-4, 4, shape)


def divisors(rng: Rng, shape: tuple[int, ...]) -> Any:
    """Whole numbers that divide: none is 0."""
    return rng.integers(1, 9, shape) * rng.choice([-1, 1], shape)


def wide(rng: Rng, shape: tuple[int, ...]) -> Any:
    """Floats of many sizes, zero and both signs among them."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 6, shape)
    flat = x.reshape(-1)
    flat[: min(2, flat.size)] = [0.0, -1.0][: flat.size]
    return x
