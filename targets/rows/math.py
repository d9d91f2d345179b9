"""Rows for mathematical functions, arithmetic on integers, and reductions of any axis."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.dim import cdiv, prod
from ...ir.dtype import BF16, BOOL, F32, I32, DType
from ...ir.graph import Node
from ...ir.ops.order import CumSum
from ...ir.ops.reduce import Reduce, Softmax
from ...ir.ops.shape import Iota
from ...ir.target import Target
from ..lowering import Lowering, i32
from ..table import Emit, OperatorRow, always
from .generic import BLOCK, accepts_rank, emit_strided, operand

FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan"),
    *("expm1", "log1p", "log2", "log10", "ceil", "round", "trunc", "isinf", "isnan"),
)
OF_INTEGERS = ("neg", "abs", "relu", "sign", "bit_not")
EXACT = ("mod", "floor_div")
PAIRS = ("atan2", "fmod", "trunc_div", "pow")
OF_BITS = ("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")
Accepts = Callable[[Node, Target], str]
REDUCTIONS = ("sum", "mean", "prod", "max", "min", "argmax", "argmin")


def _takes(node: Node, *dtypes: DType) -> str:
    wrong = [v.type.dtype for v in node.inputs if v.type.dtype not in dtypes]
    return f"expected {' or '.join(map(str, dtypes))}, got {wrong[0]}" if wrong else ""


def accepts_floats(node: Node, target: Target) -> str:
    return _takes(node, F32, BF16)


def accepts_integers(node: Node, target: Target) -> str:
    return _takes(node, I32)


def accepts_float_pairs(node: Node, target: Target) -> str:
    return _takes(node, F32, BF16) or accepts_rank(node, target)


def accepts_pairs(node: Node, target: Target) -> str:
    return _takes(node, F32, BF16, I32) or accepts_rank(node, target)


def accepts_integer_pairs(node: Node, target: Target) -> str:
    return _takes(node, I32) or accepts_rank(node, target)


def accepts_bool_pairs(node: Node, target: Target) -> str:
    return _takes(node, BOOL) or accepts_rank(node, target)


def emit_unary(node: Node, ctx: Lowering) -> None:
    size = node.outputs[0].type.size
    arguments = {
        "x": operand(ctx, node.inputs[0]),
        "y": ctx.memory(node.outputs[0]),
        "n": i32(size),
    }
    constants = {"KIND": node.op.name, "BLOCK": BLOCK}
    ctx.launch("maths.unary", (cdiv(size, BLOCK), 1, 1), arguments, constants)


def emit_binary(node: Node, ctx: Lowering) -> None:
    emit_strided("maths.binary", "ab", node, ctx, {"KIND": node.op.name})


def emit_equal(node: Node, ctx: Lowering) -> None:
    emit_strided("elementwise.binary", "ab", node, ctx, {"KIND": node.op.name})


# Reductions -----------------------------------------------------------------------------------


def accepts_lines(node: Node, target: Target) -> str:
    return _takes(node, F32, I32)


def accepts_float_lines(node: Node, target: Target) -> str:
    return _takes(node, F32)


def emit_reduce(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, Reduce)
    _emit_lines("reduce_axis.reduce", node, ctx, node.op.axis, {"KIND": node.op.name})


def emit_cumsum(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, CumSum)
    _emit_lines("reduce_axis.cumsum", node, ctx, -1, {})


def emit_softmax(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, Softmax)
    _emit_lines("reduce_axis.softmax", node, ctx, node.op.axis, {})


def _emit_lines(
    function: str, node: Node, ctx: Lowering, axis: int, constants: dict[str, object]
) -> None:
    x = node.inputs[0]
    shape, axis = x.type.shape, axis % x.type.rank
    inner = prod(shape[axis + 1 :])
    size = prod((*shape[:axis], inner))
    arguments = {
        "x": operand(ctx, x),
        "y": ctx.memory(node.outputs[0]),
        "n": i32(shape[axis]),
        "size": i32(size),
        "inner": i32(inner),
    }
    ctx.launch(function, (cdiv(size, BLOCK), 1, 1), arguments, {**constants, "BLOCK": BLOCK})


def emit_iota(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, Iota)
    arguments = {
        "y": ctx.memory(node.outputs[0]),
        "size": i32(op.size),
        "first": i32(0),
        "step": i32(1),
    }
    ctx.launch("reduce_axis.fill", (cdiv(op.size, BLOCK), 1, 1), arguments, {"BLOCK": BLOCK})


def _row(op: str, form: str, accepts: Accepts, emit: Emit, priority: int = 1) -> OperatorRow:
    name = f"triton-{form}-{op.replace('_', '-')}"
    return OperatorRow(op, name, "triton", priority, accepts, emit)


ROWS = (
    *(_row(op, "maths", accepts_floats, emit_unary) for op in FUNCTIONS),
    _row("sign", "maths", accepts_floats, emit_unary),
    *(_row(op, "integer", accepts_integers, emit_unary, 0) for op in OF_INTEGERS),
    *(_row(op, "maths", accepts_pairs, emit_binary) for op in PAIRS),
    *(_row(op, "exact", accepts_float_pairs, emit_binary, 2) for op in EXACT),
    *(_row(op, "integer", accepts_integer_pairs, emit_binary) for op in OF_BITS),
    _row("xor", "maths", accepts_bool_pairs, emit_binary),
    *(_row(op, "bool", accepts_bool_pairs, emit_equal, 0) for op in ("eq", "ne")),
    *(_row(op, "axis", accepts_lines, emit_reduce, 0) for op in REDUCTIONS),
    _row("cumsum", "axis", accepts_lines, emit_cumsum, 0),
    _row("softmax", "axis", accepts_float_lines, emit_softmax, 0),
    _row("iota", "fill", always, emit_iota, 0),
)
