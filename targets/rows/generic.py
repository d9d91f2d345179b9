"""Rows for what no fused op covers: elementwise ops, data movement, reductions of the last axis.

They make any graph run; where they show up in a decoder's report, a fusion is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from ...ir.dim import Dim, as_dim, cdiv, prod
from ...ir.dtype import BF16, BOOL, F16, F32, I8, I32, U8, DType
from ...ir.graph import Node, Value
from ...ir.ops.shape import Concat, Slice, Transpose
from ...ir.target import Target
from ..lowering import Lowering, Operand, i32
from ..table import OperatorRow

RANK = 4
"""Dims that the strided kernels walk."""
BLOCK = 64
UNARY = (
    "neg",
    "abs",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "erf",
    "floor",
    "silu",
    "gelu",
    "gelu_tanh",
    "relu",
    "sigmoid",
    "tanh",
)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "floor_div", "mod", *COMPARISONS)


def operand(ctx: Lowering, value: Value, offset: Dim = 0) -> Operand:
    """A computed value, or a weight in plain row-major order."""
    if ctx.is_static(value):
        return ctx.weight(value, "row", value.type.dtype.name)
    return ctx.memory(value, offset)


def accepts_floats(node: Node, target: Target) -> str:
    wrong = [v for v in node.inputs if v.type.dtype not in (F32, BF16)]
    return f"expected f32 or bf16, got {wrong[0].type.dtype}" if wrong else ""


def accepts_division(node: Node, target: Target) -> str:
    return accepts_floats(node, target) or accepts_rank(node, target)


def accepts_numbers(node: Node, target: Target) -> str:
    wrong = [v for v in node.inputs if v.type.dtype not in (F32, BF16, I32)]
    if wrong:
        return f"expected f32, bf16 or i32, got {wrong[0].type.dtype}"
    return accepts_rank(node, target)


def accepts_rank(node: Node, target: Target) -> str:
    rank = max(v.type.rank for v in (*node.inputs, *node.outputs))
    return f"expected at most {RANK} dims, got {rank}" if rank > RANK else ""


def accepts_cast(node: Node, target: Target) -> str:
    known = (F32, BF16, F16, I32, BOOL)
    source, result = node.inputs[0].type.dtype, node.outputs[0].type.dtype
    from_bytes = source in (U8, I8) and result in (F32, I32)
    wrong = [dtype for dtype in (source, result) if dtype not in known and not from_bytes]
    return f"no kernel for {wrong[0]}" if wrong else ""


def accepts_bools(node: Node, target: Target) -> str:
    wrong = [v for v in node.inputs if v.type.dtype != BOOL]
    return f"expected bool, got {wrong[0].type.dtype}" if wrong else accepts_rank(node, target)


def accepts_last_axis(node: Node, target: Target) -> str:
    x = node.inputs[0].type
    axis: int = node.op.axis  # type: ignore[attr-defined]
    if axis % x.rank != x.rank - 1 or not isinstance(x.shape[-1], int):
        return f"expected the last axis, of known size, got axis {axis} of {x}"
    return accepts_floats(node, target)


# Elementwise ----------------------------------------------------------------------------------


def emit_unary(node: Node, ctx: Lowering) -> None:
    _emit_flat("elementwise.unary", node, ctx, {"KIND": node.op.name})


def emit_cast(node: Node, ctx: Lowering) -> None:
    if node.outputs[0].type.dtype == BOOL:
        _emit_flat("elementwise.unary", node, ctx, {"KIND": "truth"})
    else:
        _emit_flat("elementwise.cast", node, ctx, {})


def _emit_flat(function: str, node: Node, ctx: Lowering, constants: dict[str, object]) -> None:
    size = node.outputs[0].type.size
    arguments = {
        "x": operand(ctx, node.inputs[0]),
        "y": ctx.memory(node.outputs[0]),
        "n": i32(size),
    }
    ctx.launch(function, (cdiv(size, BLOCK), 1, 1), arguments, {**constants, "BLOCK": BLOCK})


def emit_binary(node: Node, ctx: Lowering) -> None:
    emit_strided("elementwise.binary", "ab", node, ctx, {"KIND": node.op.name})


def emit_where(node: Node, ctx: Lowering) -> None:
    emit_strided("elementwise.where", "cab", node, ctx, {})


def emit_strided(
    function: str, names: str, node: Node, ctx: Lowering, constants: dict[str, object]
) -> None:
    shape = padded(node.outputs[0].type.shape)
    arguments = {name: operand(ctx, v) for name, v in zip(names, node.inputs, strict=True)}
    arguments["y"] = ctx.memory(node.outputs[0])
    arguments |= {f"d{i}": i32(shape[i]) for i in (1, 2, 3)}
    inner: dict[str, object] = {}
    for name, value in zip(names, node.inputs, strict=True):
        strides = broadcast_strides(value.type.shape)
        arguments |= {f"{name}{i}": i32(strides[i]) for i in range(RANK - 1)}
        inner[f"{name.upper()}3"] = strides[-1]
    grid = (cdiv(shape[3], BLOCK), prod(shape[:3]), 1)
    ctx.launch(function, grid, arguments, {**constants, **inner, "BLOCK": BLOCK})


def padded(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape with leading 1s up to `RANK` dims."""
    return (*(1,) * (RANK - len(shape)), *shape)


def row_major(shape: Sequence[Dim]) -> list[Dim]:
    """Strides in elements of a contiguous tensor."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def broadcast_strides(shape: Sequence[Dim]) -> list[Dim]:
    """Row-major strides, 0 for the dims that are repeated."""
    full = padded(shape)
    return [0 if d == 1 else s for d, s in zip(full, row_major(full), strict=True)]


# Data movement --------------------------------------------------------------------------------


def emit_transpose(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, Transpose)
    x, y = node.inputs[0].type, node.outputs[0].type
    strides = row_major(x.shape)
    _copy(ctx, node, node.inputs[0], y.shape, [strides[p] for p in node.op.permutation])


def emit_slice(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, Slice)
    x, y = node.inputs[0].type, node.outputs[0].type
    strides = row_major(x.shape)
    start = as_dim(sympy.sympify(strides[op.axis]) * op.start)
    strides[op.axis] = as_dim(sympy.sympify(strides[op.axis]) * op.step)
    _copy(ctx, node, node.inputs[0], y.shape, strides, source_start=start)


def emit_broadcast(node: Node, ctx: Lowering) -> None:
    shape = node.outputs[0].type.shape
    strides = broadcast_strides(node.inputs[0].type.shape)
    _copy(ctx, node, node.inputs[0], shape, strides[RANK - len(shape) :])


def emit_concat(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, Concat)
    strides = row_major(node.outputs[0].type.shape)
    start: Dim = 0
    for x in node.inputs:
        own = row_major(x.type.shape)
        _copy(ctx, node, x, x.type.shape, own, target_strides=strides, target_start=start)
        step = sympy.sympify(strides[op.axis]) * x.type.shape[op.axis]
        start = as_dim(sympy.sympify(start) + step)


def _copy(
    ctx: Lowering,
    node: Node,
    x: Value,
    shape: Sequence[Dim],
    strides: Sequence[Dim],
    *,
    source_start: Dim = 0,
    target_strides: Sequence[Dim] | None = None,
    target_start: Dim = 0,
) -> None:
    """One strided copy into the node's output; starts and strides in elements."""
    y = node.outputs[0]
    sizes, source = padded(shape), _outer(strides)
    target = _outer(row_major(shape) if target_strides is None else target_strides)
    width = element_bytes(y.type.dtype)
    arguments = {
        "x": operand(ctx, x, as_dim(sympy.sympify(source_start) * width)),
        "y": ctx.memory(y, as_dim(sympy.sympify(target_start) * width)),
        **{f"d{i}": i32(sizes[i]) for i in (1, 2, 3)},
        **{f"x{i}": i32(source[i]) for i in range(RANK - 1)},
        **{f"y{i}": i32(target[i]) for i in range(RANK - 1)},
    }
    constants = {"X3": source[-1], "Y3": target[-1], "BLOCK": BLOCK}
    grid = (cdiv(sizes[3], BLOCK), prod(sizes[:3]), 1)
    ctx.launch("elementwise.copy", grid, arguments, constants)


def _outer(strides: Sequence[Dim]) -> list[Dim]:
    return [*(0 for _ in range(RANK - len(strides))), *strides]


def element_bytes(dtype: DType) -> int:
    return int(dtype.bits // 8)


def accepts_copy(node: Node, target: Target) -> str:
    """The innermost stride is a constant of the kernel."""
    if isinstance(node.op, Transpose):
        x = node.inputs[0].type
        stride = row_major(x.shape)[node.op.permutation[-1]]
        if not isinstance(stride, int):
            return f"expected a known innermost stride, got {stride} elements"
    return accepts_rank(node, target)


# Reductions -----------------------------------------------------------------------------------


def emit_reduce(node: Node, ctx: Lowering) -> None:
    _emit_rows("reduce.reduce", node, ctx, {"KIND": node.op.name})


def emit_argmax(node: Node, ctx: Lowering) -> None:
    _emit_rows("reduce.argmax", node, ctx, {})


def emit_softmax(node: Node, ctx: Lowering) -> None:
    _emit_rows("reduce.softmax", node, ctx, {})


def _emit_rows(function: str, node: Node, ctx: Lowering, constants: dict[str, object]) -> None:
    x = node.inputs[0]
    n = int(x.type.shape[-1])
    arguments = {"x": operand(ctx, x), "y": ctx.memory(node.outputs[0])}
    grid = (prod(x.type.shape[:-1]), 1, 1)
    ctx.launch(function, grid, arguments, {**constants, "N": n, "BLOCK": BLOCK})


def _row(
    op: str,
    accepts: Callable[[Node, Target], str],
    emit: Callable[[Node, Lowering], None],
) -> OperatorRow:
    return OperatorRow(op, f"triton-{op.replace('_', '-')}", "triton", 1, accepts, emit)


ROWS = (
    *(_row(op, accepts_floats, emit_unary) for op in UNARY),
    *(_row(op, accepts_numbers, emit_binary) for op in BINARY),
    _row("div", accepts_division, emit_binary),
    _row("where", accepts_rank, emit_where),
    _row("not", accepts_bools, emit_unary),
    *(_row(op, accepts_bools, emit_binary) for op in ("and", "or")),
    _row("cast", accepts_cast, emit_cast),
    _row("transpose", accepts_copy, emit_transpose),
    _row("slice", accepts_copy, emit_slice),
    _row("concat", accepts_copy, emit_concat),
    _row("broadcast", accepts_copy, emit_broadcast),
    *(_row(op, accepts_last_axis, emit_reduce) for op in ("sum", "mean", "max")),
    _row("argmax", accepts_last_axis, emit_argmax),
    _row("softmax", accepts_last_axis, emit_softmax),
)
