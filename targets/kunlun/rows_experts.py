"""Rows for mixtures of experts: the choice on the cores, products by expert on the matrix engines.

Each choice of each token is a product of its own: right for any batch, and made for few tokens. For
many the vendor's operators sort tokens by expert (see `vendor.py`); they wait for an adapter.
"""

from __future__ import annotations

from ...ir.dim import as_dim, prod
from ...ir.dtype import BF16, F16, F32, I32
from ...ir.graph import Node
from ...ir.ops.order import TopK
from ...ir.target import Target
from ..lowering import Lowering
from ..rows.generic import operand
from ..rows.order import emit_cumsum, emit_take_along
from ..rows.token import next_power_of_two
from ..table import OperatorRow
from .rows_cluster import LANES, row_block
from .rows_sdnn import NO_TILES, chip_of
from .tiling import Gemm, choose_gemm

FEW_ROWS = 16
"""Rows of a tile: the least that the engines multiply; one of them counts."""


def accepts_top_k(node: Node, target: Target) -> str:
    x = node.inputs[0]
    width, most = x.type.shape[-1], chip_of(target).sum_lanes
    if x.type.dtype != F32 or x.kind not in ("node", "input"):
        return f"expected computed rows of f32, got {x.kind} {x.type}"
    if not isinstance(width, int) or width > most:
        return f"expected rows of at most {most}, got {width}"
    return ""


def emit_top_k(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, TopK)
    x, (values, ids) = node.inputs[0], node.outputs
    width = int(x.type.shape[-1])
    arguments = {"x": ctx.memory(x), "values": ctx.memory(values), "ids": ctx.memory(ids)}
    constants = {"N": width, "TOP_K": node.op.k, "BLOCK": max(LANES, next_power_of_two(width))}
    ctx.launch("whole_experts.top_k", (prod(x.type.shape[:-1]), 1, 1), arguments, constants)


def accepts_experts(node: Node, target: Target) -> str:
    x, w, ids = (value.type for value in node.inputs)
    if not chip_of(target).has_sdnn_tiles:
        return NO_TILES
    if x.dtype != F32 or ids.dtype != I32 or w.dtype not in (F32, BF16, F16):
        return f"expected x of f32 and ids of i32, got {x}, {w} and {ids}"
    if not all(isinstance(d, int) for d in w.shape):
        return f"the weight has symbolic sizes {w}"
    _, n, k = w.concrete({})
    if k % 16 or n < 16:
        return f"expected K of a multiple of 16 and 16 outputs or more, got {w}"
    return ""


def emit_experts(node: Node, ctx: Lowering) -> None:
    x, w, ids = node.inputs
    _, n, k = w.type.concrete({})
    dtype = w.type.dtype
    gemm = Gemm(FEW_ROWS, k, n, dtype.name)
    tile = choose_gemm(chip_of(ctx.target), gemm, FEW_ROWS)
    arguments = {
        "x": ctx.memory(x),
        "w": ctx.weight(w, "row", dtype.name),
        "ids": ctx.memory(ids),
        "y": ctx.memory(node.outputs[0]),
    }
    constants = {"K": k, "N": n, "TOP_K": int(ids.type.shape[1]), "SHARED": x.type.rank == 2}
    constants |= {"HALF": dtype == F16, **tile.tile}
    grid = (as_dim(ids.type.size), -(-n // tile.tile["BLOCK_N"]), 1)
    ctx.launch("whole_experts.expert_linear", grid, arguments, constants, tile)


def accepts_sum_middle(node: Node, target: Target) -> str:
    """A sum over an axis before others: rows of what is inside, added one after another."""
    x = node.inputs[0].type
    axis: int = node.op.axis % x.rank  # type: ignore[attr-defined]
    sizes = x.shape[axis:]
    if x.dtype != F32 or axis == x.rank - 1 or not all(isinstance(d, int) for d in sizes):
        return f"expected f32 of known size from axis {axis} on, not the last one, got {x}"
    inner = inner_size(node)
    return f"expected rows of a multiple of {LANES}, got {inner}" if inner % LANES else ""


def inner_size(node: Node) -> int:
    x = node.inputs[0].type
    axis: int = node.op.axis % x.rank  # type: ignore[attr-defined]
    return int(prod(x.shape[axis + 1 :]))


def emit_sum_middle(node: Node, ctx: Lowering) -> None:
    x, inner = node.inputs[0], inner_size(node)
    axis: int = node.op.axis % x.type.rank  # type: ignore[attr-defined]
    outer = prod(x.type.shape[:axis])
    tile = row_block(ctx, inner, tiles=2)
    constants = {"N": int(x.type.shape[axis]), "INNER": inner, **tile.tile}
    arguments = {"x": operand(ctx, x), "y": ctx.memory(node.outputs[0])}
    grid = (outer, inner // tile.tile["BLOCK"], 1)
    ctx.launch("whole_experts.sum_middle", grid, arguments, constants, tile)


def accepts_pick(node: Node, target: Target) -> str:
    """Rows of scores, element by element: each is a slow access of its own, so they are short."""
    x, ids = node.inputs[0].type, node.inputs[1].type
    most = chip_of(target).sum_lanes
    if x.dtype not in (F32, I32) or ids.dtype != I32:
        return f"expected f32 or i32 and i32 indices, got {x} and {ids}"
    width = x.shape[-1]
    if not isinstance(width, int) or width > most:
        return f"expected rows of at most {most}, got {width}"
    return ""


def emit_put_along(node: Node, ctx: Lowering) -> None:
    x, ids, src = (operand(ctx, v) for v in node.inputs)
    arguments = {"x": x, "ids": ids, "src": src, "y": ctx.memory(node.outputs[0])}
    shape = node.inputs[0].type.shape
    constants = {"N": int(shape[-1]), "TOP_K": int(node.inputs[1].type.shape[-1])}
    ctx.launch("whole_experts.put_along", (prod(shape[:-1]), 1, 1), arguments, constants)


def accepts_running(node: Node, target: Target) -> str:
    x = node.inputs[0].type
    return "" if x.dtype in (F32, I32) else f"expected f32 or i32, got {x.dtype}"


ROWS = (
    OperatorRow("top_k", "cluster-top-k", "triton", 10, accepts_top_k, emit_top_k),
    OperatorRow("expert_linear", "sdnn-experts", "triton", 10, accepts_experts, emit_experts),
    OperatorRow("sum", "cluster-sum-middle", "triton", 9, accepts_sum_middle, emit_sum_middle),
    OperatorRow("take_along", "cluster-take-along", "triton", 10, accepts_pick, emit_take_along),
    OperatorRow("put_along", "cluster-put-along", "triton", 10, accepts_pick, emit_put_along),
    OperatorRow("cumsum", "cluster-cumsum", "triton", 10, accepts_running, emit_cumsum),
)
