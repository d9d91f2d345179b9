"""Rows for integers of every width: what `generic` and `math` do in i32, in each type's own way.

They take what the other rows leave, on chips whose kernels know all these types.
"""

from __future__ import annotations

from ...ir.dim import cdiv, prod
from ...ir.dtype import BOOL, F16, F32, I8, I16, I32, I64, U8, U16, U32, U64, DType
from ...ir.graph import Node
from ...ir.ops.order import TopK
from ...ir.target import Target
from ..lowering import Lowering, i32
from ..table import Emit, OperatorRow
from . import generic, math, order
from .generic import BLOCK, accepts_rank, operand

INTEGERS = (I8, I16, I32, I64, U8, U16, U32, U64)
ARITHMETIC = ("add", "sub", "mul", "maximum", "minimum", "floor_div", "mod")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
OF_LINES = ("sum", "prod", "max", "min", "argmax", "argmin")


def _why_not(node: Node, target: Target, *, others: tuple[DType, ...] = ()) -> str:
    """Operands and results are integers that the chip has, or of the ``others``."""
    known = (*INTEGERS, *others)
    for value in (*node.inputs, *node.outputs):
        dtype = value.type.dtype
        if dtype not in known or dtype not in target.dtypes:
            return f"expected integers, got {dtype}"
    return ""


def accepts_integers(node: Node, target: Target) -> str:
    return _why_not(node, target)


def accepts_pairs(node: Node, target: Target) -> str:
    return _why_not(node, target) or accepts_rank(node, target)


def accepts_comparisons(node: Node, target: Target) -> str:
    return _why_not(node, target, others=(BOOL,)) or accepts_rank(node, target)


def accepts_cast(node: Node, target: Target) -> str:
    return _why_not(node, target, others=(F32, F16, BOOL))


def accepts_row(node: Node, target: Target) -> str:
    return _why_not(node, target) or order.accepts_width(node)


def accepts_pick(node: Node, target: Target) -> str:
    ids = node.inputs[1].type.dtype
    if ids != I32:
        return f"expected indices of i32, got {ids}"
    return _why_not(node, target, others=(F16,)) or order.accepts_width(node)


def accepts_bits(node: Node, target: Target) -> str:
    return _why_not(node, target, others=(F32, F16))


def emit_bitcast(node: Node, ctx: Lowering) -> None:
    """Bits are copied as integers of their width."""
    (x,), (y,) = node.inputs, node.outputs
    bits = next(d for d in (I8, I16, I32, I64) if d.bits == y.type.dtype.bits)
    source = ctx.weight(x, "row", bits.name) if ctx.is_static(x) else ctx.memory(x, dtype=bits)
    arguments = {"x": source, "y": ctx.memory(y, dtype=bits), "n": i32(y.type.size)}
    ctx.launch("elementwise.cast", (cdiv(y.type.size, BLOCK), 1, 1), arguments, {"BLOCK": BLOCK})


def emit_top_k(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, TopK)
    x, (values, ids) = node.inputs[0], node.outputs
    width = int(x.type.shape[-1])
    arguments = {"x": operand(ctx, x), "values": ctx.memory(values), "ids": ctx.memory(ids)}
    constants = {"N": width, "TOP_K": node.op.k}
    ctx.launch("order.top_k_integers", (prod(x.type.shape[:-1]), 1, 1), arguments, constants)


def _row(op: str, accepts: math.Accepts, emit: Emit) -> OperatorRow:
    name = f"triton-any-integer-{op.replace('_', '-')}"
    return OperatorRow(op, name, "triton", -2, accepts, emit)


ROWS = (
    *(_row(op, accepts_pairs, generic.emit_binary) for op in ARITHMETIC),
    *(_row(op, accepts_comparisons, generic.emit_binary) for op in COMPARISONS),
    *(_row(op, accepts_integers, math.emit_unary) for op in math.OF_INTEGERS),
    *(_row(op, accepts_pairs, math.emit_binary) for op in ("fmod", "trunc_div", "pow")),
    *(_row(op, accepts_pairs, math.emit_binary) for op in math.OF_BITS),
    _row("cast", accepts_cast, generic.emit_cast),
    _row("bitcast", accepts_bits, emit_bitcast),
    *(_row(op, accepts_integers, math.emit_reduce) for op in OF_LINES),
    _row("cumsum", accepts_integers, math.emit_cumsum),
    _row("top_k", accepts_row, emit_top_k),
    _row("take_along", accepts_pick, order.emit_take_along),
    _row("put_along", accepts_pick, order.emit_put_along),
)
