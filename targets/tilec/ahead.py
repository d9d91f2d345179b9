"""Right sides of dots made one iteration ahead of the loop that uses them.

Stores need a while until an AMX tile can be loaded from where they went. So a right side that
depends on nothing of the loop but its counter is made for the next iteration after a dot, in the
other one of two buffers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from .context import EFFECTS, Context, is_lazy
from .dot_forms import Form, form
from .expr import Expr
from .ir import Op, Value
from .storage import Bound

Fill = Callable[[Context, str, Value], None]
"""Stores a right side into a C++ variable."""


@dataclasses.dataclass(frozen=True)
class Ahead:
    """Pointers to the buffer of this iteration and to that of the next."""

    now: str
    next: str
    loop: Op
    counter: Expr
    """The loop's counter in the next iteration."""
    more: str
    """The C++ test whether there is one."""
    fill: Fill


def begin(ctx: Context, loop_op: Op, low: Expr, high: Expr, fill: Fill) -> dict[Op, str]:
    """Before a loop: buffers of each dot that can be ahead, the first one filled."""
    em = ctx.em
    names = {}
    for op in _candidates(ctx, loop_op):
        b = op.operands[1]
        depth, columns = b.shape
        name = em.name("pairs")
        names[op] = name
        em.line(f"Pairs<{depth}, {columns}> {name}[2];")
        em.line(f"auto *{name}now = {name}, *{name}next = {name} + 1;")
        with ctx.region(f"if ({low.text} < {high.text})"):
            _evaluate(ctx, loop_op, b, low, f"(*{name}now)", fill)
    return names


def fill_next(ctx: Context, made: Ahead, b: Value) -> None:
    """Beside a dot: its right side of the next iteration."""
    with ctx.region(f"if ({made.more})"):
        _evaluate(ctx, made.loop, b, made.counter, f"(*{made.next})", made.fill)


def swap(ctx: Context, made: Ahead) -> None:
    """After a dot: the buffers change places."""
    spare = ctx.em.name("spare")
    ctx.em.line(f"auto* const {spare} = {made.now};")
    ctx.em.line(f"{made.now} = {made.next}, {made.next} = {spare};")


def _evaluate(ctx: Context, loop_op: Op, b: Value, counter: Expr, target: str, fill: Fill) -> None:
    """`b` for another value of the counter: nothing that is known of this iteration counts."""
    for known in (ctx.env, ctx.assumed):
        for value in [v for v in known if v.op is not None and loop_op in ctx.loops[v.op]]:
            del known[value]
    ctx.env[loop_op.regions[0].args[0]] = Bound(counter)
    levels = ctx.levels
    ctx.levels = {op: min(level, ctx.em.level) for op, level in levels.items()}
    for op in loop_op.walk():
        ctx.levels[op] = ctx.em.level
    kept, ctx.iteration = ctx.iteration, target
    fill(ctx, target, b)
    ctx.iteration, ctx.levels = kept, levels


def _candidates(ctx: Context, loop_op: Op) -> Iterator[Op]:
    """Dots of bf16 right in the body that store their right side, which the counter decides."""
    if ctx.emulation is not None or any(op.name in EFFECTS for op in loop_op.walk()):
        return  # a load is checked where it stands, not an iteration before
    for op in loop_op.regions[0].ops:
        # a product in bands comes late enough after its right side
        if form(ctx, op) is Form.WHOLE and _decided(loop_op, op.operands[1]):
            yield op


def _decided(loop_op: Op, b: Value) -> bool:
    """Whether a value is made of the counter and of what the loop does not change."""
    counter, *carried = loop_op.regions[0].args
    inside = set(loop_op.walk())
    stack, seen, moves = [b], {b}, False
    while stack:
        value = stack.pop()
        moves |= value is counter
        if value in carried:
            return False
        if value.op is None or value.op not in inside:
            continue
        if not is_lazy(value.op.name):
            return False
        fresh = [v for v in value.op.operands if v not in seen]
        seen.update(fresh)
        stack += fresh
    return moves
