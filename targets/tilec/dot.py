"""tt.dot: ``acc[m, n] = fma(a[m, k], b[k, n], acc[m, n])`` for k ascending, however it is tiled.

Of bf16 by bf16: see `dot_pairs`. Otherwise three forms with the same bits: named vectors for a few
rows (the right side is evaluated inside the k loop and never stored), the register-blocked routine
of dot.h for more rows, and a plain loop for integers and odd sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import dot_pairs
from .context import Context
from .dot_forms import form
from .expr import LANES, Expr, constant
from .index import Index, lane_index
from .ir import F32, I32, Element, Op, Scalar, Value
from .nest import cost, loop, memory_of, nest
from .operands import accumulator, always, bind_accumulator, in_place
from .storage import Memory, Registers, new_memory
from .strides import step

FEW_ROWS, FEW_VECTORS = 6, 24


def lower_dot(ctx: Context, op: Op) -> None:
    rows, columns = op.result.shape[-2:]
    element = op.result.element
    assert isinstance(element, Scalar)
    if (how := form(ctx, op)) is not None:
        dot_pairs.lower(ctx, op, how)
        return
    regular = element == F32 and columns % LANES == 0 and len(op.result.shape) == 2
    if regular and rows <= FEW_ROWS and rows * columns // LANES <= FEW_VECTORS:
        _in_registers(ctx, op)
    elif regular:
        _blocked(ctx, op)
    else:
        _plain(ctx, op)


def _in_registers(ctx: Context, op: Op) -> None:
    em = ctx.em
    a, b, c = op.operands
    (rows, depth), columns = a.shape, b.shape[1]
    level = em.level
    left = _left_reader(ctx, a)
    sums: list[Expr] = []
    for index in nest(em, op.result.shape):
        name = em.name("acc")
        em.line(f"vf {name} = {em.lanes(ctx.at(c, index))};")
        sums.append(Expr("v", name, F32, level))
    per_row = columns // LANES
    with loop(em, depth, 1, unroll=2) as k:
        lanes = [lane_index(constant(LANES * j, I32)) for j in range(per_row)]
        right = [em.lanes(ctx.at(b, Index((k, lane)))) for lane in lanes]
        for m in range(rows):
            factor = em.lanes(left(constant(m, I32), k))
            for j in range(per_row):
                name = sums[m * per_row + j].text
                em.line(f"{name} = fma({factor}, {right[j]}, {name});")
    ctx.env[op.result] = Registers(sums, op.result.shape, level)


def _left_reader(ctx: Context, a: Value) -> Callable[[Expr, Expr], Expr]:
    """Elements of the left side one by one: in place when that costs a load, else from memory."""
    direct = a in ctx.env and isinstance(ctx.env[a], Memory)
    if direct or (a not in ctx.env and cost(ctx, a, {}) <= 16 and _is_simple(a)):
        return lambda m, k: ctx.at(a, Index((m, k)))
    memory = memory_of(ctx, a)
    return lambda m, k: memory.read(ctx.em, Index((m, k)))


def _is_simple(value: Value) -> bool:
    """A load, perhaps widened: nothing that is cheaper 16 lanes at a time."""
    op = value.op
    while op is not None and op.name in ("arith.extf", "tt.trans", "tt.broadcast", "tt.reshape"):
        op = op.operands[0].op
    return op is not None and op.name == "tt.load"


def settle_operands(ctx: Context, loop_op: Op) -> None:
    """Before a loop: operands of its dots that it does not change are computed once."""
    for op in loop_op.walk():
        if op.name != "tt.dot":
            continue
        how = form(ctx, op)
        for number, operand in enumerate(op.operands[:2]):
            outside = operand.op is not None and loop_op not in ctx.loops[operand.op]
            if not outside or operand in ctx.env:
                continue
            if how is not None:
                if number == 0:
                    dot_pairs.settle_left(ctx, op, how)
            elif not _lies_right(ctx, operand):
                memory_of(ctx, operand)


def _lies_right(ctx: Context, value: Value) -> bool:
    """A load without mask of f32 rows: used where it is."""
    op = value.op
    if op is None or op.name != "tt.load" or len(value.shape) != 2 or not always(ctx, op):
        return False
    pointer = op.operands[0]
    return value.element == F32 and step(pointer, 1) == 1 and step(pointer, 0) is not None


# ---- more rows


def _blocked(ctx: Context, op: Op) -> None:
    em = ctx.em
    a, b, c = op.operands
    (rows, depth), columns = a.shape, b.shape[1]
    memory = accumulator(ctx, op, c)
    left, left_stride = _operand(ctx, a, ("f32",))
    right, right_stride = _operand(ctx, b, ("f32",))
    sizes = f"{rows}, {columns}, {depth}"
    sides = f"{left}, {left_stride}, {right}, {right_stride}"
    em.line(f"dot<{sizes}>({memory.pointer}, {columns}, {sides});")
    bind_accumulator(ctx, op, c, memory)


def _operand(ctx: Context, value: Value, direct: tuple[str, ...]) -> tuple[str, str]:
    """Pointer and row stride of a matrix: where it already lies, if it lies right."""
    place = in_place(ctx, value, direct)
    if place is not None:
        return place
    memory = memory_of(ctx, value)
    return memory.pointer, str(memory.shape[1])


# ---- anything else


def _plain(ctx: Context, op: Op) -> None:
    em = ctx.em
    a, b, c = op.operands
    depth = a.shape[-1]
    memory = new_memory(em, op.result.shape, op.result.element, em.level)
    for operand in (a, b):
        if operand not in ctx.env and cost(ctx, operand, {}) > 16:
            memory_of(ctx, operand)
    for index in nest(em, op.result.shape):
        *batch, m, n = index.dims
        start = ctx.at(c, index)
        wide = not index.is_uniform
        name = em.name("acc")
        ctype = ("vf" if op.result.element == F32 else "vi") if wide else "auto"
        em.line(f"{ctype} {name} = {em.lanes(start) if wide else start.text};")
        with loop(em, depth, 1) as k:
            x = ctx.at(a, Index((*batch, m, k)))
            y = ctx.at(b, Index((*batch, k, n)))
            left, right = (em.lanes(x), em.lanes(y)) if wide else (x.text, y.text)
            em.line(_accumulate(name, left, right, op.result.element, wide))
        memory.write(em, index, Expr("v" if wide else "s", name, op.result.element, em.level))
    ctx.env[op.result] = dataclasses.replace(memory)


def _accumulate(name: str, left: str, right: str, element: Element, wide: bool) -> str:
    if element == F32:
        return f"{name} = fma({left}, {right}, {name});"
    if wide:
        return f"{name} = add({name}, mul({left}, {right}));"
    return f"{name} += {left} * {right};"
