"""The vendor's operators as rows of the table: declared, and chosen only where they are named.

A row is chosen when the fact ``vendor_operators`` names it (`--kunlun-config`), since only whoever
has the vendor's SDK can build the adapter that such a call goes through. The emulator exports the
same face, with argument checks and plain arithmetic, so that calls can be tried without the SDK. An
operator without a call in the adapter's face stays unavailable, with its arguments in the report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import LoweringError
from ...ir.dtype import F32
from ...ir.graph import Node
from ...ir.ops.linear import Linear
from ...ir.ops.norm import AddRmsNorm, RmsNorm
from ...ir.target import Target
from ..artifact.program import Arg
from ..lowering import Lowering, Operand, f32, i32
from ..rows.linear import row_count, vector
from ..rows.token import width
from ..table import OperatorRow, always
from .buffers import KunlunLowering
from .rows_sdnn import NARROW, chip_of, n_parts
from .tiling import Gemm
from .vendor import NOT_TO_USE, OPERATORS, VendorOp, unavailable

NULL = Operand(Arg("i64", "0"), "i64")
"""No memory: an operand that is not given."""


@dataclass(frozen=True)
class Adapted:
    """How a node becomes a call of the adapter."""

    fits: Callable[[Node, Target], str]
    emit: Callable[[Node, KunlunLowering], None]


def all_f32(node: Node, target: Target) -> str:
    """The operators take operands of one type, activations are f32 in memory."""
    wrong = [v.type for v in (*node.inputs, *node.outputs) if v.type.dtype != F32]
    return f"expected all operands in f32, got {wrong[0]}" if wrong else ""


def emit_rmsnorm(node: Node, ctx: KunlunLowering) -> None:
    assert isinstance(node.op, RmsNorm)
    x, w = node.inputs
    pointers = [ctx.memory(x), vector(ctx, w), ctx.memory(node.outputs[0])]
    ctx.call_vendor("rmsnorm_f32", [*pointers, i32(row_count(x)), i32(width(x)), f32(node.op.eps)])


def emit_add_rmsnorm(node: Node, ctx: KunlunLowering) -> None:
    assert isinstance(node.op, AddRmsNorm)
    x, residual, w = node.inputs
    total, y = node.outputs
    pointers = [ctx.memory(x), ctx.memory(residual), vector(ctx, w), ctx.memory(y)]
    sizes = [ctx.memory(total), i32(row_count(x)), i32(width(x)), f32(node.op.eps)]
    ctx.call_vendor("add_rmsnorm_f32", [*pointers, *sizes])


def plain_matmul(node: Node, target: Target) -> str:
    op = node.op
    assert isinstance(op, Linear)
    if op.activation or op.has_residual or op.has_side:
        return "has no epilogue but a bias"
    w = node.inputs[1].type
    if w.dtype != F32 or not all(isinstance(d, int) for d in w.shape):
        return f"expected x and w of one type, f32, got a weight {w}"
    n, k = w.concrete({})
    parts = len(n_parts(chip_of(target), Gemm(0, k, n, "f32")))
    if n < NARROW or parts > 1:
        return f"expected {NARROW} outputs or more, and no more than one call takes, got {w}"
    return all_f32(node, target)


def emit_matmul(node: Node, ctx: KunlunLowering) -> None:
    assert isinstance(node.op, Linear)
    x, w, *bias = node.inputs
    n, k = w.type.concrete({})
    pointers = [ctx.memory(x), ctx.weight(w, "row", "f32"), ctx.memory(node.outputs[0])]
    more = [vector(ctx, bias[0]) if bias else NULL, i32(row_count(x)), i32(n), i32(k), f32(1.0)]
    ctx.call_vendor("matmul_f32", [*pointers, *more])


ADAPTED = {
    "rmsnorm": Adapted(all_f32, emit_rmsnorm),
    "add-rmsnorm": Adapted(all_f32, emit_add_rmsnorm),
    "matmul": Adapted(plain_matmul, emit_matmul),
}
"""By `VendorOp.name`: what the adapter's face has a call for."""


def _row(vendor: VendorOp) -> OperatorRow:
    adapted = ADAPTED.get(vendor.name)

    def accepts(node: Node, target: Target) -> str:
        if adapted is None or vendor.name not in chip_of(target).vendor_operators:
            return unavailable(vendor)
        return adapted.fits(node, target)

    def emit(node: Node, ctx: Lowering) -> None:
        assert adapted is not None and isinstance(ctx, KunlunLowering)
        adapted.emit(node, ctx)

    why = "the configuration names it"
    return OperatorRow(vendor.op, vendor.row, "library", 30, accepts, emit, why=why)


def _refuse(node: Node, ctx: Lowering) -> None:
    raise LoweringError(f"{node.op.name}: expected a row that may be used, got a denied one")


ROWS: tuple[OperatorRow, ...] = (
    *(_row(vendor) for vendor in OPERATORS),
    *(OperatorRow(d.op, d.name, "library", 30, always, _refuse) for d in NOT_TO_USE),
)
