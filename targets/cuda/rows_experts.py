"""Rows for mixtures of experts: routing, and the MLPs of the chosen experts.

Few tokens: every pair of (token, choice) reads its expert's weights; the second product adds up the
choices. More: pairs are sorted by expert on the device, and tiles of them share a weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from ...ir.dim import Dim, as_dim, cdiv, dim_min, floordiv
from ...ir.dtype import BF16
from ...ir.graph import Node
from ...ir.ops.moe import ExpertMlp, MoeRoute
from ...ir.target import Target
from ..lowering import Lowering, Operand, TokenRange, i32
from ..rows.linear import row_ranges
from ..rows.token import next_power_of_two
from ..table import OperatorRow
from .dependent import launch_options
from .tiles import smem_bytes

MOST_EXPERTS = 4096
"""Scores of a token that one program keeps in registers."""
FEW_TOKENS = 2
"""Up to so many, pairs seldom share an expert. By pairs and by tiles, sorting aside, in µs on an
H200, 128 experts of 2,048 x 768: 1 token 23.1 and 23.6, 2 tokens 41.2 and 42.8, 4 75.6 and 72.4."""
SORT_CHUNK = 512
COMBINED_AT_ONCE = 1024
"""Columns that one program adds up."""
FEW_UP, FEW_DOWN = (1, 1024, 2), (4, 256, 8)
"""BLOCK_N, the largest BLOCK_K and num_warps for few pairs: 13.4 µs for one token's first product
(14.4 in 4 x 512), 9.3 for the second (10.5 with 4 warps)."""


@dataclass(frozen=True)
class Tile:
    """Constants and compiler options of `grouped_linear.linear`."""

    block_m: int
    block_n: int
    block_k: int
    swap: int
    num_stages: int
    num_warps: int

    def constants(self) -> dict[str, object]:
        return {
            "BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k,
            "SWAP": self.swap,
        }  # fmt: skip


TILES = (
    (64, Tile(16, 64, 128, 1, 4, 4)),
    (256, Tile(32, 64, 128, 1, 4, 4)),
    (1024, Tile(64, 128, 64, 0, 4, 4)),
    (None, Tile(128, 256, 64, 0, 3, 8)),
)
"""By the most tokens of a step. Up to 64, nearly all of 128 experts have work and read their weight
once; above, an expert's tokens fill tiles. Both products of 64 tokens 274 µs (4.4 TB/s), of 256 294
(312 in tiles of 16 rows), of 2,048 471 (507 in tiles of 128 x 128)."""
SMALL = Tile(64, 128, 32, 0, 3, 4)
"""Where shared memory has no room for a larger one."""


def tile_for(target: Target, tokens: int | None) -> Tile:
    """The tile for steps of up to so many tokens."""
    tile = next(t for most, t in TILES if most is None or (tokens is not None and tokens <= most))
    block = (tile.block_m, tile.block_n, tile.block_k)
    if smem_bytes(block, tile.num_stages) > target.memory[0].bytes:
        tile = SMALL
    return replace(tile, swap=1) if target.batch_invariant else tile


# Routing --------------------------------------------------------------------------------------


def accepts_route(node: Node, target: Target) -> str:
    experts = node.inputs[0].type.shape[1]
    if not isinstance(experts, int) or experts > MOST_EXPERTS:
        return f"expected at most {MOST_EXPERTS} experts, got {experts}"
    return ""


def emit_route(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, MoeRoute)
    tokens, experts = node.inputs[0].type.shape
    pdl, options = launch_options(ctx.target)
    block = next_power_of_two(int(experts))
    constants = {
        "EXPERTS": experts, "TOP_K": op.top_k, "RENORMALIZE": int(op.renormalize),
        "BLOCK_E": block, "BLOCK_J": next_power_of_two(op.top_k), **pdl,
    }  # fmt: skip
    arguments = {
        "logits": ctx.memory(node.inputs[0]),
        "ids": ctx.memory(node.outputs[0]),
        "weights": ctx.memory(node.outputs[1]),
    }
    options |= {"num_warps": max(1, min(8, block // 256))}
    ctx.launch("route_experts.route", (tokens, 1, 1), arguments, constants, None, options)


# MLPs -----------------------------------------------------------------------------------------


def accepts_mlp(node: Node, target: Target) -> str:
    x, up, down = (value.type for value in node.inputs[:3])
    if {x.dtype, up.dtype, down.dtype} != {BF16}:
        return f"expected bf16 times bf16, got {x.dtype}, {up.dtype} and {down.dtype}"
    known = all(isinstance(d, int) for d in (*up.shape, *down.shape, node.inputs[3].type.shape[1]))
    return "" if known else f"the weights have symbolic sizes {up} and {down}"


def emit_mlp(node: Node, ctx: Lowering) -> None:
    tokens = node.inputs[0].type.shape[0]
    for reach, guard in row_ranges(ctx, tokens):
        is_few = reach.high is not None and reach.high <= FEW_TOKENS
        if is_few and not ctx.target.batch_invariant:
            _few(node, ctx, guard)
        else:
            _many(node, ctx, reach, guard)


def _sizes(node: Node) -> tuple[int, int, int, int]:
    """(inputs and inner width of an expert, its outputs, choices)."""
    up, down, ids = (value.type for value in node.inputs[1:4])
    return int(up.shape[2]), int(down.shape[2]), int(down.shape[1]), int(ids.shape[1])


def _operands(node: Node, ctx: Lowering) -> dict[str, Operand]:
    x, up, down, ids, weights = node.inputs[:5]
    return {
        "x": ctx.memory(x),
        "up": ctx.weight(up, "row", "bf16"),
        "down": ctx.weight(down, "row", "bf16"),
        "ids": ctx.memory(ids),
        "weights": ctx.memory(weights),
    }


def _ending(node: Node, ctx: Lowering) -> dict[str, Operand | None]:
    """The weighted sum's operands."""
    op = node.op
    assert isinstance(op, ExpertMlp)
    residual = ctx.memory(node.inputs[5]) if op.has_residual else None
    return {"residual": residual, "y": ctx.memory(node.outputs[0])}


def _scratch(ctx: Lowering, name: str, dtype: str, count: Dim) -> Operand:
    """Memory for so many bf16 or i32, as f32 words."""
    size = sympy.sympify(count)
    words = as_dim((size + 1) // 2) if dtype == "*bf16" else as_dim(size)
    return replace(ctx.scratch(words, name), type=dtype)


def _times(*factors: Dim) -> Dim:
    return as_dim(sympy.prod(map(sympy.sympify, factors)))


def _even_step(k: int, most: int) -> int:
    """The largest power of two, up to ``most``, that divides K; a large one if that is small."""
    step = min(most, k & -k)
    return step if step >= 64 else min(most, next_power_of_two(k))


def _few(node: Node, ctx: Lowering, guard: Dim) -> None:
    op = node.op
    assert isinstance(op, ExpertMlp)
    k, inner, n, top_k = _sizes(node)
    tokens = node.inputs[0].type.shape[0]
    pairs = _times(tokens, top_k)
    given = _operands(node, ctx)
    between = _scratch(ctx, "inner", "*bf16", _times(pairs, inner))
    pdl, options = launch_options(ctx.target)
    rows, width, warps = FEW_UP
    constants = {
        "K": k, "N": inner, "TOP_K": top_k, "ACT": op.activation, "GATED": 1, "FROM": 0,
        "BLOCK_N": rows, "BLOCK_K": _even_step(k, width), **pdl,
    }  # fmt: skip
    arguments = {"x": given["x"], "w": given["up"], "ids": given["ids"], "y": between}
    grid = (_times(cdiv(inner, rows), guard), pairs, 1)
    how = {**options, "num_warps": warps}
    ctx.launch("grouped_linear.few", grid, arguments, constants, None, how)
    rows, width, warps = FEW_DOWN
    constants = {
        "K": inner, "N": n, "TOP_K": top_k, "BLOCK_J": next_power_of_two(top_k),
        "BLOCK_N": rows, "BLOCK_K": _even_step(inner, width), **pdl,
    }  # fmt: skip
    ending = {"x": between, "w": given["down"], **_ending(node, ctx)}
    ending |= {name: given[name] for name in ("ids", "weights")}
    grid = (_times(cdiv(n, rows), guard), tokens, 1)
    how = {**options, "num_warps": warps}
    ctx.launch("grouped_linear.few_combined", grid, ending, constants, None, how)


def most_tiles(pairs: Dim, experts: int, block_m: int) -> Dim:
    """Tiles of pairs, whatever experts they go to."""
    full = floordiv(pairs, block_m)
    return dim_min(pairs, as_dim(experts + sympy.sympify(full)))


def _many(node: Node, ctx: Lowering, reach: TokenRange, guard: Dim) -> None:
    op = node.op
    assert isinstance(op, ExpertMlp)
    k, inner, n, top_k = _sizes(node)
    experts, tokens = int(node.inputs[1].type.shape[0]), node.inputs[0].type.shape[0]
    tile = tile_for(ctx.target, reach.high)
    pairs = _times(tokens, top_k)
    most = most_tiles(pairs, experts, tile.block_m)
    given = _operands(node, ctx)
    order = _scratch(ctx, "order", "*i32", pairs)
    tiles = _scratch(ctx, "tiles", "*i32", _times(3, most))
    between = _scratch(ctx, "inner", "*bf16", _times(pairs, inner))
    apart = _scratch(ctx, "apart", "*bf16", _times(pairs, n))
    pdl, launch = launch_options(ctx.target)
    constants = {
        "EXPERTS": experts, "BLOCK_E": next_power_of_two(experts + 1), "BLOCK_M": tile.block_m,
        "CHUNK": SORT_CHUNK, **pdl,
    }  # fmt: skip
    sorting = {"ids": given["ids"], "order": order, "tiles": tiles}
    sorting |= {"pairs": i32(pairs), "most_tiles": i32(most)}
    grid = (_times(experts, guard), 1, 1)
    ctx.launch("route_experts.sort_pairs", grid, sorting, constants, None, launch)
    options = {**launch, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
    places = {"order": order, "tiles": tiles}
    shared = {"TOP_K": top_k, **tile.constants(), **pdl}
    first = {"K": k, "N": inner, "ACT": op.activation, "GATED": 1, "FROM": 0, "BY_PLACE": 1}
    columns = -(-inner // (tile.block_n // 2))
    arguments = {**places, "x": given["x"], "w": given["up"], "y": between}
    grid = (_times(most, columns, guard), 1, 1)
    ctx.launch("grouped_linear.linear", grid, arguments, {**shared, **first}, None, options)
    second = {"K": inner, "N": n, "ACT": "none", "GATED": 0, "FROM": 2, "BY_PLACE": 0}
    arguments = {**places, "x": between, "w": given["down"], "y": apart}
    grid = (_times(most, -(-n // tile.block_n), guard), 1, 1)
    ctx.launch("grouped_linear.linear", grid, arguments, {**shared, **second}, None, options)
    block = min(COMBINED_AT_ONCE, next_power_of_two(n))
    constants = {"N": n, "TOP_K": top_k, "BLOCK": block, **pdl}
    ending = {"z": apart, "weights": given["weights"], **_ending(node, ctx)}
    grid = (_times(-(-n // block), guard), tokens, 1)
    ctx.launch("grouped_linear.combine", grid, ending, constants, None, launch)


ROWS = (
    OperatorRow("moe_route", "triton-route", "triton", 20, accepts_route, emit_route),
    OperatorRow("expert_mlp", "triton-expert-mlp", "triton", 20, accepts_mlp, emit_mlp),
)
