"""Rows of kernels written by hand, in C++ (``native/kernels``): products of bf16 activations.

They order what a core does at a time: weights of the next groups are unpacked while tiles multiply
and older products are added up. Without them (``--no-handwritten``) the rows of `rows_tiles` run.
"""

from __future__ import annotations

from typing import Any

from ...ir.dim import Dim, as_dim, cdiv
from ...ir.dtype import BF16, F32, I8, DType
from ...ir.graph import Node, Value
from ...ir.ops.activations import QuantizeRows, RoundRows
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ..kernels.packing import BLOCK_TYPES
from ..lowering import Lowering, Operand, i32
from ..rows.linear import row_count, vector
from ..table import OperatorRow

TILE_LAYOUT = "tiles"
"""16 outputs x 32 inputs, see ``native/kernels/tiles.h``."""
DEPTH, LANES = 32, 16
BLOCK_M = 64
"""Rows of a program: what an unpacked weight is used for."""
BLOCKS = 2
"""Blocks of 16 outputs that a program multiplies its rows with."""
ACTIVATIONS = (
    "none",
    "relu",
    "relu2",
    "silu",
    "gelu",
    "gelu_tanh",
    "gelu_quick",
    "sigmoid",
    "tanh",
)
"""In the order of ``epilogue::Activation``."""
OFF = "kernels written by hand are switched off"


def accepts_product(node: Node, target: Target) -> str:
    """Why the kernel here cannot run a product, or ""."""
    assert isinstance(node.op, Linear | GatedLinear)
    if node.op.rounded_from:
        return "expected the weights' own values for any number of rows"
    return accepts_rounded(node, target)


def accepts_rounded(node: Node, target: Target) -> str:
    """Why a product of bf16 activations with few rows cannot run here, or ""."""
    w = node.inputs[1].type
    if w.dtype != BF16 and w.dtype.name not in BLOCK_TYPES:
        return f"no kernel for {w.dtype}"
    assert isinstance(node.op, Linear | GatedLinear)
    if w.dtype != BF16 and BLOCK_TYPES[w.dtype.name].has_min and not node.op.has_sums:
        return "expected the sums of x by group: the type has a minimum"
    if isinstance(node.op, Linear) and node.op.has_residual and node.op.dtype != F32:
        return f"expected a residual of f32, got {node.op.dtype}"
    return refuses(node, target, BF16)


def accepts_integers(node: Node, target: Target) -> str:
    """Why a product of 8-bit activations cannot run here (`rows_int8`), or ""."""
    x, w = node.inputs[0], node.inputs[1].type
    if w.dtype.name not in BLOCK_TYPES:
        return f"no kernel for i8 and {w.dtype}"
    if x.producer is None or not isinstance(x.producer.op, QuantizeRows):
        return "expected x from quantize_rows: its kernel stores it in the order of the tiles"
    return refuses(node, target, I8)


def accepts_exact(node: Node, target: Target) -> str:
    """Why a product of f32 activations cannot run here (`rows_exact`), or ""."""
    op, w = node.op, node.inputs[1].type
    assert isinstance(op, Linear | GatedLinear)
    if w.dtype.name not in BLOCK_TYPES:
        return f"no kernel for f32 and {w.dtype}"
    if BLOCK_TYPES[w.dtype.name].has_min and not op.has_sums:
        return "expected the sums of x by group: the type has a minimum"
    return refuses(node, target, F32)


def refuses(node: Node, target: Target, activations: DType) -> str:
    """What all products here need."""
    x, w = node.inputs[0].type, node.inputs[1].type
    if not target.handwritten:
        return OFF
    if x.dtype != activations:
        return f"expected x of {activations}, got {x.dtype}"
    if not all(isinstance(d, int) for d in w.shape) or int(w.shape[1]) % DEPTH:
        return f"expected a weight with K a multiple of {DEPTH}, got {w}"
    if isinstance(node.op, GatedLinear) and int(w.shape[0]) // 2 % LANES:
        return f"expected halves of a multiple of {LANES} rows, got {w}"
    return ""


def type_constants(weight: Value) -> dict[str, int | bool]:
    """What the C++ needs to know of a weight's type."""
    if weight.type.dtype == BF16:
        return {"HAS_MIN": False}
    return dict(BLOCK_TYPES[weight.type.dtype.name].constants)


def emit_product(node: Node, ctx: Lowering) -> None:
    launch(node, ctx, row_count(node.inputs[0]))


def optional_operands(node: Node, ctx: Lowering) -> dict[str, Operand | None]:
    """Bias and residual of a product; a gated one has none."""
    op = node.op
    assert isinstance(op, Linear | GatedLinear)
    rest = list(node.inputs[2 + op.num_sides :])
    if isinstance(op, GatedLinear):
        return {"bias": None, "residual": None}
    bias = rest.pop(0) if op.has_bias else None
    residual = rest.pop(0) if op.has_residual else None
    return {
        "bias": vector(ctx, bias) if bias else None,
        "residual": ctx.memory(residual) if residual else None,
    }


def launch(node: Node, ctx: Lowering, rows: Dim) -> None:
    """One call of the kernel for ``rows`` rows."""
    op = node.op
    assert isinstance(op, Linear | GatedLinear)
    x, w = node.inputs[:2]
    (y,) = node.outputs
    sums = node.inputs[2] if op.has_sums else None
    optional = optional_operands(node, ctx)
    arguments = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, TILE_LAYOUT, "u8"),
        "y": ctx.memory(y),
        "rows": i32(rows),
        "sums": ctx.memory(sums) if sums and type_constants(w)["HAS_MIN"] else None,
        **optional,
    }
    constants = product_constants(node) | {"BLOCK_M": BLOCK_M}
    ctx.launch_native(_kernel(x, w), product_grid(constants, rows), arguments, constants)


def product_constants(node: Node) -> dict[str, Any]:
    """What every product by hand is made for, but for the rows of a program."""
    op, w = node.op, node.inputs[1]
    assert isinstance(op, Linear | GatedLinear)
    halves = 2 if isinstance(op, GatedLinear) else 1
    n, k = w.type.concrete({})
    return {
        "K": k,
        "N": n // halves,
        "HALVES": halves,
        "BLOCK_N": BLOCKS * LANES // halves,
        "ACT": ACTIVATIONS.index(op.activation or "none"),
        "HAS_BIAS": isinstance(op, Linear) and op.has_bias,
        "HAS_RESIDUAL": isinstance(op, Linear) and op.has_residual,
        "OUT_BF16": node.outputs[0].type.dtype == BF16,
        **type_constants(w),
    }


def product_grid(constants: dict[str, Any], rows: Dim) -> tuple[Dim, Dim, Dim]:
    """Programs by outputs and by rows."""
    blocks = cdiv(constants["N"], constants["BLOCK_N"])
    return as_dim(blocks), as_dim(cdiv(rows, constants["BLOCK_M"])), 1


def _kernel(x: Value, w: Value) -> str:
    if x.type.dtype == F32:
        return "linear_f32"
    return "dense_bf16" if w.type.dtype == BF16 else "linear_bf16"


def accepts_round(node: Node, target: Target) -> str:
    assert isinstance(node.op, RoundRows)
    if not target.handwritten:
        return OFF
    return "" if node.op.group == DEPTH else f"expected groups of {DEPTH}, got {node.op.group}"


def emit_round(node: Node, ctx: Lowering) -> None:
    (x,), (rounded, sums) = node.inputs, node.outputs
    arguments = {"x": ctx.memory(x), "rounded": ctx.memory(rounded), "sums": ctx.memory(sums)}
    ctx.launch_native("round_rows", (row_count(x), 1, 1), arguments, {"K": int(x.type.shape[-1])})


def _has_tiles(product: Node, target: Target) -> bool:
    rows = (accepts_rounded, accepts_integers, accepts_exact)
    return any(not accepts(product, target) for accepts in rows)


def accepts_embedding(node: Node, target: Target) -> str:
    """A table of its own may have any layout; one that is the head's weight too has the head's."""
    table = node.inputs[0]
    if not target.handwritten:
        return OFF
    if table.type.dtype != BF16 and table.type.dtype.name not in BLOCK_TYPES:
        return f"no kernel for {table.type.dtype}"
    heads = [user for user in table.uses if isinstance(user.op, Linear)]
    if not heads or not all(_has_tiles(head, target) for head in heads):
        return "no product by hand has the same weight"
    return ""


def emit_embedding(node: Node, ctx: Lowering) -> None:
    table, ids = node.inputs
    arguments = {
        "table": ctx.weight(table, TILE_LAYOUT, "u8"),
        "ids": ctx.memory(ids),
        "y": ctx.memory(node.outputs[0]),
    }
    constants: dict[str, Any] = {"K": int(table.type.shape[-1])}
    kernel = "embedding_dense"
    if table.type.dtype != BF16:
        kernel, constants = "embedding_tiles", constants | type_constants(table)
    ctx.launch_native(kernel, (ids.type.size, 1, 1), arguments, constants)


WHY = "written by hand: unpacks, multiplies and adds up different groups at the same time"
ROWS = (
    OperatorRow("linear", "c++-linear", "c++", 20, accepts_product, emit_product, why=WHY),
    OperatorRow(
        "gated_linear", "c++-gated-linear", "c++", 20, accepts_product, emit_product, why=WHY
    ),
    OperatorRow("round_rows", "c++-round-rows", "c++", 20, accepts_round, emit_round),
    OperatorRow("embedding", "c++-gather-tiles", "c++", 20, accepts_embedding, emit_embedding),
)
