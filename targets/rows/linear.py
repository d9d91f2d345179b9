"""Rows for matrix products: x f32 times a packed weight, dense or of blocks, with epilogues.

Numerics are those of the kernels: one chain of f32 FMA per output, so tiles change no bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from ...ir.dim import Dim, as_dim, cdiv, dim, dim_max, prod
from ...ir.dtype import BF16, F16, F32, DType
from ...ir.graph import Node, Value
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ...passes.choose_tiles import TileChoice, TileCost, choose_tile
from ..kernels.group_packing import form_constants, group_sections
from ..kernels.packing import BLOCK_TYPES, LANES, sections
from ..lowering import Lowering, Operand, TokenRange, i32, token_ranges
from ..table import OperatorRow

DENSE_LAYOUT = "n64"
BLOCK_LAYOUT = "blocks-n64"
TILE_ROWS = (1, 2, 4, 8, 16, 32, 64)
GROUP, DENSE_STEP = 32, 64
"""K values that one step of a kernel multiplies: a group of a block type, or a slice of a row."""
UNPACK_OPS = 6
"""Vector operations to turn one register of quantized integers into f32 weights."""


@dataclass(frozen=True)
class Problem:
    """Sizes of one product: M rows (symbolic), K inputs, N outputs of one weight half."""

    rows: Dim
    k: int
    n: int
    weight: DType
    halves: int = 1


def accepts(node: Node, target: Target) -> str:
    """Why these rows cannot run a linear node, or ""."""
    x, w = node.inputs[0].type, node.inputs[1].type
    if not all(isinstance(d, int) for d in w.shape):
        return f"the weight has symbolic sizes {w}"
    if not reads(w.dtype):
        return f"no kernel for {w.dtype}"
    if isinstance(node.op, GatedLinear) and int(w.shape[0]) // 2 % LANES:
        return f"expected halves of a multiple of {LANES} rows, got {w}"
    return "" if x.dtype in (F32, BF16) else f"expected x of f32 or bf16, got {x.dtype}"


def reads(weight: DType) -> bool:
    """Whether kernels here read weights of this type."""
    if weight.form is not None:
        return True
    return weight.name in BLOCK_TYPES or weight in (F32, BF16, F16)


def tile_cost(problem: Problem, rows: int, block_m: int, block_k: int) -> TileCost:
    """One program makes block_m x 64 outputs over all of K."""
    weights = problem.halves * LANES * problem.k
    unpack = weights * UNPACK_OPS if problem.weight != F32 else weights
    return TileCost(
        programs=-(-rows // block_m) * -(-problem.n // LANES),
        flops=2 * block_m * weights + unpack,
        bytes=weights * problem.weight.bits / 8,
        on_chip_bytes=4 * (problem.halves * LANES * (block_m + block_k) + block_m * block_k),
    )


def choose(ctx: Lowering, problem: Problem, rows: int) -> TileChoice:
    """BLOCK_M, and for dense weights the K step; a block type steps by its group of 32."""
    block_k, fixed = (
        (GROUP, {}) if problem.weight.is_block else (DENSE_STEP, {"BLOCK_K": DENSE_STEP})
    )
    candidates = [
        ({"BLOCK_M": m, **fixed}, tile_cost(problem, rows, m, block_k)) for m in TILE_ROWS
    ]
    return choose_tile(ctx.target, "vector", "f32", candidates)


def row_ranges(ctx: Lowering, rows: Dim) -> list[tuple[TokenRange, Dim]]:
    """Which ranges of row counts this bucket must serve, each with a 0/1 guard for the grid.

    Rows that are the tokens lie in the bucket's own range. Other row counts (logit rows) are at
    most the tokens but may be far fewer: one launch per range, and all but one have an empty grid.
    """
    if isinstance(rows, int):
        return [(TokenRange(rows, rows), 1)]
    is_bucketed = ctx.bucket != TokenRange(1, None)
    if rows == dim("tokens") and is_bucketed:
        return [(ctx.bucket, 1)]
    ranges = token_ranges(ctx.target.token_buckets)
    reachable = [r for r in ranges if ctx.bucket.high is None or r.low <= ctx.bucket.high]
    return [(r, _guard(rows, r)) for r in reachable]


def _guard(rows: Dim, reach: TokenRange) -> Dim:
    """1 if low <= rows <= high, else 0."""
    rows = sympy.sympify(rows)
    above = sympy.Min(1, dim_max(0, as_dim(rows - reach.low + 1))) if reach.low > 1 else 1
    below = sympy.Min(1, dim_max(0, as_dim(reach.high - rows + 1))) if reach.high else 1
    return as_dim(above * below)


def weight_operands(ctx: Lowering, weight: Value) -> dict[str, Operand | None]:
    """The kernel arguments of a packed weight: ``w``, or one per section of a block type."""
    if not weight.type.dtype.is_block:
        return {"w": ctx.weight(weight, DENSE_LAYOUT, weight.type.dtype.name)}
    n, k = weight.type.concrete({})
    form = weight.type.dtype.form
    if form is not None:
        parts, names = group_sections(form, n, k), "qdz"
    else:
        parts, names = sections(BLOCK_TYPES[weight.type.dtype.name], n, k), "qhsdm"
    return {
        name: ctx.weight(weight, BLOCK_LAYOUT, parts[name].dtype, parts[name].offset)
        if name in parts
        else None
        for name in names
    }


def weight_constants(weight: DType, k: int) -> dict[str, object]:
    """The constants that tell a kernel the type of a weight [N, k]."""
    if weight.form is not None:
        return form_constants(weight.form, k)
    return dict(BLOCK_TYPES[weight.name].constants) if weight.is_block else {}


def kernel_of(name: str, weight: DType) -> str:
    """``linear`` or ``gated_linear`` for a weight's type."""
    if not weight.is_block:
        return f"linear.{name}"
    kind = "quant" if weight.form is None else "group"
    return f"{kind}_linear.{name.replace('linear', f'{kind}_linear')}"


def emit_linear(node: Node, ctx: Lowering) -> None:
    """Linear with optional bias, activation and residual."""
    op = node.op
    assert isinstance(op, Linear)
    x, w, *rest = node.inputs  # sums of x are not needed: these kernels dequantize each weight
    bias = rest[op.num_sides] if op.has_bias else None
    residual = rest[-1] if op.has_residual else None
    arguments: dict[str, Operand | None] = {
        "x": ctx.memory(x),
        "bias": vector(ctx, bias) if bias else None,
        "residual": ctx.memory(residual) if residual else None,
        "y": ctx.memory(node.outputs[0]),
        **weight_operands(ctx, w),
    }
    n, k = w.type.concrete({})
    _launch(ctx, "linear", Problem(row_count(x), k, n, w.type.dtype), arguments, op.activation)


def emit_gated(node: Node, ctx: Lowering) -> None:
    """The first half of a gated MLP: both products and the activation in one kernel."""
    op = node.op
    assert isinstance(op, GatedLinear)
    x, w, *_ = node.inputs
    arguments: dict[str, Operand | None] = {
        "x": ctx.memory(x),
        "y": ctx.memory(node.outputs[0]),
        **weight_operands(ctx, w),
    }
    n, k = w.type.concrete({})
    problem = Problem(row_count(x), k, n // 2, w.type.dtype, halves=2)
    _launch(ctx, "gated_linear", problem, arguments, op.activation)


def _launch(
    ctx: Lowering,
    name: str,
    problem: Problem,
    arguments: dict[str, Operand | None],
    activation: str | None,
) -> None:
    function = kernel_of(name, problem.weight)
    for reach, guard in row_ranges(ctx, problem.rows):
        tile = choose(ctx, problem, reach.nominal)
        block_m = tile.tile["BLOCK_M"]
        grid = (
            as_dim(sympy.sympify(cdiv(problem.rows, block_m)) * guard),
            -(-problem.n // LANES),
            1,
        )
        constants = {
            "K": problem.k,
            "N": problem.n,
            "ACT": activation or "none",
            **tile.tile,
            **weight_constants(problem.weight, problem.k),
        }
        ctx.launch(function, grid, {**arguments, "rows": i32(problem.rows)}, constants, tile)


def vector(ctx: Lowering, value: Value) -> Operand:
    """A per-channel vector, plain row-major."""
    return ctx.weight(value, "row", value.type.dtype.name)


def row_count(x: Value) -> Dim:
    """All leading dims as one."""
    return prod(x.type.shape[:-1])


ROWS = (
    OperatorRow("linear", "triton-linear", "triton", 10, accepts, emit_linear),
    OperatorRow("gated_linear", "triton-gated-linear", "triton", 10, accepts, emit_gated),
)
