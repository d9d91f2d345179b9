"""State of one lowering, and the evaluation of a tensor value at an index."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...errors import LoweringError
from . import floats, integers, pointers
from .expr import ZERO, Emitter, Expr, constant
from .index import Index, flatten, unflatten
from .ir import I1, I32, I64, Block, Function, Op, Pointer, Value

if TYPE_CHECKING:
    from .ahead import Ahead
    from .emulation import Emulation
    from .hazards import Hazards
    from .storage import Storage

_UNSIGNED_USERS = frozenset(
    f"arith.{name}" for name in ("uitofp", "extui", "shrui", "divui", "remui", "maxui", "minui")
)

EFFECTS = frozenset(("tt.store", "tt.atomic_rmw", "tt.atomic_cas"))
"""Operations that change memory."""


class Context:
    """Everything the rules share; `emulation` and `hazards` only where a chip is emulated."""

    def __init__(
        self,
        function: Function,
        emulation: Emulation | None = None,
        hazards: Hazards | None = None,
    ) -> None:
        self.function = function
        self.emulation = emulation
        self.hazards = hazards
        self.em = Emitter()
        self.env: dict[Value, Storage] = {}
        self.levels: dict[Op, int] = {}
        """Level of the region in which an operation was met: loads do not move above it."""
        self.assumed: dict[Value, int] = {}
        """Masks known to be true, with the level of the branch that knows it."""
        self.order = {op: number for number, op in enumerate(function.walk())}
        self.loops: dict[Op, tuple[Op, ...]] = {}
        """The loops around an operation, outermost first."""
        _note_loops(function.body, (), self.loops)
        self.lazy_loads: list[Value] = []
        self.buffers: dict[Value, str] = {}
        self.ahead: dict[Op, Ahead] = {}
        """Dots whose right side is made one iteration ahead."""
        self.iteration = ""
        """Which iteration values are for, when it is not the one being emitted."""

    @contextlib.contextmanager
    def region(self, header: str) -> Iterator[int]:
        """An open scope; storage made inside is forgotten outside."""
        saved = (dict(self.env), dict(self.buffers), dict(self.assumed), list(self.lazy_loads))
        with self.em.scope(header) as level:
            yield level
        self.env, self.buffers, self.assumed, self.lazy_loads = saved

    def at(self, value: Value, index: Index) -> Expr:
        """The value's elements at an index."""
        if value in self.assumed:
            return dataclasses.replace(constant(True, I1), level=self.assumed[value])
        if value in self.env:
            return self.env[value].read(self.em, index)
        key = (value, index.key(), self.iteration)
        known = self.em.recall(key)
        if known is not None:
            return known
        if value.op is None:
            raise LoweringError(f"tilec: expected {value.name} to be bound, got a free argument")
        deepest = _Deepest(self)
        result = evaluate(deepest, value, value.op, index)
        level = max(result.level, deepest.level)
        return self.em.remember(key, dataclasses.replace(result, level=level))

    def scalar(self, value: Value) -> Expr:
        return self.at(value, Index(()))


def _note_loops(block: Block, around: tuple[Op, ...], found: dict[Op, tuple[Op, ...]]) -> None:
    for op in block.ops:
        found[op] = around
        inner = (*around, op) if op.name in ("scf.for", "scf.while") else around
        for region in op.regions:
            _note_loops(region, inner, found)


class _Deepest:
    """Evaluates operands and notes the deepest level any of them needed, folded or not."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.em = ctx.em
        self.level = 0

    def at(self, value: Value, index: Index) -> Expr:
        expr = self.ctx.at(value, index)
        self.level = max(self.level, expr.level)
        return expr


def evaluate(d: _Deepest, value: Value, op: Op, index: Index) -> Expr:
    if op.name in SHAPE_RULES:
        return SHAPE_RULES[op.name](d, op, index, value)
    if d.ctx.hazards is not None:
        wrong = d.ctx.hazards.wrong(d.ctx, value, op, index)
        if wrong is not None:
            return wrong
    if op.name == "tt.load":
        return _load(d, op, index)
    operands = [d.at(operand, index) for operand in op.operands]
    return elementwise(d.em, op, operands)


# ---- shapes: an index of the result becomes an index of the operand


def _splat(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    return d.at(op.operands[0], Index(()))


def _broadcast(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    source = op.operands[0].shape
    dims = tuple(ZERO if size == 1 else dim for size, dim in zip(source, index.dims, strict=True))
    return d.at(op.operands[0], Index(dims))


def _expand_dims(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    axis = int(op.attrs["axis"])  # type: ignore[arg-type]
    dims = index.dims[:axis] + index.dims[axis + 1 :]
    return d.at(op.operands[0], Index(dims, index.flat))


def _reshape(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    source, target = op.operands[0].shape, value.shape
    if [s for s in source if s > 1] == [s for s in target if s > 1]:
        kept = iter(dim for dim, size in zip(index.dims, target, strict=True) if size > 1)
        dims = tuple(next(kept) if size > 1 else ZERO for size in source)
        return d.at(op.operands[0], Index(dims, index.flat))
    return d.at(op.operands[0], _reshaped(d.em, index, source, target))


def _reshaped(em: Emitter, index: Index, source: Shape, target: Shape) -> Index:
    """Trailing dimensions that stay as they are keep their part of the index."""
    kept = 0
    while kept < min(len(source), len(target)) - 1 and source[~kept] == target[~kept]:
        kept += 1
    lead = len(target) - kept
    if kept and all(dim.is_uniform for dim in index.dims[:lead]):
        flat = flatten(em, Index(index.dims[:lead]), target[:lead])
        head = unflatten(em, flat, source[: len(source) - kept])
        return Index((*head.dims, *index.dims[lead:]))
    return unflatten(em, flatten(em, index, target), source)


def _trans(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    order = op.attrs["order"]
    assert isinstance(order, tuple)
    dims = [ZERO] * len(order)
    for to, source in enumerate(order):
        dims[source] = index.dims[to]
    return d.at(op.operands[0], Index(tuple(dims)))


def _make_range(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    start = constant(int(op.attrs["start"]), I32)  # type: ignore[arg-type]
    return integers.binary(d.em, "addi", index.dims[0], start)


def _join(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    which, inner = index.dims[-1], Index(index.dims[:-1])
    if which.const is not None:
        return d.at(op.operands[int(which.const)], inner)
    sides = [d.at(operand, inner) for operand in op.operands]
    first = integers.compare(d.em, "eq", which, ZERO)
    return floats.select(d.em, first, *sides)


def _split(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    which = constant(op.results.index(value), I32)
    return d.at(op.operands[0], Index((*index.dims, which)))


def _unsplat(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    return d.at(op.operands[0], Index((ZERO,) * len(op.operands[0].shape)))


def _constant(d: _Deepest, op: Op, index: Index, value: Value) -> Expr:
    number = op.attrs["value"]
    assert isinstance(number, (int, float, bool))
    return constant(number, value.element)


Shape = tuple[int, ...]
ShapeRule = Callable[[_Deepest, Op, Index, Value], Expr]
SHAPE_RULES: dict[str, ShapeRule] = {
    "tt.splat": _splat,
    "tt.broadcast": _broadcast,
    "tt.expand_dims": _expand_dims,
    "tt.reshape": _reshape,
    "tt.trans": _trans,
    "tt.make_range": _make_range,
    "tt.join": _join,
    "tt.split": _split,
    "tt.unsplat": _unsplat,
    "arith.constant": _constant,
}


def _load(d: _Deepest, op: Op, index: Index) -> Expr:
    pointer = d.at(op.operands[0], index)
    mask = d.at(op.operands[1], index) if len(op.operands) > 1 else None
    other = d.at(op.operands[2], index) if len(op.operands) > 2 else None
    if d.ctx.hazards is not None:
        other = d.ctx.hazards.fill(op, other)
    unsigned = any(user.name in _UNSIGNED_USERS for user in _near_users(op.result))
    return pointers.load(d.em, pointer, mask, other, d.ctx.levels.get(op, 0), unsigned)


def _near_users(value: Value) -> set[Op]:
    """Users, and users of bit operations and shape changes: they decide a byte's extension."""
    found: set[Op] = set()
    stack = [value]
    while stack:
        for user in stack.pop().users:
            bits = user.name in ("arith.andi", "arith.ori", "arith.xori")
            if user not in found and (bits or user.name in SHAPE_RULES):
                stack += user.results
            found.add(user)
    return found


# ---- element-wise operations, on lanes or scalars alike


def elementwise(em: Emitter, op: Op, e: list[Expr]) -> Expr:
    """One operation on evaluated operands."""
    family, _, name = op.name.partition(".")
    if op.name in floats.BINARY:
        function, operator = floats.BINARY[op.name]
        return floats.call(em, function, e, operator)
    if op.name in floats.UNARY:
        return floats.call(em, floats.UNARY[op.name], e)
    if family == "arith" and name in integers.BINARY:
        return integers.binary(em, name, *e)
    return ELEMENTWISE[op.name](em, op, e)


def _extern(em: Emitter, op: Op, e: list[Expr]) -> Expr:
    symbol = str(op.attrs["symbol"])
    if symbol not in floats.EXTERN:
        known = ", ".join(sorted(floats.EXTERN))
        raise LoweringError(f"{op.loc}: expected one of {known}, got {symbol}")
    return floats.call(em, floats.EXTERN[symbol], e)


def _bitcast(em: Emitter, op: Op, e: list[Expr]) -> Expr:
    to = op.result.element
    if isinstance(to, Pointer):
        return pointers.recast(em, e[0], to)
    return floats.bitcast(em, e[0], to)


def _umulhi(em: Emitter, op: Op, e: list[Expr]) -> Expr:
    if op.result.element == I64:
        raise LoweringError(f"{op.loc}: expected umulhi of i32, got i64")
    return floats.call(em, "umulhi", e)


def _select(em: Emitter, op: Op, e: list[Expr]) -> Expr:
    if isinstance(op.result.element, Pointer):
        raise LoweringError(f"{op.loc}: expected a select of numbers, got pointers")
    return floats.select(em, *e)


def _cast_int(sign: bool) -> Callable[[Emitter, Op, list[Expr]], Expr]:
    return lambda em, op, e: integers.cast_int(em, e[0], op.result.element, sign)


def _from_int(sign: bool) -> Callable[[Emitter, Op, list[Expr]], Expr]:
    return lambda em, op, e: floats.from_int(em, e[0], op.result.element, sign)


def _float_cast(em: Emitter, op: Op, e: list[Expr]) -> Expr:
    return floats.cast(em, e[0], op.result.element)


def _clamp(em: Emitter, op: Op, e: list[Expr]) -> Expr:
    return floats.clamp(em, e[0], e[1], e[2], op.attrs.get("propagateNan") == "all")


def _abs_int(em: Emitter, op: Op, e: list[Expr]) -> Expr:
    minus = integers.binary(em, "subi", constant(0, e[0].type), e[0])
    return integers.binary(em, "maxsi", e[0], minus)


ELEMENTWISE: dict[str, Callable[[Emitter, Op, list[Expr]], Expr]] = {
    "arith.cmpi": lambda em, op, e: integers.compare(em, str(op.attrs["word"]), *e),
    "arith.cmpf": lambda em, op, e: floats.compare(em, str(op.attrs["word"]), *e),
    "arith.select": _select,
    "arith.extsi": _cast_int(True),
    "arith.extui": _cast_int(False),
    "arith.trunci": _cast_int(True),
    "arith.index_cast": _cast_int(True),
    "arith.sitofp": _from_int(True),
    "arith.uitofp": _from_int(False),
    "arith.fptosi": lambda em, op, e: floats.to_int(em, e[0], op.result.element),
    "arith.fptoui": lambda em, op, e: floats.to_int(em, e[0], op.result.element),
    "arith.extf": _float_cast,
    "arith.truncf": _float_cast,
    "tt.fp_to_fp": _float_cast,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
    "math.fma": lambda em, op, e: floats.call(em, "fma", e),
    "math.absi": _abs_int,
    "tt.clampf": _clamp,
    "tt.mulhiui": _umulhi,
    "tt.extern_elementwise": _extern,
    "tt.addptr": lambda em, op, e: pointers.advance(em, *e),
}


def is_lazy(name: str) -> bool:
    """Operations that are evaluated where they are used."""
    family, _, bare = name.partition(".")
    arithmetic = name in floats.BINARY or name in floats.UNARY or name in ELEMENTWISE
    integer = family == "arith" and bare in integers.BINARY
    return arithmetic or integer or name in SHAPE_RULES or name == "tt.load"
