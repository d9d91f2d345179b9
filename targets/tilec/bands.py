"""Products that are made in bands of 16 rows, each right before it is used.

A product that starts from zero, of which a loop only carries on what its elements add to those of
an accumulator, needs no array of its own: its rows are read once. In bands it stays in the nearest
cache, and the tile unit works on one while vectors add the one before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .context import EFFECTS, Context
from .expr import Emitter, Expr
from .index import Index
from .integers import binary
from .ir import F32, Op, Value
from .storage import Memory, new_memory

ROWS = 16
"""Of a band: those of an AMX tile."""
MakeRows = Callable[[Expr, str], None]
"""Emits the product's rows from the first one given on, into the array named."""


@dataclasses.dataclass
class Banded:
    """Storage of such a product: its elements can be read between `start` and `end` alone."""

    shape: tuple[int, ...]
    make: MakeRows
    _band: Memory | None = None
    _first: Expr | None = None

    def start(self, em: Emitter, first: Expr) -> None:
        """Emit one band, from row `first` on."""
        self._band = new_memory(em, (ROWS, self.shape[1]), F32, em.level)
        self._first = first
        self.make(first, self._band.pointer)

    def end(self) -> None:
        self._band = self._first = None

    def read(self, em: Emitter, index: Index) -> Expr:
        assert self._band is not None and self._first is not None, "a product outside its bands"
        row, column = index.dims
        return self._band.read(em, Index((binary(em, "subi", row, self._first), column)))


def takes(ctx: Context, op: Op) -> bool:
    """Whether a product's elements only become parts of the same elements of one carried tensor."""
    around = ctx.loops[op]
    if ctx.emulation is not None or not around or around[-1].name != "scf.for":
        return False
    loop_op, rows = around[-1], op.result.shape[0]
    body = loop_op.regions[0]
    if rows <= ROWS or rows % ROWS or op not in body.ops or not is_zero(op.operands[2]):
        return False
    if any(inner.name in EFFECTS for inner in loop_op.walk()):
        return False  # what the product reads may change until it is used
    return _carried(op.result, body.terminator) == 1


def is_zero(value: Value) -> bool:
    """A constant tensor of zeros."""
    op = value.op
    while op is not None and op.name in ("tt.splat", "tt.broadcast"):
        op = op.operands[0].op
    return op is not None and op.name == "arith.constant" and op.attrs["value"] == 0


def _carried(product: Value, end: Op) -> int:
    """In how many values carried on a product is an operand of element-wise rules alone; else 0."""
    carried: set[Value] = set()
    stack, seen = [product], {product}
    while stack:
        value = stack.pop()
        for user in value.users:
            if user is end:
                carried.add(value)
                continue
            moves = not user.name.startswith(("arith.", "math.")) or user.regions
            if moves or user.result.shape != product.shape:
                return 0
            if user.result not in seen:
                seen.add(user.result)
                stack.append(user.result)
    return len(carried)


def behind(ctx: Context, value: Value) -> list[Banded]:
    """The products in bands that a value is made of."""
    found: list[Banded] = []
    stack, seen = [value], {value}
    while stack:
        storage = ctx.env.get(at := stack.pop())
        if isinstance(storage, Banded):
            found.append(storage)
        if storage is None and at.op is not None:
            fresh = [v for v in at.op.operands if v not in seen]
            seen.update(fresh)
            stack += fresh
    return found
