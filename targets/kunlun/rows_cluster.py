"""Rows that run on the cores of the clusters: gathers, norms, rotary embedding, cache writes.

Blocks are sized by the cores' local memory and divide their rows, so no lane is masked. Elementwise
work and data movement are the rows that all chips share, with what needs masks refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...ir.dim import as_dim, cdiv
from ...ir.dtype import BF16, F16, F32
from ...ir.graph import Node, Value
from ...ir.ops.attention import RopeWriteKv
from ...ir.ops.rope import Rope
from ...ir.target import Target
from ...passes.choose_tiles import TileChoice
from ..lowering import Lowering, Operand, i32
from ..rows import generic
from ..rows.cache import accepts_kv, rope_write_kv_operands, write_kv_operands
from ..rows.linear import row_count
from ..rows.token import (
    add_rmsnorm_operands,
    layernorm_operands,
    next_power_of_two,
    rmsnorm_operands,
    rope_operands,
    rope_table_operands,
    width,
)
from ..table import OperatorRow, always
from .rows_sdnn import chip_of
from .tiling import choose_row_block

NOMINAL_ROWS = 512
"""What blocks of rows are chosen for: one block for every bucket, as it orders a sum."""
LANES = 64
"""A tile has more than 32 lanes: the vendor's Triton gets the tail of shorter ones wrong."""
TABLE_ROWS = 16
"""Positions of one program of the rope table."""


def chunk(size: int) -> int:
    """The largest power of two that divides a size.

    >>> chunk(96), chunk(64)
    (32, 64)
    """
    return size & -size


def row_block(ctx: Lowering, size: int, tiles: int = 3) -> TileChoice:
    return choose_row_block(chip_of(ctx.target), size, NOMINAL_ROWS, tiles)


def accepts_row(node: Node, target: Target) -> str:
    """Rows whose last dim has a power of two of 16 or more in it."""
    size = node.inputs[0].type.shape[-1]
    if not isinstance(size, int) or chunk(size) < 16:
        return f"expected a last dim of a multiple of 16, got {size}: blocks may not be masked"
    return ""


# Gathers --------------------------------------------------------------------------------------


def accepts_table(node: Node, target: Target) -> str:
    table = node.inputs[0].type
    if table.dtype not in (F32, BF16, F16):
        return f"no kernel for {table.dtype}"
    return accepts_row(node, target)


def emit_embedding(node: Node, ctx: Lowering) -> None:
    """The table as checkpoints store it: a tied head reads the same memory."""
    table, ids = node.inputs
    _gather(ctx, ctx.weight(table, "row", table.type.dtype.name), ids, node.outputs[0])


def emit_gather_rows(node: Node, ctx: Lowering) -> None:
    x, rows = node.inputs
    _gather(ctx, ctx.memory(x), rows, node.outputs[0])


def _gather(ctx: Lowering, table: Operand, ids: Value, y: Value) -> None:
    """``scale`` is a constant: fp16 times fp32 would be evaluated in fp16."""
    k = int(as_dim(y.type.size / ids.type.size))
    tile = row_block(ctx, k)
    arguments = {"table": table, "ids": ctx.memory(ids), "y": ctx.memory(y)}
    constants = {"K": k, "scale": 1.0, **tile.tile}
    ctx.launch("embedding.gather_rows", (ids.type.size, 1, 1), arguments, constants, tile)


# Norms ----------------------------------------------------------------------------------------


def emit_rmsnorm(node: Node, ctx: Lowering) -> None:
    _norm(node, ctx, rmsnorm_operands(node, ctx), {"OFFSET": 0.0})


def emit_add_rmsnorm(node: Node, ctx: Lowering) -> None:
    _norm(node, ctx, add_rmsnorm_operands(node, ctx), {"OFFSET": 0.0})


def emit_layernorm(node: Node, ctx: Lowering) -> None:
    _norm(node, ctx, layernorm_operands(node, ctx), {})


def _norm(
    node: Node, ctx: Lowering, arguments: dict[str, Operand], constants: dict[str, object]
) -> None:
    x = node.inputs[0]
    hidden = width(x)
    tile = row_block(ctx, hidden, tiles=4)
    sizes = {"HIDDEN": hidden, **constants, **tile.tile}
    ctx.launch(f"norm.{node.op.name}", (row_count(x), 1, 1), arguments, sizes, tile)


# Rotary embedding and the cache ---------------------------------------------------------------


def head_blocks(heads: int, dims: int, normed: bool = False) -> int:
    """Heads of a tile: at most what there are, but enough for `LANES` lanes; a norm has one lane
    for each head.
    """
    return max(1 << (heads.bit_length() - 1), LANES if normed else -(-LANES // dims))


def emit_rope_table(node: Node, ctx: Lowering) -> None:
    positions, inv_freq = node.inputs
    half = width(inv_freq)
    arguments = {**rope_table_operands(node, ctx), "count": i32(positions.type.size)}
    rows = max(TABLE_ROWS, LANES // chunk(half))
    constants = {"HALF": half, "BLOCK_T": rows, "BLOCK_C": chunk(half)}
    grid = (cdiv(positions.type.size, rows), 1, 1)
    ctx.launch("row_cache.rope_table", grid, arguments, constants)


def rotation(half: int, head_dim: int, heads: int, interleaved: bool) -> dict[str, object]:
    """The constants of `rotate_heads`."""
    return {
        "HEADS": heads,
        "D": head_dim,
        "HALF": half,
        "INTERLEAVED": interleaved,
        "BLOCK_H": head_blocks(heads, chunk(half)),
        "BLOCK_C": chunk(half),
        "BLOCK_R": chunk(head_dim - 2 * half) or 1,
    }


def emit_rope(node: Node, ctx: Lowering) -> None:
    assert isinstance(node.op, Rope)
    x, cos, _ = node.inputs
    tokens, heads, head_dim = x.type.shape
    arguments = rope_operands(node, ctx)
    constants = rotation(width(cos), int(head_dim), int(heads), node.op.interleaved)
    ctx.launch("row_cache.rope", (tokens, 1, 1), arguments, constants)


def accepts_rope_write(node: Node, target: Target) -> str:
    assert isinstance(node.op, RopeWriteKv)
    head_dim = int(node.inputs[3].type.shape[4])
    if node.op.eps is not None and chunk(head_dim) < 8:
        return f"norms of heads need a head_dim of a multiple of 8, got {head_dim}"
    return accepts_kv(node, target)


def emit_rope_write_kv(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, RopeWriteKv)
    _, cos, _, state, slots, *norms = node.inputs
    kv_heads, head_dim = (int(d) for d in state.type.shape[3:])
    arguments = rope_write_kv_operands(node, ctx)
    half = width(cos)
    constants = {
        **rotation(half, head_dim, op.heads, op.interleaved),
        "KV_HEADS": kv_heads,
        "PAGE": ctx.target.page_size,
        "BLOCK_H": head_blocks(op.heads, chunk(half), bool(norms)),
        "BLOCK_KVH": head_blocks(kv_heads, chunk(half), bool(norms)),
        "BLOCK_V": chunk(head_dim),
    }
    ctx.launch("row_cache.rope_write_kv", (slots.type.size, 1, 1), arguments, constants)


def emit_write_kv(node: Node, ctx: Lowering) -> None:
    state, _, _, slots = node.inputs
    kv_heads, head_dim = (int(d) for d in state.type.shape[3:])
    arguments = write_kv_operands(node, ctx)
    constants = {
        "KV_HEADS": kv_heads,
        "D": head_dim,
        "PAGE": ctx.target.page_size,
        "BLOCK_KVH": next_power_of_two(kv_heads),
        "BLOCK_V": chunk(head_dim),
    }
    ctx.launch("row_cache.write_kv", (slots.type.size, 1, 1), arguments, constants)


# What all chips share -------------------------------------------------------------------------

SUMS = ("sum", "mean", "max", "argmax", "softmax")


def computed(accepts: Callable[[Node, Target], str]) -> Callable[[Node, Target], str]:
    """A reduction's predicate: a row's last block reads on, so only rows that blocks divide may
    come from a weight, which has no room behind it.
    """

    def check(node: Node, target: Target) -> str:
        x = node.inputs[0]
        size = x.type.shape[-1]
        if x.kind not in ("node", "input") and (not isinstance(size, int) or size % generic.BLOCK):
            return f"expected computed rows or a multiple of {generic.BLOCK}, got {x.kind} {x.type}"
        return accepts(node, target)

    return check


def emit_nothing(node: Node, ctx: Lowering) -> None:
    """A view: the result shares its operand's memory."""


ROWS = (
    OperatorRow("embedding", "cluster-gather", "triton", 10, accepts_table, emit_embedding),
    OperatorRow("gather_rows", "cluster-gather-rows", "triton", 10, accepts_row, emit_gather_rows),
    OperatorRow("rmsnorm", "cluster-rmsnorm", "triton", 10, accepts_row, emit_rmsnorm),
    OperatorRow("add_rmsnorm", "cluster-add-rmsnorm", "triton", 10, accepts_row, emit_add_rmsnorm),
    OperatorRow("layernorm", "cluster-layernorm", "triton", 10, accepts_row, emit_layernorm),
    OperatorRow(
        "rope_table", "cluster-rope-table", "triton", 10, always, emit_rope_table
    ),
    OperatorRow("rope", "cluster-rope", "triton", 10, always, emit_rope),
    OperatorRow(
        "rope_write_kv", "cluster-rope-write-kv", "triton", 10, accepts_rope_write,
        emit_rope_write_kv,
    ),
    OperatorRow("write_kv", "cluster-write-kv", "triton", 10, accepts_kv, emit_write_kv),
    OperatorRow("reshape", "view", "view", 10, always, emit_nothing),
    *(
        replace(row, accepts=computed(row.accepts)) if row.op in SUMS else row
        for row in generic.ROWS
    ),
)  # fmt: skip
