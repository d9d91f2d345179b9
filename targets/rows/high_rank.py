"""Rows for tensors of more dims than the strided kernels walk: dims that every operand passes
through as one are joined; of those that are left, the outermost become calls of their own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import sympy

from ...ir.dim import Dim, as_dim, cdiv, prod
from ...ir.dtype import BF16, F32
from ...ir.graph import Node, Value
from ...ir.ops.shape import Concat, Slice, Transpose
from ...ir.target import Target
from ..lowering import Lowering, Operand, i32
from ..table import Emit, OperatorRow
from .generic import BINARY, BLOCK, RANK, element_bytes, operand, row_major
from .math import EXACT, OF_BITS, PAIRS

MOST_CALLS = 256
Strides = list[Dim]


def joined(shape: Sequence[Dim], strides: Sequence[Strides]) -> tuple[list[Dim], list[Strides]]:
    """The same walk with as few dims as possible; 1s are dropped."""
    sizes: list[Dim] = []
    steps: list[Strides] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        own = [s[axis] for s in strides]
        if size == 1:
            continue
        if sizes and all(last[-1] == _times(s, size) for last, s in zip(steps, own, strict=True)):
            sizes[-1] = _times(sizes[-1], size)
            for last, s in zip(steps, own, strict=True):
                last[-1] = s
            continue
        sizes.append(size)
        for last, s in zip(steps, own, strict=True):
            last.append(s)
    return sizes, steps


def _times(a: Dim, b: Dim) -> Dim:
    return as_dim(sympy.sympify(a) * b)


def strides_in(shape: Sequence[Dim], rank: int) -> Strides:
    """Row-major strides under a result of ``rank`` dims, 0 where the operand is repeated."""
    full = (*(1 for _ in range(rank - len(shape))), *shape)
    return [0 if d == 1 else s for d, s in zip(full, row_major(full), strict=True)]


def _walk(node: Node) -> tuple[Sequence[Dim], list[Strides], Dim]:
    """Shape of the result, strides of every operand in it, and where the first one starts."""
    op, x, y = node.op, node.inputs[0].type, node.outputs[0].type
    if isinstance(op, Transpose):
        own = row_major(x.shape)
        return y.shape, [[own[p] for p in op.permutation]], 0
    if isinstance(op, Slice):
        own = row_major(x.shape)
        start = _times(own[op.axis], op.start)
        own[op.axis] = _times(own[op.axis], op.step)
        return y.shape, [own], start
    return y.shape, [strides_in(v.type.shape, y.rank) for v in node.inputs], 0


def _outer(sizes: Sequence[Dim]) -> Sequence[Dim]:
    return sizes[: max(len(sizes) - RANK, 0)]


def accepts_walk(node: Node, target: Target) -> str:
    shape, strides, _ = _walk(node)
    sizes, steps = joined(shape, [*strides, row_major(shape)])
    calls = _outer(sizes)
    if not all(isinstance(d, int) for d in calls) or math.prod(map(int, calls)) > MOST_CALLS:
        return f"expected at most {RANK} dims that cannot be joined, got {list(sizes)}"
    inner = [s[-1] for s in steps if s]
    return "" if all(isinstance(s, int) for s in inner) else "expected a known innermost stride"


def accepts_wide(node: Node, target: Target) -> str:
    """Where a row for fewer dims would do, that one takes it, for it knows the types."""
    if max(v.type.rank for v in (*node.inputs, *node.outputs)) <= RANK:
        return f"for more than {RANK} dims"
    return accepts_walk(node, target)


def _parts(sizes: Sequence[Dim], steps: Sequence[Strides]) -> Iterator[list[Dim]]:
    """Offsets in elements of every operand, for each call."""
    outer = [int(d) for d in _outer(sizes)]
    for place in itertools.product(*map(range, outer)):
        yield [_offset(own, place) for own in steps]


def _offset(strides: Strides, place: Sequence[int]) -> Dim:
    parts = (sympy.sympify(s) * p for s, p in zip(strides, place, strict=False))
    return as_dim(sum(parts, sympy.Integer(0)))


def _emit(
    function: str,
    names: str,
    node: Node,
    ctx: Lowering,
    constants: dict[str, object],
) -> None:
    shape, strides, start = _walk(node)
    sizes, steps = joined(shape, [*strides, row_major(shape)])
    count = len(_outer(sizes))
    inner = [*(1 for _ in range(RANK - len(sizes))), *sizes[count:]]
    values = [*node.inputs, node.outputs[0]]
    for offsets in _parts(sizes, steps):
        arguments = {f"d{i}": i32(inner[i]) for i in (1, 2, 3)}
        fixed: dict[str, object] = {}
        for name, value, own, offset in zip(names, values, steps, offsets, strict=True):
            first = as_dim(sympy.sympify(offset) + (start if name == "x" else 0))
            arguments[name] = _at(ctx, value, first)
            tail = [*(0 for _ in range(RANK - len(own))), *own[count:]]
            if name != "y" or function == "elementwise.copy":
                arguments |= {f"{name}{i}": i32(tail[i]) for i in range(RANK - 1)}
                fixed[f"{name.upper()}3"] = tail[-1]
        grid = (cdiv(inner[3], BLOCK), prod(inner[:3]), 1)
        ctx.launch(function, grid, arguments, {**constants, **fixed, "BLOCK": BLOCK})


def _at(ctx: Lowering, value: Value, offset: Dim) -> Operand:
    width = element_bytes(value.type.dtype)
    if not ctx.is_static(value):
        return ctx.memory(value, _times(offset, width))
    return ctx.weight(value, "row", value.type.dtype.name, int(_times(offset, width)))


def emit_copy(node: Node, ctx: Lowering) -> None:
    _emit("elementwise.copy", "xy", node, ctx, {})


def emit_binary(node: Node, ctx: Lowering) -> None:
    is_exact = node.op.name in EXACT and node.inputs[0].type.dtype in (F32, BF16)
    is_maths = is_exact or node.op.name in (*PAIRS, *OF_BITS, "xor")
    module = "maths" if is_maths else "elementwise"
    _emit(f"{module}.binary", "aby", node, ctx, {"KIND": node.op.name})


def emit_where(node: Node, ctx: Lowering) -> None:
    _emit("elementwise.where", "caby", node, ctx, {})


def accepts_parts(node: Node, target: Target) -> str:
    return "" if node.outputs[0].type.rank > RANK else f"for more than {RANK} dims"


def emit_concat(node: Node, ctx: Lowering) -> None:
    """[outer, own size] -> [outer, all sizes], for each operand."""
    op, y = node.op, node.outputs[0]
    assert isinstance(op, Concat)
    outer, width = prod(y.type.shape[: op.axis]), prod(y.type.shape[op.axis :])
    start: Dim = 0
    for value in node.inputs:
        own = prod(value.type.shape[op.axis :])
        arguments = {"x": operand(ctx, value), "y": _at(ctx, y, start)}
        arguments |= {"d1": i32(1), "d2": i32(outer), "d3": i32(own)}
        arguments |= {f"{name}{i}": i32(0) for name in "xy" for i in range(RANK - 2)}
        arguments |= {"x2": i32(own), "y2": i32(width)}
        grid = (cdiv(own, BLOCK), outer, 1)
        ctx.launch("elementwise.copy", grid, arguments, {"X3": 1, "Y3": 1, "BLOCK": BLOCK})
        start = as_dim(sympy.sympify(start) + own)


def _row(op: str, emit: Emit) -> OperatorRow:
    name = f"triton-any-rank-{op.replace('_', '-')}"
    return OperatorRow(op, name, "triton", -1, accepts_wide, emit)


ROWS = (
    *(_row(op, emit_binary) for op in (*BINARY, "div", "and", "or", "xor", *PAIRS, *OF_BITS)),
    _row("where", emit_where),
    *(_row(op, emit_copy) for op in ("transpose", "slice", "broadcast")),
    OperatorRow("concat", "triton-any-rank-concat", "triton", -1, accepts_parts, emit_concat),
)
