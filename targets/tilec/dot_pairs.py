"""tt.dot of bf16 by bf16 in f32: per 32 k, even and odd k are two chains of FMA; acc += even + odd.

One row, and a few where the right side is loaded as it is, keep sums in named vectors and evaluate
the right side where it is used. More rows go through ``dot_pairs.h``: the right side is stored in
pairs of k, as an AMX tile has it. A right side that a loop makes of its counter alone is made one
iteration ahead: what was just stored cannot be loaded into a tile at once.
"""

from __future__ import annotations

import contextlib

from . import ahead, bands
from .context import Context
from .dot_forms import Form, is_loaded
from .expr import LANES, Expr, constant
from .index import Index, flatten, lane_index
from .integers import binary, uniform_base
from .ir import BF16, F32, I32, Op, Value
from .nest import loop, memory_of, nest
from .operands import accumulator, always, bind_accumulator, in_place
from .storage import Memory, Registers, new_memory

STEP = 32
"""k values of one step."""
CHAINS = 16
"""Chains of sums at a time where rows are few."""
UNROLLED_PAIRS = 64
"""Rows of pairs that are written out."""


def lower(ctx: Context, op: Op, how: Form) -> None:
    rules = {Form.ELEMENTS: _plain, Form.FEW: _few_rows, Form.BANDS: _in_bands, Form.WHOLE: _rows}
    rules[how](ctx, op)


def settle_left(ctx: Context, op: Op, how: Form) -> None:
    """Before a loop that does not change a product's left side: copied once, if at all."""
    if how is Form.FEW:
        memory_of(ctx, op.operands[0])
    elif how is not Form.ELEMENTS:
        _left(ctx, op.operands[0])


# ---- few rows


def _few_rows(ctx: Context, op: Op) -> None:
    em = ctx.em
    a, b, c = op.operands
    rows, (depth, columns) = a.shape[0], b.shape
    left = memory_of(ctx, a)
    per_row = columns // LANES
    sums = [
        em.lanes(ctx.at(c, index)) for index in nest(em, op.result.shape, unrolled=rows * per_row)
    ]
    together = max(1, CHAINS // (2 * rows))
    for start in range(0, per_row, together):
        numbers = range(start, min(start + together, per_row))
        for first in range(0, depth, STEP):
            _one_step(ctx, b, left, sums, first, [(r, j) for j in numbers for r in range(rows)])
    level = em.level
    pieces = [Expr("v", text, F32, level) for text in sums]
    ctx.env[op.result] = Registers(pieces, op.result.shape, level)


def _one_step(
    ctx: Context, b: Value, left: Memory, sums: list[str], first: int, places: list[tuple[int, int]]
) -> None:
    """Adds a step from k = `first` on to the sums at places (row, vector of columns)."""
    em = ctx.em
    per_row, last = b.shape[1] // LANES, first + min(b.shape[0], STEP)
    chains = {place: (em.name("chain"), em.name("chain")) for place in places}
    for name in [name for pair in chains.values() for name in pair]:
        em.line(f"vf {name} = vsplat(0.0f);")
    with contextlib.ExitStack() as stack:
        if is_loaded(b):
            counts = [stack.enter_context(loop(em, last, 2, first, unroll=4))]
        else:  # unpacking wants to know which k it is
            counts = [constant(k, I32) for k in range(first, last, 2)]
        for even in counts:
            for number, k in enumerate((even, em.add(even, constant(1, I32)))):
                for (row, j), pair in chains.items():
                    x = em.lanes(left.read(em, Index((constant(row, I32), k))))
                    w = em.lanes(ctx.at(b, Index((k, lane_index(constant(LANES * j, I32))))))
                    em.line(f"{pair[number]} = fma({x}, {w}, {pair[number]});")
    for (row, j), (even_sum, odd_sum) in chains.items():
        total, number = em.name("acc"), row * per_row + j
        em.line(f"const vf {total} = one_step({sums[number]}, {even_sum}, {odd_sum});")
        sums[number] = total


# ---- more rows


def _rows(ctx: Context, op: Op) -> None:
    em = ctx.em
    a, b, c = op.operands
    (rows, depth), columns = a.shape, b.shape[1]
    zero = bands.is_zero(c)
    if zero:
        memory = new_memory(em, op.result.shape, F32, em.level)
    else:
        memory = accumulator(ctx, op, c)
    left, stride, bound = _left(ctx, a)
    made = ctx.ahead.get(op)
    right = _right(ctx, b, made)
    sizes = f"{rows}, {columns}, {depth}, {'true' if zero else 'false'}"
    sides = f"{left}, {stride}, {bound}, {right}"
    _declare_tiles(ctx)
    product = f"dot_pairs<{sizes}>(tiles, {memory.pointer}, {columns}, {sides});"
    if made is None:
        em.line(product)
    else:
        # Between a left side that was just stored and its product, which would wait for it.
        is_copied = em.recall(("left", a)) is not None
        if not is_copied:
            em.line(product)
        ahead.fill_next(ctx, made, b)
        if is_copied:
            em.line(product)
        ahead.swap(ctx, made)
    bind_accumulator(ctx, op, c, memory)


def _in_bands(ctx: Context, op: Op) -> None:
    """Both sides now, the product where it is used: see `bands`."""
    em = ctx.em
    a, b, _ = op.operands
    depth, columns = b.shape
    left, stride, bound = _left(ctx, a)
    right = _right(ctx, b, None)
    _declare_tiles(ctx)

    def make(first: Expr, target: str) -> None:
        rows = f"rows_of_band({bound}, {first.text})"
        sides = f"{left} + int64_t({first.text}) * ({stride}), {stride}, {rows}, {right}"
        sizes = f"{bands.ROWS}, {columns}, {depth}, true"
        em.line(f"dot_pairs<{sizes}>(tiles, {target}, {columns}, {sides});")

    ctx.env[op.result] = bands.Banded(op.result.shape, make)


def _right(ctx: Context, b: Value, made: ahead.Ahead | None) -> str:
    """The right side in pairs: made now, or one iteration ago."""
    if made is not None:
        return f"*{made.now}"
    name = ctx.em.name("pairs")
    depth, columns = b.shape
    ctx.em.line(f"Pairs<{depth}, {columns}> {name};")
    fill(ctx, name, b)
    return name


def _declare_tiles(ctx: Context) -> None:
    if "Tiles tiles;" not in ctx.em.scopes[0].lines:
        ctx.em.line("Tiles tiles;", 0)


def _left(ctx: Context, a: Value) -> tuple[str, str, str]:
    """Pointer, row stride and number of rows to read: in place if the mask is on rows alone."""
    rows, depth = a.shape
    place = in_place(ctx, a, ("bf16",), masked=_row_bound(ctx, a) is not None)
    if place is not None:
        bound = None if a.op is None or always(ctx, a.op) else _row_bound(ctx, a)
        if bound is None:
            return (*place, str(rows))
        low = binary(ctx.em, "maxsi", bound, constant(0, I32))
        return (*place, binary(ctx.em, "minsi", low, constant(rows, I32)).text)
    copied = ctx.em.recall(("left", a))  # two products of one left side share its copy
    if copied is not None:
        return copied.text, str(depth), str(rows)
    name = ctx.em.name("left")
    ctx.em.line(f"alignas(64) bf16_t {name}[{max(rows * depth, LANES)}];")
    for index in nest(ctx.em, a.shape):
        at = uniform_base(flatten(ctx.em, index, a.shape))
        value = ctx.at(a, index)
        if index.is_uniform:
            ctx.em.line(f"st({name} + {at.text}, {value.text});")
        else:
            ctx.em.line(f"vst({name} + {at.text}, {ctx.em.lanes(value)});")
    ctx.em.remember(("left", a), Expr("s", name, BF16, ctx.em.level))
    return name, str(depth), str(rows)


def _row_bound(ctx: Context, a: Value) -> Expr | None:
    """The scalar n of a load under the mask ``row < n``, zeros elsewhere; None for other masks."""
    load = a.op
    if ctx.hazards is not None and ctx.hazards.has("other"):
        return None
    if load is None or load.name != "tt.load" or len(load.operands) < 3:
        return None
    test = _row_test(load.operands[1])
    if test is None or test.attrs["word"] != "slt" or not bands.is_zero(load.operands[2]):
        return None
    number, bound = (_behind(v) for v in test.operands)
    is_row = number.op is not None and number.op.name == "tt.make_range"
    if not is_row or number.op is None or number.op.attrs["start"] != 0 or bound.shape:
        return None
    return ctx.scalar(bound)


def _row_test(mask: Value) -> Op | None:
    """The comparison behind a mask that is the same along each row."""
    if mask.op is not None and mask.op.name == "tt.broadcast":
        mask = mask.op.operands[0]
    while mask.op is not None and mask.op.name == "tt.expand_dims":
        if mask.op.attrs["axis"] != 1:
            return None
        mask = mask.op.operands[0]
    is_column = len(mask.shape) == 1 or mask.shape[1:] == (1,)
    found = mask.op is not None and mask.op.name == "arith.cmpi" and is_column
    return mask.op if found else None


def _behind(value: Value) -> Value:
    """What a column was made of: a range, or the scalar that was splatted."""
    while value.op is not None and value.op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
        value = value.op.operands[0]
    return value


# ---- the right side, in pairs


def fill(ctx: Context, target: str, b: Value) -> None:
    """Stores a right side into the C++ variable `target`."""
    em = ctx.em
    depth, columns = b.shape
    pairs = depth // 2
    with contextlib.ExitStack() as stack:
        n = stack.enter_context(loop(em, columns, LANES, unroll=1))
        if pairs <= UNROLLED_PAIRS:
            numbers = [constant(j, I32) for j in range(pairs)]
        else:
            numbers = [stack.enter_context(loop(em, pairs, 1))]
        for j in numbers:
            low = em.mul(j, constant(2, I32))
            high = em.add(low, constant(1, I32))
            even, odd = (ctx.at(b, Index((k, lane_index(n)))) for k in (low, high))
            em.line(f"{target}.{_put(ctx, even, odd, f'{j.text}, {n.text}')};")


def _put(ctx: Context, even: Expr, odd: Expr, place: str) -> str:
    """The call that stores a pair of vectors; two nibbles of one word are looked up together."""
    em = ctx.em
    x, y = em.lanes(even), em.lanes(odd)
    low, high = em.lookups.get(x), em.lookups.get(y)
    same = low and high and low.below == high.below and low.word == high.word
    if low and high and same and high.shift == low.shift + 16 and low.shift <= 12:
        return f"put_nibbles<{low.below}, {low.shift}>({place}, {low.word})"
    return f"put({place}, {x}, {y})"


# ---- anything else


def _plain(ctx: Context, op: Op) -> None:
    """Odd shapes: each output by itself."""
    em = ctx.em
    a, b, c = op.operands
    depth = a.shape[-1]
    step = min(depth, STEP)
    memory = new_memory(em, op.result.shape, F32, em.level)
    for index in nest(em, op.result.shape):
        *batch, m, n = index.dims
        wide = not index.is_uniform
        ctype, zero = ("vf", "vsplat(0.0f)") if wide else ("float", "0.0f")
        start = ctx.at(c, index)
        name = em.name("acc")
        em.line(f"{ctype} {name} = {em.lanes(start) if wide else start.text};")
        with loop(em, depth, step) as first:
            chains = [em.name("chain") for _ in range(2)]
            em.line(f"{ctype} {chains[0]} = {zero}, {chains[1]} = {zero};")
            with loop(em, step, min(step, 2)) as within:
                low = em.add(first, within)
                for chain, odd in zip(chains, range(min(step, 2)), strict=False):
                    k = em.add(low, constant(odd, I32))
                    sides = (ctx.at(a, Index((*batch, m, k))), ctx.at(b, Index((*batch, k, n))))
                    x, y = (em.lanes(e) if wide else e.text for e in sides)
                    em.line(f"{chain} = fma({x}, {y}, {chain});")
            em.line(f"{name} = one_step({name}, {chains[0]}, {chains[1]});")
        memory.write(em, index, Expr("v" if wide else "s", name, F32, em.level))
    ctx.env[op.result] = memory
