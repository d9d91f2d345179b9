"""Rows for ops along one axis that order, pick and add, and for products with chosen experts.

Plain kernels, one program for a row: they make mixtures of experts run everywhere; a chip that
wants more of them brings rows of its own.
"""

from __future__ import annotations

from ...ir.dim import as_dim, cdiv, prod
from ...ir.dtype import BF16, BOOL, F16, F32, I32
from ...ir.graph import Node
from ...ir.ops.order import TopK
from ...ir.ops.reduce import Reduce
from ...ir.target import Target
from ..kernels.packing import LANES
from ..lowering import Lowering, i32
from ..table import OperatorRow
from .generic import BLOCK, RANK, broadcast_strides, operand, padded
from .linear import DENSE_LAYOUT, DENSE_STEP

MAX_WIDTH = 1 << 14
"""Elements of a row that one program holds."""


def _width(node: Node) -> int:
    return int(node.inputs[0].type.shape[-1])


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def accepts_row(node: Node, target: Target) -> str:
    """Numbers to order or add, and a row that fits."""
    x = node.inputs[0].type
    if x.dtype not in (F32, I32):
        return f"expected f32 or i32, got {x.dtype}"
    return accepts_width(node)


def accepts_pick(node: Node, target: Target) -> str:
    x = node.inputs[0].type
    if x.dtype not in (F32, I32, BOOL) or node.inputs[1].type.dtype != I32:
        return f"expected f32, i32 or bool and i32 indices, got {x} and {node.inputs[1].type}"
    return accepts_width(node)


def accepts_width(node: Node) -> str:
    width = _width(node)
    return f"expected rows of at most {MAX_WIDTH}, got {width}" if width > MAX_WIDTH else ""


def emit_top_k(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, TopK)
    x, (values, ids) = node.inputs[0], node.outputs
    width = _width(node)
    arguments = {"x": operand(ctx, x), "values": ctx.memory(values), "ids": ctx.memory(ids)}
    constants = {"N": width, "TOP_K": node.op.k, "BLOCK": _power_of_two(width)}
    ctx.launch("order.top_k", (prod(x.type.shape[:-1]), 1, 1), arguments, constants)


def emit_take_along(node: Node, ctx: Lowering) -> None:
    x, ids = (operand(ctx, v) for v in node.inputs)
    arguments = {"x": x, "ids": ids, "y": ctx.memory(node.outputs[0])}
    constants = {"N": _width(node), "TOP_K": int(node.inputs[1].type.shape[-1])}
    rows = prod(node.inputs[0].type.shape[:-1])
    ctx.launch("order.take_along", (rows, 1, 1), arguments, constants)


def emit_put_along(node: Node, ctx: Lowering) -> None:
    x, ids, src = (operand(ctx, v) for v in node.inputs)
    width = _width(node)
    arguments = {"x": x, "ids": ids, "src": src, "y": ctx.memory(node.outputs[0])}
    constants = {"N": width, "TOP_K": int(node.inputs[1].type.shape[-1])}
    constants["BLOCK"] = _power_of_two(width)
    rows = prod(node.inputs[0].type.shape[:-1])
    ctx.launch("order.put_along", (rows, 1, 1), arguments, constants)


def emit_cumsum(node: Node, ctx: Lowering) -> None:
    arguments = {"x": operand(ctx, node.inputs[0]), "y": ctx.memory(node.outputs[0])}
    rows = prod(node.inputs[0].type.shape[:-1])
    ctx.launch("order.cumsum", (rows, 1, 1), arguments, {"N": _width(node)})


# Sums of another axis than the last -----------------------------------------------------------


def accepts_middle(node: Node, target: Target) -> str:
    x, op = node.inputs[0].type, node.op
    assert isinstance(op, Reduce)
    sizes = x.shape[op.axis % x.rank :]
    if x.dtype != F32 or not all(isinstance(d, int) for d in sizes):
        return f"expected f32, of known size from axis {op.axis} on, got {x}"
    return ""


def emit_sum_middle(node: Node, ctx: Lowering) -> None:
    x, op = node.inputs[0].type, node.op
    assert isinstance(op, Reduce)
    axis = op.axis % x.rank
    inner = int(prod(x.shape[axis + 1 :]))
    arguments = {"x": operand(ctx, node.inputs[0]), "y": ctx.memory(node.outputs[0])}
    constants = {"N": int(x.shape[axis]), "INNER": inner, "BLOCK": BLOCK}
    grid = (prod(x.shape[:axis]), cdiv(inner, BLOCK), 1)
    ctx.launch("order.sum_middle", grid, arguments, constants)


# Products in batches --------------------------------------------------------------------------


def accepts_matmul(node: Node, target: Target) -> str:
    """Matrices of known size; more than two dims of batches must be joined to two first."""
    for value in (*node.inputs, *node.outputs):
        x = value.type
        if x.dtype not in (F32, I32) or not all(isinstance(d, int) for d in x.shape[-2:]):
            return f"expected f32 or i32 matrices of known size, got {x}"
        if x.rank > RANK:
            return f"expected at most {RANK} dims, got {x}"
    return ""


def emit_matmul(node: Node, ctx: Lowering) -> None:
    a, b = node.inputs
    y = node.outputs[0].type
    batches = padded(y.shape)[:2]
    m, k, n = (int(d) for d in (*a.type.shape[-2:], y.shape[-1]))
    arguments = {"a": operand(ctx, a), "b": operand(ctx, b), "y": ctx.memory(node.outputs[0])}
    arguments["d1"] = i32(batches[1])
    for name, value in (("a", a), ("b", b)):
        strides = broadcast_strides(value.type.shape)
        arguments |= {f"{name}0": i32(strides[0]), f"{name}1": i32(strides[1])}
    constants = {"M": m, "K": k, "N": n, "BLOCK": BLOCK}
    grid = (as_dim(prod(batches) * m), cdiv(n, BLOCK), 1)
    ctx.launch("order.batched_matmul", grid, arguments, constants)


# Experts --------------------------------------------------------------------------------------


def accepts_experts(node: Node, target: Target) -> str:
    w = node.inputs[1].type
    if w.dtype not in (F32, BF16, F16) or not all(isinstance(d, int) for d in w.shape):
        return f"no kernel for experts of {w}"
    return ""


def emit_experts(node: Node, ctx: Lowering) -> None:
    """One program for 64 outputs of one choice of one token."""
    x, w, ids = node.inputs
    _, n, k = w.type.concrete({})
    arguments = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, DENSE_LAYOUT, w.type.dtype.name),
        "ids": ctx.memory(ids),
        "y": ctx.memory(node.outputs[0]),
    }
    constants = {"K": k, "N": n, "TOP_K": int(ids.type.shape[1]), "SHARED": x.type.rank == 2}
    constants["BLOCK_K"] = DENSE_STEP
    grid = (as_dim(ids.type.size), cdiv(n, LANES), 1)
    ctx.launch("moe.expert_linear", grid, arguments, constants)


ROWS = (
    OperatorRow("top_k", "triton-top-k", "triton", 1, accepts_row, emit_top_k),
    OperatorRow("take_along", "triton-take-along", "triton", 1, accepts_pick, emit_take_along),
    OperatorRow("put_along", "triton-put-along", "triton", 1, accepts_pick, emit_put_along),
    OperatorRow("cumsum", "triton-cumsum", "triton", 1, accepts_row, emit_cumsum),
    OperatorRow("sum", "triton-sum-middle", "triton", 0, accepts_middle, emit_sum_middle),
    OperatorRow("matmul", "triton-batched-matmul", "triton", 1, accepts_matmul, emit_matmul),
    OperatorRow("expert_linear", "triton-experts", "triton", 1, accepts_experts, emit_experts),
)
