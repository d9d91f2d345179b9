"""Loops over a tile, materialisation of lazy values, and where they are worth it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from . import bands
from .context import Context, is_lazy
from .expr import LANES, Emitter, Expr, constant, scalar_c, vector_c
from .index import Index, lane_index, unflatten
from .ir import I32, Op, Pointer, Scalar, Tensor, Value
from .storage import (
    REGISTER_VECTORS,
    Memory,
    Parts,
    Registers,
    Storage,
    form_of,
    new_memory,
)
from .strides import constant_of, lane_axis

KEPT_VECTORS = 8
"""Larger tiles that are computed once for several readers go to memory."""
UNROLLED_CHUNKS = 4
"""Vectors of a row that are written out instead of looped over."""
_FUNCTIONS = ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "rsqrt")
_COSTLY = {"tt.gather", "tt.extern_elementwise", *(f"math.{name}" for name in _FUNCTIONS)}
_MIDDLING = {"arith.divf", "tt.precise_divf", "math.sqrt", "tt.precise_sqrt"}
_INT_DIVISION = {"arith.divsi", "arith.divui", "arith.remsi", "arith.remui"}


def nest(
    em: Emitter, shape: Sequence[int], axis: int | None = None, unrolled: int = REGISTER_VECTORS
) -> Iterator[Index]:
    """Every index of a tile, lanes along `axis` (the last one if not given).

    The caller's code runs with the loops open. Tiles of at most `unrolled` vectors are written out
    without loops.
    """
    shape = tuple(shape)
    size = math.prod(shape)
    if size < LANES:
        for at in itertools.product(*(range(extent) for extent in shape)):
            yield Index(tuple(constant(i, I32) for i in at))
        return
    axis = len(shape) - 1 if axis is None else axis
    if shape[axis] % LANES:
        yield from _flat_nest(em, shape, size, unrolled)
        return
    unroll = size // LANES <= unrolled
    yield from _axis_nest(em, shape, axis, unroll)


def _flat_nest(em: Emitter, shape: tuple[int, ...], size: int, unrolled: int) -> Iterator[Index]:
    if size // LANES <= unrolled:
        for base in range(0, size, LANES):
            yield unflatten(em, lane_index(constant(base, I32)), shape)
        return
    with loop(em, size, LANES) as base_expr:
        yield unflatten(em, lane_index(base_expr), shape)


def _axis_nest(em: Emitter, shape: tuple[int, ...], axis: int, unroll: bool) -> Iterator[Index]:
    others = [d for d in range(len(shape)) if d != axis]
    with contextlib.ExitStack() as stack:
        choices: list[list[Expr]] = []
        for d in others:
            if unroll or shape[d] == 1:
                choices.append([constant(i, I32) for i in range(shape[d])])
            else:
                choices.append([stack.enter_context(loop(em, shape[d], 1))])
        if unroll or shape[axis] // LANES <= UNROLLED_CHUNKS:
            lanes = [constant(i, I32) for i in range(0, shape[axis], LANES)]
        else:
            lanes = [stack.enter_context(loop(em, shape[axis], LANES))]
        for at in itertools.product(*choices):
            for lane in lanes:
                dims = dict(zip(others, at, strict=True)) | {axis: lane_index(lane)}
                yield Index(tuple(dims[d] for d in range(len(shape))))


@contextlib.contextmanager
def loop(em: Emitter, extent: int, step: int, start: int = 0, unroll: int = 0) -> Iterator[Expr]:
    """``for (i = start; i < extent; i += step)`` as an open scope."""
    name = em.name("i")
    header = f"for (int32_t {name} = {start}; {name} < {extent}; {name} += {step})"
    pragma = f'_Pragma("GCC unroll {unroll}") ' if unroll else ""
    with em.scope(pragma + header) as level:
        yield Expr("s", name, I32, level, align=step if start % step == 0 else 1, nonneg=True)


# ---- materialisation


def materialise(ctx: Context, value: Value, in_memory: bool = False) -> Storage:
    """Compute a value now and bind it to storage at the current level."""
    many = math.prod(value.shape) // LANES > KEPT_VECTORS
    storage = compute(ctx, value, form_of(value.shape, in_memory or many))
    ctx.env[value] = storage
    return storage


def compute(ctx: Context, value: Value, form: str) -> Storage:
    em, shape = ctx.em, value.shape
    level = em.level
    if form in ("parts", "registers"):
        pieces = [pin(em, ctx.at(value, index), form) for index in nest(em, shape)]
        kind = Parts if form == "parts" else Registers
        return kind(pieces, shape, level)
    memory = new_memory(em, shape, value.element, level)
    fill(ctx, memory, value)
    return memory


def fill(ctx: Context, memory: Memory, value: Value) -> None:
    axis = lane_axis(value)
    if axis == 0 and ctx.emulation is not None and _turns(memory, value):
        _fill_turned(ctx, memory, value)
        return
    if products := bands.behind(ctx, value):
        _fill_bands(ctx, memory, value, products)
        return
    for index in tile(ctx, memory.shape, [value], axis):
        memory.write(ctx.em, index, ctx.at(value, index))


def _fill_bands(ctx: Context, memory: Memory, value: Value, products: list[bands.Banded]) -> None:
    em, (rows, columns) = ctx.em, memory.shape
    with loop(em, rows, bands.ROWS) as first:
        for product in products:
            product.start(em, first)
        for index in tile(ctx, (bands.ROWS, columns), [value]):
            row, column = index.dims
            at = Index((em.add(first, row), column))
            memory.write(em, at, ctx.at(value, at))
        for product in products:
            product.end()


def _turns(memory: Memory, value: Value) -> bool:
    """A matrix of floats in whole blocks of 16 x 16."""
    is_float = isinstance(value.element, Scalar) and value.element.is_float
    blocks = len(memory.shape) == 2 and not any(size % LANES for size in memory.shape)
    return is_float and blocks and value.element != Scalar("f64")


def _fill_turned(ctx: Context, memory: Memory, value: Value) -> None:
    """A value that is read along its columns: blocks are turned in registers, not element-wise."""
    em, (rows, columns) = ctx.em, memory.shape
    with loop(em, columns, LANES) as n, loop(em, rows, LANES) as k:
        vectors = [
            em.lanes(ctx.at(value, Index((lane_index(k), em.add(n, constant(j, I32))))))
            for j in range(LANES)
        ]
        block, at = em.name("block"), memory.at(em, Index((k, n))).text
        em.line(f"const vf {block}[16] = {{{', '.join(vectors)}}};")
        em.line(f"store_turned({at}, {columns}, {block});")


def tile(
    ctx: Context, shape: tuple[int, ...], values: list[Value], axis: int | None = None
) -> Iterator[Index]:
    """A nest that evaluates `values`: written out if they read named vectors, else looped over."""
    unrolled = REGISTER_VECTORS if reads_registers(ctx, values) else UNROLLED_CHUNKS
    return nest(ctx.em, shape, axis, unrolled)


def reads_registers(ctx: Context, values: list[Value]) -> bool:
    """Whether lazy values lead to storage that is best read at constant positions."""
    stack, seen = list(values), set(values)
    while stack:
        value = stack.pop()
        storage = ctx.env.get(value)
        if isinstance(storage, (Parts, Registers)):
            return True
        if storage is None and value.op is not None and isinstance(value.type, Tensor):
            fresh = [v for v in value.op.operands if v not in seen]
            seen.update(fresh)
            stack += fresh
    return False


def pin(em: Emitter, e: Expr, form: str) -> Expr:
    """An expression as a vector (``registers``) or as it is."""
    if form != "registers" or e.kind == "v":
        return e
    return dataclasses.replace(e, kind="v", text=em.lanes(e), const=None, stride=0)


def memory_of(ctx: Context, value: Value) -> Memory:
    """The value in memory, materialised or copied there if it is not yet."""
    storage = ctx.env.get(value)
    if isinstance(storage, Memory):
        return storage
    if isinstance(storage, (Parts, Registers)) and storage.spilled:
        return storage.spilled
    made = compute(ctx, value, "memory")
    assert isinstance(made, Memory)
    if isinstance(storage, (Parts, Registers)):
        if storage.level == made.level:
            storage.spilled = made
    else:
        ctx.env[value] = made
    return made


def variable(em: Emitter, element: Scalar | Pointer, form: str, value: str, level: int) -> Expr:
    """A mutable C++ variable."""
    name = em.name("m")
    ctype = vector_c(element) if form == "registers" else scalar_c(element)
    em.line(f"{ctype} {name}{' = ' + value if value else ''};")
    return Expr("v" if form == "registers" else "s", name, element, level)


# ---- when to materialise


def cost(ctx: Context, value: Value, memo: dict[Value, int]) -> int:
    """Rough instructions to compute one vector of a lazy value again."""
    if value in ctx.env or value.op is None or not isinstance(value.type, Tensor):
        return 1
    if value not in memo:
        own = op_cost(value.op)
        memo[value] = own + sum(cost(ctx, operand, memo) for operand in value.op.operands)
    return memo[value]


def op_cost(op: Op) -> int:
    if op.name in _INT_DIVISION:
        return 2 if constant_of(op.operands[1]) else 20
    if op.name in _COSTLY:
        return 20
    if op.name in _MIDDLING:
        return 8
    if op.name.startswith("tt.") and op.name != "tt.load":
        return 0
    return 0 if op.name == "arith.constant" else 1


def worth_materialising(ctx: Context, value: Value) -> bool:
    """Costly and read by several loops, or again in every row of a wider tile."""
    if isinstance(value.element, Pointer) or not isinstance(value.type, Tensor):
        return False
    if len(value.users) == 1 and _is_same_tile(value, value.users[0]):
        return False  # what is made of it may be worth more
    readers = roots(value)
    repeated = len(readers) > 1 or _is_broadcast(value) or _read_in_loop(ctx, value, readers)
    return repeated and cost(ctx, value, {}) >= 12


def _is_same_tile(value: Value, user: Op) -> bool:
    return is_lazy(user.name) and bool(user.results) and user.result.shape == value.shape


def _read_in_loop(ctx: Context, value: Value, readers: set[Op]) -> bool:
    """Whether a loop that does not make the value reads it, thus again in every iteration."""
    around = ctx.loops[value.op] if value.op is not None else ()
    return any(len(ctx.loops[reader]) > len(around) for reader in readers)


def roots(value: Value) -> set[Op]:
    """The eager operations that read a value, directly or through lazy ones."""
    found: set[Op] = set()
    stack, seen = [value], {value}
    while stack:
        for user in stack.pop().users:
            if not is_lazy(user.name) or not isinstance(user.result.type, Tensor):
                found.add(user)
                continue
            for result in user.results:
                if result not in seen:
                    seen.add(result)
                    stack.append(result)
    return found


def _is_broadcast(value: Value) -> bool:
    stack, seen = [value], {value}
    while stack:
        for user in stack.pop().users:
            if user.name == "tt.broadcast" and user.result.type != value.type:
                return True
            if user.name in ("tt.expand_dims", "tt.reshape") and user.result not in seen:
                seen.add(user.result)
                stack.append(user.result)
    return False
