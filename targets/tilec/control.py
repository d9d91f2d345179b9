"""scf.for, scf.if and scf.while: structured control flow with carried values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from ...errors import LoweringError
from . import ahead, dot_pairs
from .ahead import Ahead
from .context import Context
from .dot import settle_operands
from .expr import Emitter, Expr, constant
from .index import Index
from .integers import binary, extended
from .ir import I32, I64, Block, Op, Pointer, Tensor, Value
from .nest import fill, memory_of, nest, pin, variable
from .pointers import advance
from .storage import Bound, Memory, Parts, Registers, Storage, form_of, new_memory
from .strides import step

RunBlock = Callable[[Context, Block, Callable[[], None]], None]
"""Runs a block and then, in each version of it, what the last argument does."""


class Slot:
    """Mutable storage of one carried value or result."""

    def __init__(self, ctx: Context, value: Value, in_memory: bool) -> None:
        self.ctx, self.value = ctx, value
        self.form = form_of(value.shape, in_memory)
        self.level = ctx.em.level
        self.memory: Memory | None = None
        self.pieces: list[Expr] = []
        if self.form == "memory":
            self.memory = new_memory(ctx.em, value.shape, value.element, self.level)
        else:
            pieces = {"scalar": 1, "parts": value.type.size if value.shape else 1}  # type: ignore[union-attr]
            count = pieces.get(self.form) or value.type.size // 16  # type: ignore[union-attr]
            for _ in range(count):
                self.pieces.append(variable(ctx.em, value.element, self.form, "", self.level))

    def start(self, source: Value) -> None:
        """The first value, which cannot depend on the slot itself."""
        if self.memory is not None and source not in self.ctx.env:
            fill(self.ctx, self.memory, source)
        else:
            self.stage(source)()

    def stage(self, source: Value) -> Callable[[], None]:
        """Evaluate `source` now; the returned function assigns it."""
        ctx, em = self.ctx, self.ctx.em
        if self.memory is not None:
            return self._stage_memory(source)
        values = []
        for index in nest(em, self.value.shape):
            e = pin(em, ctx.at(source, index), self.form)
            values.append(_normal(em, e))
        own = {piece.text for piece in self.pieces}

        def commit() -> None:
            for piece, e in zip(self.pieces, values, strict=True):
                if piece.text != e.text:
                    em.line(f"{piece.text} = {e.text};")

        if any(e.text.startswith("m") and e.text not in own for e in values):
            values = [_copied(em, e) for e in values]
        return commit

    def _stage_memory(self, source: Value) -> Callable[[], None]:
        ctx, memory = self.ctx, self.memory
        assert memory is not None
        held = ctx.env.get(source)
        if held is None and _updates_itself(ctx, self.value, source):
            return lambda: fill(ctx, memory, source)
        owner = ctx.buffers.get(source)
        if isinstance(held, Memory) and owner == memory.pointer:
            return lambda: None
        if not isinstance(held, Memory):
            held = memory_of(ctx, source)
        elif owner:  # another carried tensor's array, which may change first
            held = _snapshot(ctx, held)
        whole = held

        def commit() -> None:
            if whole.pointer != memory.pointer:
                for index in nest(ctx.em, memory.shape):
                    memory.write(ctx.em, index, whole.read(ctx.em, index))

        return commit

    def storage(self, level: int) -> Storage:
        """What readers at `level` see."""
        if self.memory is not None:
            alias = self.ctx.em.name("buf")
            self.ctx.em.line(f"auto* const {alias} = {self.memory.pointer};")
            return Memory(alias, self.memory.shape, self.memory.element, level)
        pieces = [dataclasses.replace(piece, level=level) for piece in self.pieces]
        if self.form == "scalar":
            return Bound(pieces[0])
        kind = Parts if self.form == "parts" else Registers
        return kind(pieces, self.value.shape, level)

    def bind(self, value: Value) -> None:
        self.ctx.env[value] = self.storage(self.ctx.em.level)
        if self.memory is not None:
            self.ctx.buffers[value] = self.memory.pointer


def _snapshot(ctx: Context, memory: Memory) -> Memory:
    kept = new_memory(ctx.em, memory.shape, memory.element, ctx.em.level)
    for index in nest(ctx.em, memory.shape):
        kept.write(ctx.em, index, memory.read(ctx.em, index))
    return kept


def _updates_itself(ctx: Context, carried: Value, source: Value) -> bool:
    """Whether each element of `source` needs the carried tensor at its own position only.

    Then it goes where the old one was, after whatever else is carried on was evaluated.
    """
    stack, seen, found = [source], {source}, False
    while stack:
        value = stack.pop()
        if value in ctx.env:
            own = value is carried
            found |= own
            shared = value in ctx.buffers and value.op is None
            if (own and value.shape != source.shape) or (shared and not own):
                return False  # another carried tensor may change first
            continue
        if value.op is None:
            return False
        moves = carried.shape != value.shape or value.op.name in _MOVING
        if moves and _depends(ctx, value, carried):
            return False
        fresh = [v for v in value.op.operands if v not in seen]
        seen.update(fresh)
        stack += fresh
    return found


_MOVING = frozenset(("tt.trans", "tt.reshape", "tt.join", "tt.split", "tt.load"))


def _depends(ctx: Context, value: Value, carried: Value) -> bool:
    stack, seen = [value], {value}
    while stack:
        value = stack.pop()
        if value is carried:
            return True
        if value not in ctx.env and value.op is not None:
            fresh = [v for v in value.op.operands if v not in seen]
            seen.update(fresh)
            stack += fresh
    return False


def _normal(em: Emitter, e: Expr) -> Expr:
    """Narrow integers cross block borders sign-extended."""
    return extended(em, e, "s")


def _copied(em: Emitter, e: Expr) -> Expr:
    name = em.name("t")
    em.line(f"const auto {name} = {e.text};")
    return dataclasses.replace(e, text=name)


def assign(ctx: Context, slots: list[Slot], sources: list[Value]) -> None:
    """Parallel assignment. Arrays go first: what fills them may name scalars and vectors."""
    commits = [(slot, slot.stage(source)) for slot, source in zip(slots, sources, strict=True)]
    for _, commit in sorted(commits, key=lambda each: each[0].memory is None):
        commit()


@dataclasses.dataclass
class Shifted:
    """A carried tensor that only moves by a uniform amount: its start plus one scalar."""

    ctx: Context
    start: Value
    moved: Expr

    def read(self, em: Emitter, index: Index) -> Expr:
        start = self.ctx.at(self.start, index)
        if isinstance(start.type, Pointer):
            return advance(em, start, self.moved)
        moved = dataclasses.replace(self.moved, type=start.type)
        return binary(em, "addi", start, moved)


def _increment(arg: Value, yielded: Value) -> Value | None:
    """The uniform offset of ``yield arg + offset``."""
    op = yielded.op
    if not isinstance(arg.type, Tensor) or op is None or op.name not in ("tt.addptr", "arith.addi"):
        return None
    if op.name == "arith.addi" and step(arg, 0) is None and not _is_int(arg):
        return None
    first, second = op.operands
    other = second if first is arg else first if second is arg else None
    uniform = other is not None and all(step(other, d) == 0 for d in range(len(arg.shape)))
    return other if uniform else None


def _is_int(value: Value) -> bool:
    return not isinstance(value.element, Pointer) and not value.element.is_float


def lower_for(ctx: Context, op: Op, run: RunBlock) -> None:
    em, body = ctx.em, op.regions[0]
    settle_operands(ctx, op)
    low, high, stride = (ctx.scalar(v) for v in op.operands[:3])
    if ctx.hazards is not None and ctx.hazards.skips_loop(ctx.function, op):
        high = low
    buffers = ahead.begin(ctx, op, low, high, dot_pairs.fill)
    induction, *args = body.args
    inits, yields = op.operands[3:], body.terminator.operands
    slots: dict[Value, Slot] = {}
    shifts: dict[Value, str] = {}
    for arg, yielded in zip(args, yields, strict=True):
        if _increment(arg, yielded) is not None and not _used_after(op, args.index(arg)):
            shifts[arg] = em.name("m")
            em.line(f"int64_t {shifts[arg]} = 0;")
        else:
            slots[arg] = Slot(ctx, arg, needs_memory(arg))
            _refuse_pointers(op, arg)
    for arg, slot in slots.items():
        slot.start(inits[args.index(arg)])
    name = em.name("i")
    ctype = "int64_t" if induction.type == I64 else "int32_t"
    header = f"for ({ctype} {name} = {low.text}; {name} < {high.text}; {name} += {stride.text})"
    with ctx.region(header) as level:
        align = min(low.align, stride.align)
        nonneg = low.nonneg and stride.nonneg
        index = Expr("s", name, low.type, level, align=align, nonneg=nonneg)
        ctx.env[induction] = Bound(index)
        for arg, slot in slots.items():
            slot.bind(arg)
        for arg, moved in shifts.items():
            expr = Expr("s", moved, I64, level)
            ctx.env[arg] = Shifted(ctx, inits[args.index(arg)], expr)

        def finish() -> None:
            assign(ctx, list(slots.values()), [yields[args.index(arg)] for arg in slots])
            for arg, moved in shifts.items():
                amount = _increment(arg, yields[args.index(arg)])
                assert amount is not None
                zero = Index(tuple(constant(0, I32) for _ in arg.shape))
                em.line(f"{moved} += {ctx.at(amount, zero).text};")

        after = binary(em, "addi", index, stride)
        for dot, pairs in buffers.items():
            more = f"{after.text} < {high.text}"
            made = Ahead(f"{pairs}now", f"{pairs}next", op, after, more, dot_pairs.fill)
            ctx.ahead[dot] = made
        run(ctx, body, finish)
    for arg, result in zip(args, op.results, strict=True):
        if arg in slots:
            slots[arg].bind(result)


def _used_after(op: Op, number: int) -> bool:
    return bool(op.results) and bool(op.results[number].users)


def _refuse_pointers(op: Op, arg: Value) -> None:
    if isinstance(arg.type, Tensor) and isinstance(arg.element, Pointer):
        raise LoweringError(
            f"{op.loc}: expected carried pointers to move by one offset for the whole tile, "
            "got another update (carry the offset instead)"
        )


def needs_memory(value: Value) -> bool:
    """Row statistics are read one by one inside tiles: an array serves that better."""
    return len(value.shape) == 1 and any(
        user.name == "tt.expand_dims" and user.attrs["axis"] == 1 for user in value.users
    )


def lower_if(ctx: Context, op: Op, run: RunBlock) -> None:
    condition = ctx.scalar(op.operands[0])
    slots = [Slot(ctx, result, needs_memory(result)) for result in op.results]
    # two ifs, not if and else: what either hoists lands between them
    for test, region in zip((condition.text, f"!{condition.text}"), op.regions, strict=False):
        sources = list(region.terminator.operands)
        with ctx.region(f"if ({test})"):
            run(ctx, region, functools.partial(assign, ctx, slots, sources))
    for slot, result in zip(slots, op.results, strict=True):
        slot.bind(result)


def lower_while(ctx: Context, op: Op, run: RunBlock) -> None:
    em = ctx.em
    before, after = op.regions
    carried = [Slot(ctx, arg, needs_memory(arg)) for arg in before.args]
    results = [Slot(ctx, result, needs_memory(result)) for result in op.results]
    assign(ctx, carried, list(op.operands))
    with ctx.region("for (;;)"):
        for slot, arg in zip(carried, before.args, strict=True):
            slot.bind(arg)
        run(ctx, before, lambda: None)
        condition, *passed = before.terminator.operands
        goes_on = ctx.scalar(condition)
        assign(ctx, results, passed)
        em.line(f"if (!({goes_on.text})) break;")
        for slot, arg in zip(results, after.args, strict=True):
            slot.bind(arg)
        sources = list(after.terminator.operands)
        run(ctx, after, lambda: assign(ctx, carried, sources))
    for slot, result in zip(results, op.results, strict=True):
        slot.bind(result)
