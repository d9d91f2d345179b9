"""Which masks can be decided for a whole tile at once, by bounds of affine expressions."""

from __future__ import annotations

import dataclasses

from .context import Context, is_lazy
from .expr import Expr, constant
from .integers import binary
from .ir import I1, I32, Block, Op, Pointer, Tensor, Value
from .strides import constant_of

_SHAPES = frozenset(("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans"))
_LESS = {"slt": ("<", 0, 1), "sle": ("<=", 0, 1), "sgt": ("<", 1, 0), "sge": ("<=", 1, 0)}
Bounds = tuple[Expr, Expr]


def decidable(ctx: Context, block: Block, number: int) -> tuple[str, list[Value]] | None:
    """The C++ test that decides masks of the operations from `number` on, and those masks.

    Masks that hold in any case are noted in the context; None when nothing is left to test.
    """
    tests: list[str] = []
    decided: list[Value] = []
    for op in block.ops:
        if op.name != "arith.cmpi" or not isinstance(op.result.type, Tensor):
            continue
        word = str(op.attrs["word"])
        if word not in _LESS or op.result in ctx.assumed or op.result in ctx.env:
            continue
        if not _guards(op.result) or not all(_available(ctx, v, set()) for v in op.operands):
            continue
        test = _test(ctx, op, _LESS[word])
        if test == "true":
            ctx.assumed[op.result] = ctx.em.level
        elif test and test != "false":
            tests.append(test)
            decided.append(op.result)
    if not tests:
        return None
    return ctx.em.scalar(" && ".join(tests), I1, ctx.em.level).text, decided


def _test(ctx: Context, op: Op, rule: tuple[str, int, int]) -> str:
    sign, small, large = rule
    low = bounds(ctx, op.operands[small])
    high = bounds(ctx, op.operands[large])
    if low is None or high is None:
        return ""
    top, bottom = low[1], high[0]
    if top.const is not None and bottom.const is not None:
        holds = top.const < bottom.const if sign == "<" else top.const <= bottom.const
        return "true" if holds else "false"
    return f"({top.text} {sign} {bottom.text})"


def _guards(mask: Value) -> bool:
    """Whether a comparison serves as a mask of a load, store or select."""
    stack, seen = [mask], {mask}
    while stack:
        value = stack.pop()
        for user in value.users:
            if user.name in ("tt.load", "tt.store", "arith.select"):
                return True
            passes = user.name in _SHAPES or user.name in ("arith.andi", "arith.ori")
            if passes and user.result not in seen:
                seen.add(user.result)
                stack.append(user.result)
    return False


def _available(ctx: Context, value: Value, seen: set[Value]) -> bool:
    """Whether a value can be computed here: bound already, or pure arithmetic on bound ones."""
    if value in seen or value in ctx.env:
        return True
    seen.add(value)
    op = value.op
    if op is None or op.name == "tt.load" or not is_lazy(op.name):
        return False
    return all(_available(ctx, operand, seen) for operand in op.operands)


def bounds(ctx: Context, value: Value) -> Bounds | None:
    """Least and greatest element of an integer tensor, as scalars; None if they cannot be told."""
    if isinstance(value.element, Pointer) or value.element.is_float:
        return None
    if not isinstance(value.type, Tensor):
        e = ctx.scalar(value)
        return e, e
    op = value.op
    if op is None:
        return None
    if op.name in _SHAPES:
        return bounds(ctx, op.operands[0])
    if op.name == "tt.make_range":
        start, end = op.attrs["start"], op.attrs["end"]
        assert isinstance(start, int) and isinstance(end, int)
        return constant(start, I32), constant(end - 1, I32)
    if op.name == "arith.constant":
        number = op.attrs["value"]
        assert isinstance(number, (int, bool))
        return (constant(number, value.element),) * 2
    return _arithmetic(ctx, op)


def _arithmetic(ctx: Context, op: Op) -> Bounds | None:
    em = ctx.em
    name = op.name.removeprefix("arith.")
    parts = [bounds(ctx, operand) for operand in op.operands]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if name == "subi":
        known[1] = known[1][1], known[1][0]
    if name == "extsi":
        return _widened(ctx, op, known[0])
    factor = constant_of(op.operands[1]) if len(op.operands) > 1 else None
    scaled = name in ("muli", "divsi") and factor is not None and factor > 0
    if scaled or name in ("addi", "subi", "maxsi", "minsi"):
        low, high = (binary(em, name, known[0][i], known[1][i]) for i in (0, 1))
        return low, high
    return None


def _widened(ctx: Context, op: Op, pair: Bounds) -> Bounds:
    low, high = (dataclasses.replace(ctx.em.widen(e), align=1) for e in pair)
    return low, high
