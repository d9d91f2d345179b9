"""Rows for products whose weights are rounded where rows are many: ``--round-weights``.

Few rows are bound by the bytes of the weights: they are multiplied as `rows_int8` or `rows_native`
do. With many rows the scales of each group cost more than the products: there weights are rounded
to bf16, once for hundreds of rows, and AMX adds up all of K (``native/kernels/linear_rounded.h``).
Both read the same tiles. The bucket of token counts chooses; where rows are not the tokens, each is
launched, one of them with an empty grid.
"""

from __future__ import annotations

import sympy

from ...ir.dim import Dim, as_dim, dim, dim_max
from ...ir.dtype import BF16, F32
from ...ir.graph import Node, Value
from ...ir.ops.elementwise import Cast
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ..lowering import Lowering, Operand, TokenRange, i32
from ..rows.linear import row_count
from ..rows.token import launch_norm, rmsnorm_operands
from ..table import OperatorRow
from . import rows_int8, rows_native
from .rows_native import OFF, TILE_LAYOUT, optional_operands, product_constants, product_grid

PANEL = 1 << 19
"""K times rows of a program: rows of x stay in the second cache beside the panel of weights."""


def rows_of_program(k: int) -> int:
    """What a rounded weight is used for.

    >>> rows_of_program(576), rows_of_program(1536)
    (512, 256)
    """
    return 512 if 512 * k <= PANEL else 256


def shares(ctx: Lowering, rows: Dim, rounded_from: int) -> tuple[Dim, Dim]:
    """Rows that are few, and rows that are many: all of them or none."""
    if isinstance(rows, int):
        return (0, rows) if rows >= rounded_from else (rows, 0)
    if rows == dim("tokens") and ctx.bucket != TokenRange(1, None):
        if ctx.bucket.low >= rounded_from:
            return 0, rows
        if ctx.bucket.high is not None and ctx.bucket.high < rounded_from:
            return rows, 0
    rows = sympy.sympify(rows)
    many = rows * sympy.Min(1, dim_max(0, as_dim(rows - rounded_from + 1)))
    return as_dim(rows - many), as_dim(many)


def is_stored_rounded(x: Value, ctx: Lowering) -> bool:
    """Whether what makes x leaves bf16 in its memory: in a bucket where nobody reads more of it."""
    node = x.producer
    if node is None or x in ctx.graph.outputs or not ctx.is_chosen(node, WRITERS):
        return False
    few, _ = shares(ctx, row_count(x), ctx.target.rounded_from)
    return few == 0 and all(ctx.is_chosen(user, READERS) for user in x.uses)


def result_memory(x: Value, ctx: Lowering) -> Operand:
    return ctx.memory(x, dtype=BF16 if is_stored_rounded(x, ctx) else None)


def accepts_product(node: Node, target: Target) -> str:
    """Why one of the kernels cannot run a product, or ""."""
    op = node.op
    assert isinstance(op, Linear | GatedLinear)
    if not op.rounded_from:
        return "expected the same product for any number of rows"
    if op.rounded_from != target.rounded_from:
        return f"no kernel that rounds weights from {op.rounded_from} rows on"
    few = rows_int8.accepts_integers_of if op.has_scales else rows_native.accepts_rounded
    return few(node, target)


def emit_product(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, Linear | GatedLinear)
    few, many = shares(ctx, row_count(node.inputs[0]), op.rounded_from)
    if few != 0:
        (rows_int8 if op.has_scales else rows_native).launch(node, ctx, few)
    if many != 0:
        launch_rounded(node, ctx, many)


def launch_rounded(node: Node, ctx: Lowering, rows: Dim) -> None:
    op, w = node.op, node.inputs[1]
    assert isinstance(op, Linear | GatedLinear)
    (y,) = node.outputs
    constants = product_constants(node)
    constants["BLOCK_M"] = rows_of_program(constants["K"])
    constants["OUT_BF16"] |= is_stored_rounded(y, ctx)
    arguments = {
        "x": _rounded_memory(node.inputs[3], ctx) if op.has_rounded else ctx.memory(node.inputs[0]),
        "w": ctx.weight(w, TILE_LAYOUT, "u8"),
        "y": result_memory(y, ctx),
        "rows": i32(rows),
        **optional_operands(node, ctx),
    }
    ctx.launch_native("linear_rounded", product_grid(constants, rows), arguments, constants)


def _rounded_memory(rounded: Value, ctx: Lowering) -> Operand:
    """A product's x in bf16: what a cast makes, or what was cast if it lies there so already."""
    cast = rounded.producer
    if cast is not None and ctx.is_chosen(cast, READERS) and is_stored_rounded(cast.inputs[0], ctx):
        return ctx.memory(cast.inputs[0], dtype=BF16)
    return ctx.memory(rounded)


def accepts_cast(node: Node, target: Target) -> str:
    """Only where all readers want it for many rows."""
    (x,), (rounded,) = node.inputs, node.outputs
    if not target.handwritten:
        return OFF
    if node.op != Cast(BF16) or x.type.dtype != F32 or not rounded.uses:
        return "expected f32 to be rounded to bf16 for products"
    return next((r for user in rounded.uses if (r := _refuses(user, rounded, target))), "")


def _refuses(user: Node, rounded: Value, target: Target) -> str:
    if not isinstance(user.op, Linear | GatedLinear) or not user.op.has_rounded:
        return f"expected products that want it for many rows, got {user.op.name}"
    if user.inputs[2 + user.op.has_side] is not rounded:
        return "expected to be an operand for many rows alone"
    return accepts_product(user, target)


def emit_cast(node: Node, ctx: Lowering) -> None:
    (x,), (rounded,) = node.inputs, node.outputs
    _, many = shares(ctx, row_count(x), ctx.target.rounded_from)
    if many != 0 and not is_stored_rounded(x, ctx):
        arguments = {"x": ctx.memory(x), "rounded": ctx.memory(rounded)}
        ctx.launch_native("bf16_rows", (many, 1, 1), arguments, {"K": int(x.type.shape[-1])})


def accepts_quantize(node: Node, target: Target) -> str:
    """Only where all readers want them for few rows."""
    for user in node.outputs[0].uses:
        if not isinstance(user.op, Linear | GatedLinear) or not user.op.has_rounded:
            return f"expected products that want them for few rows, got {user.op.name}"
    return rows_int8.accepts_quantize(node, target)


def emit_quantize(node: Node, ctx: Lowering) -> None:
    few, _ = shares(ctx, row_count(node.inputs[0]), ctx.target.rounded_from)
    if few != 0:
        rows_int8.launch_quantize(node, ctx, few)


def accepts_norm(node: Node, target: Target) -> str:
    """Only where its result is read in bf16 when rows are many."""
    readers = {"cast": accepts_cast, "quantize_rows": accepts_quantize}
    for user in node.outputs[0].uses:
        accepts = readers.get(user.op.name)
        if not target.rounded_from or accepts is None or accepts(user, target):
            return f"expected readers that want bf16 for many rows, got {user.op.name}"
    return ""


def emit_norm(node: Node, ctx: Lowering) -> None:
    """The same kernel, which rounds what it stores to the type of its memory."""
    arguments = {**rmsnorm_operands(node, ctx), "y": result_memory(node.outputs[0], ctx)}
    launch_norm(node, ctx, arguments, {"OFFSET": 0.0})


WHY = "few rows, bound by bytes, as without; rounded weights for many, bound by arithmetic"
GATED = OperatorRow(
    "gated_linear", "c++-gated-rounded", "c++", 25, accepts_product, emit_product, why=WHY
)
NORM = OperatorRow("rmsnorm", "triton-rmsnorm-of-many", "triton", 15, accepts_norm, emit_norm)
WRITERS = (GATED, NORM)
"""What can leave bf16 in the memory of its result."""
READERS = (
    OperatorRow("cast", "c++-bf16-of-many", "c++", 25, accepts_cast, emit_cast),
    OperatorRow("quantize_rows", "c++-int8-of-few", "c++", 25, accepts_quantize, emit_quantize),
)
"""What reads f32 for few rows alone, if its memory has bf16 for many."""
ROWS = (
    OperatorRow("linear", "c++-linear-rounded", "c++", 25, accepts_product, emit_product, why=WHY),
    *WRITERS,
    *READERS,
)
