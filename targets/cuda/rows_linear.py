"""Rows for matrix products: bf16 times a row-major weight, bf16 or of a group form, with epilogues.

Which kernel and tile a range of row counts gets: the fastest of those that were measured for the
very product, else `tiles.linear_candidates` and what was measured for row counts beside these, all
ranked by `choose_tile` with the model corrected by the nearest measurement of each.

A GEMV can normalize its input on the way. Where every reader of a norm is one that gains by it,
the norm is not launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import sympy

from ...ir.dim import as_dim
from ...ir.dtype import BF16
from ...ir.graph import Node, Value
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.ops.norm import AddRmsNorm, RmsNorm
from ...ir.target import Target
from ...passes.choose_tiles import TileChoice, TileCost, choose_tile, modelled
from ..lowering import Lowering, Operand, TokenRange, i32
from ..rows.linear import row_count, row_ranges, vector
from ..table import OperatorRow
from .fp8_rows import MAX_ROW, fp8_operands
from .measured import Product, Record, alike, all_records, exact, near
from .product_launch import GEMVS, launch_product
from .quantized_tiles import quantized_candidates
from .tiles import LinearConfig, linear_candidates, linear_cost
from .weight_form import E4M3, PLAIN, WeightForm, form_of, weight_operands

Way: TypeAlias = tuple[LinearConfig, TileChoice]
_CHOSEN: dict[str, tuple[Target | None, dict[Product, Way]]] = {}
"""Ways by arch: equal layers ask again and again."""
NOMINAL_ROWS = 4096
"""Rows that tiles are chosen for where there is no bound."""
SMALLEST_TILE = 16
"""Rows of the smallest tile of the tensor cores."""
PEAK = ("tensor", "bf16")
LEAST_GROWTH = 0.8
"""Half the rows take at least so much of the time: weights are read and kernels start as before."""
NEAR_COUNTS = 1.1
"""A time for other row counts is trusted less than one for these."""
BARE_SHARED = 1024
"""Bytes of shared memory that every program takes for itself."""
UNMEASURED = 3.0
"""Times the modelled time: what a way counts as that nobody measured, where others were."""
NORM_SECONDS = 1.6e-6
"""A launch of a norm of few rows: 1.5 to 1.8 µs on an H200."""
SHORT_ROW = 2048
"""Numbers of a row up to which a GEMV normalizes it at next to no cost, where nobody measured."""
FP8_SECONDS = 1.0e-6
"""What it costs to make fp8 of rows, on average: as a norm writes them, or in a launch of 2 µs."""
FP8_SLACK = 0.06
"""Of the largest result; 0.031 was seen in 2,000."""


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


def accepts_form(node: Node, target: Target) -> str:
    """Why these rows cannot run a product with a weight of few bits, or ""."""
    op, x, w = node.op, node.inputs[0].type, node.inputs[1].type
    assert isinstance(op, Linear | GatedLinear)
    if not all(isinstance(d, int) for d in w.shape):
        return f"the weight has symbolic sizes {w}"
    if w.dtype.form is None or not target.supports(w.dtype) or x.dtype != BF16:
        forms = ", ".join(sorted(target.forms)) or "no"
        return f"expected bf16 times {forms} forms, got {x.dtype} and {w.dtype}"
    if w.dtype.form.is_float and int(w.shape[1]) > MAX_ROW:
        return f"expected rows of at most {MAX_ROW} elements, got {w}"
    return "" if not op.has_side else "no kernel for activations with scales or sums"


def fp8_slack(node: Node, target: Target) -> float:
    """Rows become e4m3 beside such weights: about 2.5 % (relative L2), in a gated product twice."""
    form = node.inputs[1].type.dtype.form
    if form is None or not form.is_float:
        return 0.0
    return 2 * FP8_SLACK if isinstance(node.op, GatedLinear) else FP8_SLACK


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
    n, form = n // 2 if gated else n, form_of(w)
    arguments: dict[str, Operand | None] = {
        **weight_operands(ctx, w),
        "bias": vector(ctx, bias) if bias else None,
        "residual": ctx.memory(residual) if residual else None,
        "y": ctx.memory(node.outputs[0]),
        "rows": i32(rows),
    }
    constants = {"K": k, "N": n, "ACT": activation or "none", "GATED": int(gated)}
    for reach, guard in row_ranges(ctx, rows):
        norm = norm_before(node, ctx, reach)
        config, choice = choose(ctx.target, reach, n, k, gated, form)
        if norm is not None:
            config = normed_way(ctx.target, reach, n, k, gated, form) or config
        grid = (as_dim(sympy.sympify(config.grid(rows, n, gated)) * guard), 1, 1)
        given = {**arguments, "x": ctx.memory(norm.inputs[0] if norm else x)}
        if config.x == E4M3:
            given |= fp8_operands(ctx, x, multiplies_fp8(x, ctx, reach), guard)
        launch_product(ctx, config, choice, grid, given, constants, form, norm)


def choose(
    target: Target, reach: TokenRange, n: int, k: int, gated: bool, form: WeightForm = PLAIN
) -> Way:
    """The way to multiply that many rows, and why."""
    product = Product(NOMINAL_ROWS if reach.high is None else reach.high, n, k, gated, form)
    made_for, chosen = _CHOSEN.get(target.arch, (None, {}))
    if made_for != target:
        chosen = {}
        _CHOSEN[target.arch] = (target, chosen)
    if product not in chosen:
        chosen[product] = _choose(target, product)
    return chosen[product]


def _choose(target: Target, product: Product) -> Way:
    options = list(_options(target, product))
    tiles = [_tile(config) for config, _ in options]
    costs = [cost for _, cost in options]
    choice = choose_tile(target, *PEAK, list(zip(tiles, costs, strict=True)))
    number = next(i for i, tile in enumerate(tiles) if tile is choice.tile)
    return options[number][0], choice


def _tile(config: LinearConfig) -> dict[str, int]:
    sizes = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return {**config.constants, **sizes}


def ways(target: Target, product: Product, most: int) -> list[LinearConfig]:
    """The most promising ways to compute a product, measured or not, best first."""
    found: dict[str, tuple[float, LinearConfig]] = {}
    for config, cost in _options(target, product, every=True):
        if cost.on_chip_bytes <= target.memory[0].bytes:
            seconds = cost.measured or modelled(target, *PEAK, cost)[0]
            found.setdefault(f"{config.kernel} {config.x} {_tile(config)}", (seconds, config))
    return [config for _, config in sorted(found.values(), key=lambda each: each[0])[:most]]


def _options(
    target: Target, product: Product, every: bool = False
) -> Iterator[tuple[LinearConfig, TileCost]]:
    """Ways to compute a product: measured ones, else those of other row counts, else any."""
    records = all_records(target.arch, tuning=target.tuning)
    known = exact(records, product)
    for record in known:
        seconds = record.seconds + _side_seconds(record.config)
        yield record.config, replace(_cost(record.config, product), measured=seconds)
    if known and not every:
        return
    for record in near(records, product):
        cost = _cost(record.config, product)
        if not _has_room(target, record.config):
            continue
        growth = modelled(target, *PEAK, cost)[0] / _modelled(target, record)
        seconds = record.seconds * max(growth, LEAST_GROWTH) + _side_seconds(record.config)
        yield record.config, replace(cost, measured=seconds * NEAR_COUNTS)
    for config in _candidates(target, product):
        like = alike(records, product, config)
        factor = like.seconds / _modelled(target, like) if like else UNMEASURED
        yield config, replace(_cost(config, product), correction=factor if records else 1.0)


def _side_seconds(config: LinearConfig) -> float:
    """What rows of e4m3 cost beside the product: some come from a norm, others from a launch."""
    return FP8_SECONDS if config.x == E4M3 else 0.0


def _has_room(target: Target, config: LinearConfig) -> bool:
    """Whether all programs of a persistent launch run at once, with tiles that may have grown."""
    shared = target.memory[0].bytes // (config.smem_bytes + BARE_SHARED)
    return config.constants.get("PROGRAMS", 0) <= target.programs * shared


def _modelled(target: Target, record: Record) -> float:
    """Seconds that the model gives for what was measured."""
    return modelled(target, *PEAK, _cost(record.config, record.product))[0]


def _candidates(target: Target, product: Product) -> list[LinearConfig]:
    sizes = (product.n, product.k, product.gated, target.arch)
    if product.form != PLAIN:
        return quantized_candidates(product.m, *sizes, product.form)
    # rows too short for the blocks of a GEMV have no candidates
    return linear_candidates(product.m, *sizes) or linear_candidates(SMALLEST_TILE, *sizes)


def _cost(config: LinearConfig, product: Product) -> TileCost:
    w_bytes = product.form.bytes_per_weight
    return linear_cost(config, product.m, product.n, product.k, product.gated, w_bytes)


# Norms that products do themselves --------------------------------------------------------------


def normed_way(
    target: Target, reach: TokenRange, n: int, k: int, gated: bool, form: WeightForm = PLAIN
) -> LinearConfig | None:
    """The GEMV that normalizes its input, where that takes less than a launch of its own.

    It costs registers: of 128,256 outputs from rows of 4,096 43 µs, of 14,336 pairs of them 0.3.
    """
    config, choice = choose(target, reach, n, k, gated, form)
    if config.kernel not in GEMVS or reach.high is None:
        return None
    product = Product(reach.high, n, k, gated, form)
    measured = exact(all_records(target.arch, "normed", target.tuning), product)
    if not measured:
        return config if k <= SHORT_ROW else None
    best = min(measured, key=lambda record: record.seconds)
    return best.config if best.seconds < choice.seconds + NORM_SECONDS else None


def norm_before(node: Node, ctx: Lowering, reach: TokenRange) -> Node | None:
    """The norm that a product does on the way at these row counts, if it does."""
    x, w = node.inputs[:2]
    norm = x.producer
    if norm is None or not isinstance(norm.op, RmsNorm) or not ctx.is_static(norm.inputs[1]):
        return None
    n, k = w.type.concrete({})
    gated = isinstance(node.op, GatedLinear)
    way = normed_way(ctx.target, reach, n // 2 if gated else n, k, gated, form_of(w))
    return norm if way is not None and k == int(x.type.shape[-1]) else None


def is_done_by_readers(norm: Node, ctx: Lowering, reach: TokenRange) -> bool:
    """Whether no reader needs a norm's result at these row counts."""
    y = norm.outputs[0]
    if y in ctx.graph.outputs:
        return False
    return all(
        isinstance(user.op, Linear | GatedLinear)
        and user.inputs[0] is y
        and y not in user.inputs[1:]
        and ctx.is_chosen(user, ROWS)
        and norm_before(user, ctx, reach) is not None
        for user in y.uses
    )


def multiplies_fp8(x: Value, ctx: Lowering, reach: TokenRange) -> bool:
    """Whether the norm that makes x leaves fp8 rows in these steps: all its readers multiply those.

    Row counts other than the tokens' come in several ranges at once; there a norm stays as it is.
    """
    makes = x.producer is not None and isinstance(x.producer.op, RmsNorm | AddRmsNorm)
    if not makes or x in ctx.graph.outputs or len(row_ranges(ctx, row_count(x))) != 1:
        return False
    return all(
        isinstance(user.op, Linear | GatedLinear)
        and user.inputs[0] is x
        and x not in user.inputs[1:]
        and ctx.is_chosen(user, ROWS)
        and _x_type(user, ctx, reach) == E4M3
        for user in x.uses
    )


def _x_type(node: Node, ctx: Lowering, reach: TokenRange) -> str:
    """What a product multiplies its rows as."""
    w = node.inputs[1]
    n, k = w.type.concrete({})
    gated = isinstance(node.op, GatedLinear)
    return choose(ctx.target, reach, n // 2 if gated else n, k, gated, form_of(w))[0].x


ROWS = (
    OperatorRow("linear", "triton-product", "triton", 20, accepts, emit_linear),
    OperatorRow("gated_linear", "triton-gated-product", "triton", 20, accepts, emit_gated),
    OperatorRow(
        "linear", "triton-quantized-product", "triton", 20, accepts_form, emit_linear,
        why="reads weights of few bits as they are stored", slack=fp8_slack,
    ),
    OperatorRow(
        "gated_linear", "triton-quantized-gated", "triton", 20, accepts_form, emit_gated,
        why="reads weights of few bits as they are stored", slack=fp8_slack,
    ),
)  # fmt: skip
