"""Rows of kernels written by hand for f32 activations and block types: the exact default.

They multiply by the integers of a group and scale the sum, where the Triton rows dequantize each
weight first: half the work per weight, and one stream of memory. Every sum is a chain of f32 FMA.
"""

from __future__ import annotations

from ...ir.dim import as_dim
from ...ir.graph import Node
from ...ir.ops.activations import GroupSums
from ...ir.target import Target
from ..lowering import Lowering
from ..rows.linear import row_count
from ..table import OperatorRow
from .rows_native import DEPTH, OFF, accepts_exact, emit_product


def accepts_sums(node: Node, target: Target) -> str:
    if not target.handwritten:
        return OFF
    assert isinstance(node.op, GroupSums)
    return "" if node.op.group == DEPTH else f"expected groups of {DEPTH}, got {node.op.group}"


def emit_sums(node: Node, ctx: Lowering) -> None:
    (x,), (sums,) = node.inputs, node.outputs
    arguments = {"x": ctx.memory(x), "sums": ctx.memory(sums)}
    grid = (as_dim(row_count(x)), 1, 1)
    ctx.launch_native("group_sums", grid, arguments, {"K": int(x.type.shape[-1])})


ROWS = (
    OperatorRow("linear", "c++-linear-f32", "c++", 15, accepts_exact, emit_product),
    OperatorRow("gated_linear", "c++-gated-linear-f32", "c++", 15, accepts_exact, emit_product),
    OperatorRow("group_sums", "c++-group-sums", "c++", 20, accepts_sums, emit_sums),
)
