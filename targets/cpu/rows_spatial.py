"""Rows for convolutions: written by hand, in C++ (``native/kernels/convolution_f32.h``)."""

from __future__ import annotations

from ...ir.dim import as_dim, cdiv, prod
from ...ir.dtype import F32
from ...ir.graph import Node
from ...ir.ops.spatial import Convolution
from ...ir.target import Target
from ..lowering import Lowering, Operand, i32
from ..rows.generic import operand
from ..rows.spatial import of_axes
from ..table import OperatorRow

TILE, CHANNELS = 64, 128
"""Outputs and channels of a program, as in the C++."""


def accepts_convolution(node: Node, target: Target) -> str:
    wrong = [v.type for v in node.inputs if v.type.dtype != F32]
    return f"expected f32, got {wrong[0]}" if wrong else ""


def emit_convolution(node: Node, ctx: Lowering) -> None:
    op, (x, w), y = node.op, node.inputs[:2], node.outputs[0]
    assert isinstance(op, Convolution)
    arguments: dict[str, Operand | None] = {
        "x": operand(ctx, x),
        "w": operand(ctx, w),
        "bias": operand(ctx, node.inputs[2]) if op.has_bias else None,
        "y": ctx.memory(y),
        "channels": i32(x.type.shape[1]),
        "results": i32(y.type.shape[1]),
        "groups": i32(op.groups),
        **of_axes("in", x.type.shape[2:], 1),
        **of_axes("out", y.type.shape[2:], 1),
        **of_axes("kernel", w.type.shape[2:], 1),
        **of_axes("stride", op.stride, 1),
        **of_axes("before", op.before, 0),
        **of_axes("dilation", op.dilation, 1),
    }
    results = cdiv(as_dim(y.type.shape[1]), op.groups)
    grid = (
        cdiv(prod(y.type.shape[2:]), TILE),
        cdiv(results, CHANNELS),
        as_dim(y.type.shape[0] * op.groups),
    )
    constants = {"HAS_BIAS": op.has_bias, "TRANSPOSED": op.transposed}
    ctx.launch_native("convolution_f32", grid, arguments, constants)


ROWS = (
    OperatorRow("convolution", "c++-convolution", "c++", 20, accepts_convolution, emit_convolution),
)
