"""tt.reduce and tt.scan. The order depends on the extents alone: 16 lanes on every machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from .context import Context, elementwise
from .expr import LANES, Emitter, Expr, constant, scalar_c, vector_c
from .index import Index, lane_index
from .ir import I32, Block, Op, Value
from .nest import cost, loop, memory_of, nest, pin
from .storage import Bound, Memory, Parts, Registers, Storage, form_of, new_memory

ReadChunk = Callable[[Expr], list[Expr]]
UNROLLED = 16
"""Vectors of a row that are reduced without a loop."""
WRITTEN_OUT = 512
"""Instructions at most to read sixteen rows that are reduced at once."""


def combine(em: Emitter, region: Block, left: list[Expr], right: list[Expr]) -> list[Expr]:
    """The region applied to two tuples of operands, lane by lane."""
    values: dict[Value, Expr] = dict(zip(region.args, [*left, *right], strict=True))
    for op in region.ops[:-1]:
        operands = [values[v] if v in values else _outer(v) for v in op.operands]
        values[op.result] = _local_constant(op) or elementwise(em, op, operands)
    return [values[v] if v in values else _outer(v) for v in region.terminator.operands]


def _local_constant(op: Op) -> Expr | None:
    if op.name != "arith.constant":
        return None
    number = op.attrs["value"]
    assert isinstance(number, (int, float, bool))
    return constant(number, op.result.element)


def _outer(value: Value) -> Expr:
    assert value.op is not None and value.op.name == "arith.constant", "regions see constants only"
    found = _local_constant(value.op)
    assert found is not None
    return found


def lower_reduce(ctx: Context, op: Op) -> None:
    axis = op.attrs["axis"]
    assert isinstance(axis, int)
    shape = op.operands[0].shape
    rows = shape[:axis] + shape[axis + 1 :]
    along_lanes = axis == len(shape) - 1 and shape[axis] % LANES == 0
    outputs = [_Output(ctx.em, result, rows, along_lanes) for result in op.results]
    if along_lanes and _may_take_sixteen(ctx, op, rows, shape[axis]):
        reduced = _sixteen_rows(ctx, op, rows, axis)
    elif along_lanes:
        reduced = ((row, _lanes_row(ctx, op, row, axis)) for row in element_nest(ctx.em, rows))
    else:
        reduced = ((row, _column(ctx, op, row, axis)) for row in nest(ctx.em, rows))
    for row, values in reduced:
        for output, expr in zip(outputs, values, strict=True):
            output.put(row, expr)
    for output in outputs:
        ctx.env[output.value] = output.storage()


def element_nest(em: Emitter, rows: tuple[int, ...], at: tuple[Expr, ...] = ()) -> Iterator[Index]:
    """Each position of a shape by itself; extents below 16 are written out."""
    if not rows:
        yield Index(at)
        return
    if rows[0] < LANES:
        for i in range(rows[0]):
            yield from element_nest(em, rows[1:], (*at, constant(i, I32)))
        return
    with loop(em, rows[0], 1) as i_expr:
        yield from element_nest(em, rows[1:], (*at, i_expr))


def covered(ctx: Context, extent: int) -> int:
    """Lanes of a row that a reduction reads: all, but for a hazard of an emulated chip."""
    return extent if ctx.hazards is None else ctx.hazards.extent(extent)


class _Output:
    """Collects one result of a reduction."""

    def __init__(self, em: Emitter, value: Value, rows: tuple[int, ...], by_element: bool) -> None:
        self.em, self.value, self.rows, self.level = em, value, rows, em.level
        self.form = form_of(rows, in_memory=by_element or len(rows) == 1)
        self.pieces: list[Expr] = []
        self.memory: Memory | None = None
        if self.form == "memory":
            self.memory = new_memory(em, rows, value.element, em.level)

    def put(self, row: Index, expr: Expr) -> None:
        if self.memory is not None:
            self.memory.write(self.em, row, expr)
        else:
            self.pieces.append(pin(self.em, expr, self.form))

    def storage(self) -> Storage:
        if self.memory is not None:
            return self.memory
        if self.form == "scalar":
            return Bound(self.pieces[0])
        kind = Parts if self.form == "parts" else Registers
        return kind(self.pieces, self.rows, self.level)


def _may_take_sixteen(ctx: Context, op: Op, rows: tuple[int, ...], extent: int) -> bool:
    """Whether rows come in sixteens, of 32-bit lanes, and reading so many is short code."""
    whole = bool(rows) and rows[-1] % LANES == 0
    if not whole or any(vector_c(value.element) not in ("vf", "vi") for value in op.results):
        return False
    chunks = covered(ctx, extent) // LANES
    reading = sum([cost(ctx, value, {}) for value in op.operands])
    return chunks <= UNROLLED and LANES * chunks * reading <= WRITTEN_OUT


def _sixteen_rows(
    ctx: Context, op: Op, rows: tuple[int, ...], axis: int
) -> Iterator[tuple[Index, list[Expr]]]:
    """Sixteen rows and their results, a lane each: the same operations as for each by itself.

    A step that brings halves of a row together does so for two rows, so that no lane idles: 15
    steps of a vector and 30 shuffles in place of 64 and 64.
    """
    em = ctx.em
    for outer in element_nest(em, rows[:-1]):
        with loop(em, rows[-1], LANES) as base:
            waiting: list[tuple[int, list[Expr]]] = []
            for slot in range(LANES):
                at = em.add(base, constant(slot % 4 * 4 + slot // 4, I32))  # see `halves`
                lanes, half = _partial_row(ctx, op, Index((*outer.dims, at)), axis), LANES // 2
                while waiting and waiting[-1][0] == half:
                    lanes = _halved(em, op.regions[0], half, waiting.pop()[1], lanes)
                    half //= 2
                waiting.append((half, lanes))
            ((_, lanes),) = waiting
            yield Index((*outer.dims, lane_index(base))), lanes


def _halved(
    em: Emitter, region: Block, half: int, left: list[Expr], right: list[Expr]
) -> list[Expr]:
    """One step of the rows in two vectors, as one vector."""
    sides = []
    for is_odd in ("false", "true"):
        made = []
        for a, b in zip(left, right, strict=True):
            text = f"halves<{half}, {is_odd}>({a.text}, {b.text})"
            ext = a.ext if a.ext == b.ext else ""
            made.append(em.vector(text, a.type, max(a.level, b.level), ext=ext))
        sides.append(made)
    return [pin(em, e, "registers") for e in combine(em, region, *sides)]


def _lanes_row(ctx: Context, op: Op, row: Index, axis: int) -> list[Expr]:
    """One row along the lanes: partial vectors, then lanes by halves."""
    return _horizontal(ctx.em, op.regions[0], _partial_row(ctx, op, row, axis))


def _partial_row(ctx: Context, op: Op, row: Index, axis: int) -> list[Expr]:
    """One row as a vector: up to four of them, then a tree."""
    em, region = ctx.em, op.regions[0]
    extent = covered(ctx, op.operands[0].shape[axis])
    chunks = extent // LANES

    def read(base: Expr) -> list[Expr]:
        index = Index((*row.dims, lane_index(base)))
        return [pin(em, ctx.at(v, index), "registers") for v in op.operands]

    count = 4 if chunks >= 8 else 1
    partial = [read(constant(LANES * j, I32)) for j in range(count)]
    if chunks <= UNROLLED:
        for j in range(count, chunks):
            chunk = read(constant(LANES * j, I32))
            partial[j % count] = combine(em, region, partial[j % count], chunk)
    else:
        partial = _looped(em, region, partial, extent, read)
    while len(partial) > 1:
        partial = [combine(em, region, *partial[j : j + 2]) for j in range(0, len(partial), 2)]
    return partial[0]


def _looped(
    em: Emitter, region: Block, partial: list[list[Expr]], extent: int, read: ReadChunk
) -> list[list[Expr]]:
    count = len(partial)
    names = [[_mutable(em, e) for e in tuple_] for tuple_ in partial]
    with loop(em, extent, LANES * count, LANES * count) as base:
        for j, current in enumerate(names):
            inner = [dataclasses.replace(e, level=em.level) for e in current]
            at = em.add(base, constant(LANES * j, I32))
            at = dataclasses.replace(at, align=LANES)
            for target, result in zip(current, combine(em, region, inner, read(at)), strict=True):
                em.line(f"{target.text} = {em.lanes(result)};")
    return names


def _mutable(em: Emitter, e: Expr) -> Expr:
    name = em.name("r")
    em.line(f"{vector_c(e.type)} {name} = {em.lanes(e)};")
    return dataclasses.replace(e, text=name, level=em.level)


def _horizontal(em: Emitter, region: Block, lanes: list[Expr]) -> list[Expr]:
    for half in (8, 4, 2, 1):
        turned = [em.vector(f"rot<{half}>({e.text})", e.type, e.level, ext=e.ext) for e in lanes]
        lanes = [pin(em, e, "registers") for e in combine(em, region, lanes, turned)]
    return [_first(em, e) for e in lanes]


def _first(em: Emitter, e: Expr) -> Expr:
    text = f"lane<0>({e.text})"
    return em.scalar(text, e.type, e.level, ext=e.ext)


def _column(ctx: Context, op: Op, row: Index, axis: int) -> list[Expr]:
    """Across an axis that is not the lanes: one position after the other."""
    em, region = ctx.em, op.regions[0]
    extent = op.operands[0].shape[axis]

    def read(k: Expr) -> list[Expr]:
        index = Index((*row.dims[:axis], k, *row.dims[axis:]))
        return [ctx.at(v, index) for v in op.operands]

    total = read(constant(0, I32))
    if extent <= UNROLLED:
        for k in range(1, extent):
            total = combine(em, region, total, read(constant(k, I32)))
        return total
    wide = any(e.kind != "s" for e in total) or any(not d.is_uniform for d in row.dims)
    names = [_accumulator(em, e, wide) for e in total]
    with loop(em, extent, 1, 1) as k_expr:
        inner = [dataclasses.replace(e, level=em.level) for e in names]
        for target, result in zip(names, combine(em, region, inner, read(k_expr)), strict=True):
            em.line(f"{target.text} = {em.lanes(result) if wide else result.text};")
    return names


def _accumulator(em: Emitter, e: Expr, wide: bool) -> Expr:
    if wide:
        return _mutable(em, pin(em, e, "registers"))
    name = em.name("r")
    em.line(f"{scalar_c(e.type)} {name} = {e.text};")
    return dataclasses.replace(e, text=name, level=em.level, const=None)


def lower_scan(ctx: Context, op: Op) -> None:
    """tt.scan, one position after the other along the axis."""
    em, axis = ctx.em, op.attrs["axis"]
    assert isinstance(axis, int)
    shape = op.operands[0].shape
    reverse = op.attrs.get("reverse") == "true"
    sources = [memory_of(ctx, v) for v in op.operands]
    targets = [new_memory(em, shape, v.element, em.level) for v in op.results]
    for row in nest(em, shape[:axis] + shape[axis + 1 :]):
        _scan_row(em, op, row, axis, reverse, sources, targets)
    for value, memory in zip(op.results, targets, strict=True):
        ctx.env[value] = memory


def _scan_row(
    em: Emitter,
    op: Op,
    row: Index,
    axis: int,
    reverse: bool,
    sources: list[Memory],
    targets: list[Memory],
) -> None:
    extent = op.operands[0].shape[axis]

    def at(k: Expr) -> Index:
        return Index((*row.dims[:axis], k, *row.dims[axis:]))

    first = at(constant(extent - 1 if reverse else 0, I32))
    wide = any(not d.is_uniform for d in row.dims)
    running = [_accumulator(em, source.read(em, first), wide) for source in sources]
    for target, e in zip(targets, running, strict=True):
        target.write(em, first, e)
    with loop(em, extent, 1, 1) as step:
        k = em.scalar(f"{extent - 1} - {step.text}", I32, em.level) if reverse else step
        inner = [dataclasses.replace(e, level=em.level) for e in running]
        read = [source.read(em, at(k)) for source in sources]
        for target, name, e in zip(
            targets, running, combine(em, op.regions[0], inner, read), strict=True
        ):
            em.line(f"{name.text} = {em.lanes(e) if wide else e.text};")
            target.write(em, at(k), dataclasses.replace(name, level=em.level))
