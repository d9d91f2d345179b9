"""Known silent errors of a chip's compiler: a kernel that relies on them goes wrong here first.

`memory_model.HAZARDS` lists them. What the chip leaves undefined becomes one fixed value here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from . import floats, integers
from .expr import Emitter, Expr, constant
from .index import Index, flatten
from .ir import F32, I1, I32, Function, Op, Scalar, Tensor, Value
from .limits import is_strided
from .memory_model import MemoryModel
from .strides import step

if TYPE_CHECKING:
    from .context import Context

STALE_FLOAT, STALE_INT = 12345.678, 0x5A5A
"""What a lane holds that nothing was loaded to."""
SHORT = 32
_FLOAT_OPS = frozenset(("arith.addf", "arith.subf", "arith.mulf", "arith.divf"))


@dataclasses.dataclass(frozen=True)
class Hazards:
    """Which errors a kernel has."""

    names: frozenset[str]
    on_engine: bool
    lanes: int

    @staticmethod
    def of(model: MemoryModel, on_engine: bool) -> Hazards:
        return Hazards(model.hazards, on_engine, model.lanes)

    def has(self, name: str) -> bool:
        return name in self.names

    def wrong(self, ctx: Context, value: Value, op: Op, index: Index) -> Expr | None:
        """The wrong value of an operation; None where it is right."""
        if not self.names or not isinstance(value.type, Tensor):
            return None
        if op.name == "tt.load":
            return self._load(ctx, op, index)
        if op.name in ("arith.sitofp", "arith.uitofp") and self.on_engine:
            return constant(0.0, value.element) if self.has("int-to-float") else None
        if op.name == "arith.select" and value.element == Scalar("bf16") and not self.on_engine:
            return ctx.at(op.operands[1], index) if self.has("where-bf16") else None
        if op.name == "arith.cmpf" and self.has("negative-zero"):
            return _compare_bits(ctx, op, index)
        if op.name == "arith.mulf" and self.has("half-product") and is_half_product(op):
            return _half_product(ctx, op, index)
        if op.name in _FLOAT_OPS and self.has("short-tail"):
            return self._short(ctx, value, op, index)
        return None

    def fill(self, op: Op, other: Expr | None) -> Expr | None:
        """What masked lanes of a load hold."""
        return stale(op.result.element) if self.has("other") else other

    def drops_store(self, op: Op) -> bool:
        """A strided store beside tt.dot."""
        if not (self.on_engine and self.has("copy-strided")):
            return False
        return bool(op.operands[0].shape) and is_strided(op.operands[0])

    def extent(self, extent: int) -> int:
        """Lanes of a row that a reduction covers."""
        cut = self.has("reduce-lanes") and not self.on_engine
        return min(extent, self.lanes) if cut else extent

    def skips_loop(self, function: Function, op: Op) -> bool:
        """A later copy of a loop whose surroundings were unrolled."""
        if not op.place or not self.has("unrolled-loop"):
            return False
        twins = (o for o in function.walk() if o.name == "scf.for" and o.place == op.place)
        return next(twins) is not op

    def _load(self, ctx: Context, op: Op, index: Index) -> Expr | None:
        pointer = op.operands[0]
        axis = len(pointer.shape) - 1
        repeats = self.on_engine and self.has("copy-strided") and step(pointer, axis) == 0
        if not repeats or pointer.shape[axis] == 1:
            return None
        first = integers.compare(ctx.em, "eq", index.dims[axis], constant(0, I32))
        zero = Index((*index.dims[:axis], constant(0, I32)))
        ctx.hazards = None
        right = ctx.at(op.result, zero)
        ctx.hazards = self
        return floats.select(ctx.em, first, right, stale(op.result.element))

    def _short(self, ctx: Context, value: Value, op: Op, index: Index) -> Expr | None:
        size = value.type.size if isinstance(value.type, Tensor) else 1
        if self.on_engine or not 1 < size <= SHORT:
            return None
        operands = [ctx.at(operand, index) for operand in op.operands]
        right = floats.call(ctx.em, *_function(op.name, operands))
        last = constant(size - 1, I32)
        is_last = integers.compare(ctx.em, "eq", flatten(ctx.em, index, value.shape), last)
        return floats.select(ctx.em, is_last, stale(value.element), right)


def _function(name: str, operands: list[Expr]) -> tuple[str, list[Expr], str]:
    function, operator = floats.BINARY[name]
    return function, operands, operator


def stale(element: object) -> Expr:
    """What was in local memory before."""
    assert isinstance(element, Scalar)
    if element == I1:
        return constant(True, I1)
    if element.is_float:
        return constant(floats_of(element), element)
    return constant(STALE_INT if element.bits > 8 else STALE_INT & 0x7F, element)


def floats_of(element: Scalar) -> float:
    """`STALE_FLOAT` as far as a type can hold it."""
    return 12344.0 if element.name in ("bf16", "f16") else STALE_FLOAT


def _compare_bits(ctx: Context, op: Op, index: Index) -> Expr | None:
    if op.attrs["word"] not in ("une", "one") or op.operands[0].element != F32:
        return None
    bits = [_as_bits(ctx.em, ctx.at(operand, index)) for operand in op.operands]
    return integers.compare(ctx.em, "ne", *bits)


def _as_bits(em: Emitter, e: Expr) -> Expr:
    return floats.bitcast(em, e, I32)


def is_half_product(op: Op) -> bool:
    """One side was fp16 before it met fp32."""
    halves = [_was_half(operand) for operand in op.operands]
    return any(halves) and not all(halves)


def _was_half(value: Value) -> bool:
    op = value.op
    while op is not None and op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
        op = op.operands[0].op
    return op is not None and op.name == "arith.extf" and op.operands[0].element == Scalar("f16")


def _half_product(ctx: Context, op: Op, index: Index) -> Expr:
    em, half = ctx.em, Scalar("f16")
    sides = [floats.cast(em, ctx.at(operand, index), half) for operand in op.operands]
    product = floats.call(em, *_function(op.name, sides))
    return floats.cast(em, product, op.result.element)
