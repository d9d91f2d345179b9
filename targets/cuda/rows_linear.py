"""Rows for matrix products: bf16 times a row-major bf16 weight, with epilogues.

Which kernel and tile a range of row counts gets is `tiles.linear_candidates`, ranked by
`choose_tile`.
"""

from __future__ import annotations

import sympy

from ...ir.dim import Dim, as_dim
from ...ir.dtype import BF16
from ...ir.graph import Node, Value
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ...passes.choose_tiles import TileChoice, choose_tile
from ..lowering import Lowering, Operand, TokenRange, f32, i32
from ..rows.linear import row_count, row_ranges, vector
from ..table import OperatorRow
from .dependent import launch_options
from .tiles import LinearConfig, linear_candidates, linear_cost

NOMINAL_ROWS = 4096
"""Rows that tiles are chosen for where there is no bound."""
SMALLEST_TILE = 16
"""Rows of the smallest tile of the tensor cores."""
LOCKS = "locks"
"""Zeroed memory that programs count finished parts of tiles in; all launches share it."""


def accepts(node: Node, target: Target) -> str:
    """Why these rows cannot run a product, or ""."""
    op, x, w = node.op, node.inputs[0].type, node.inputs[1].type
    assert isinstance(op, Linear | GatedLinear)
    if not all(isinstance(d, int) for d in w.shape):
        return f"the weight has symbolic sizes {w}"
    if op.has_side:
        return "no kernel for activations with scales or sums"
    if x.dtype != BF16 or w.dtype != BF16:
        return f"expected bf16 times bf16, got {x.dtype} and {w.dtype}"
    return ""


def emit_linear(node: Node, ctx: Lowering) -> None:
    """Linear with optional bias, activation and residual."""
    op = node.op
    assert isinstance(op, Linear)
    rest = list(node.inputs[2:])
    bias = rest.pop(0) if op.has_bias else None
    residual = rest.pop(0) if op.has_residual else None
    _emit(node, ctx, op.activation, bias, residual, gated=False)


def emit_gated(node: Node, ctx: Lowering) -> None:
    """The first half of a gated MLP: both products and the activation in one kernel."""
    op = node.op
    assert isinstance(op, GatedLinear)
    _emit(node, ctx, op.activation, None, None, gated=True)


def _emit(
    node: Node,
    ctx: Lowering,
    activation: str | None,
    bias: Value | None,
    residual: Value | None,
    gated: bool,
) -> None:
    x, w = node.inputs[:2]
    rows = row_count(x)
    n, k = w.type.concrete({})
    n = n // 2 if gated else n
    arguments: dict[str, Operand | None] = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, "row", "bf16"),
        "bias": vector(ctx, bias) if bias else None,
        "residual": ctx.memory(residual) if residual else None,
        "y": ctx.memory(node.outputs[0]),
        "rows": i32(rows),
    }
    constants = {"K": k, "N": n, "ACT": activation or "none", "GATED": int(gated)}
    for reach, guard in row_ranges(ctx, rows):
        config, choice = choose(ctx.target, reach, n, k, gated)
        grid = (as_dim(sympy.sympify(config.grid(n)) * guard), 1, 1)
        _launch(ctx, config, choice, grid, arguments, constants)


def choose(
    target: Target, reach: TokenRange, n: int, k: int, gated: bool
) -> tuple[LinearConfig, TileChoice]:
    """The way to multiply that many rows, and why."""
    m = NOMINAL_ROWS if reach.high is None else reach.high
    configs = linear_candidates(m, n, k, gated, target.arch)
    if not configs:  # rows too short for the blocks of a GEMV
        configs = linear_candidates(SMALLEST_TILE, n, k, gated, target.arch)
    tiles = [{**c.constants, "num_warps": c.num_warps, "num_stages": c.num_stages} for c in configs]
    costs = [linear_cost(c, m, n, k, gated) for c in configs]
    choice = choose_tile(target, "tensor", "bf16", list(zip(tiles, costs, strict=True)))
    return configs[tiles.index(dict(choice.tile))], choice


def _launch(
    ctx: Lowering,
    config: LinearConfig,
    choice: TileChoice,
    grid: tuple[Dim, Dim, Dim],
    arguments: dict[str, Operand | None],
    constants: dict[str, object],
) -> None:
    given = dict(arguments)
    if config.kernel == "gemv.linear":
        given |= {"scale": None, "norm": None, "eps": f32(0.0)}
        constants = {**constants, "OFFSET": 0.0}
    else:
        given["partials"] = given["locks"] = None
        if config.streams:
            given["partials"] = ctx.scratch(config.partials_bytes() // 4, "partials")
            given["locks"] = ctx.zeros(LOCKS, config.locks_bytes() // 4)
    pdl, options = launch_options(ctx.target)
    options |= {"num_warps": config.num_warps, "num_stages": config.num_stages}
    every = {**constants, **config.constants, **pdl}
    ctx.launch(config.kernel, grid, given, every, choice, options)


ROWS = (
    OperatorRow("linear", "triton-product", "triton", 20, accepts, emit_linear),
    OperatorRow("gated_linear", "triton-gated-product", "triton", 20, accepts, emit_gated),
)
