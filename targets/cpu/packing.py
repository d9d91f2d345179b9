"""Weights in the layouts that the CPU's rows ask for. One weight is in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import LoweringError
from ...ir.blocks import BlockArray
from ...ir.dtype import BF16, DType, round_bf16
from ...ir.op import Array
from ..kernels.packing import BLOCK_TYPES, pack_blocks, pack_dense, sections
from .rows_linear import BLOCK_LAYOUT, DENSE_LAYOUT
from .rows_native import TILE_LAYOUT
from .tiles import pack_dense_tiles, pack_tiles


@dataclass(frozen=True)
class Packed:
    """Bytes of one weight; ``sections`` maps a plane's name to its offset and length."""

    data: np.ndarray
    sections: dict[str, tuple[int, int]]


def pack_weight(name: str, array: Array, dtype: DType, layout: str) -> Packed:
    """``array`` (f32 values or blocks) as ``dtype`` in ``layout``, or `LoweringError`."""
    if isinstance(array, BlockArray) and layout in (BLOCK_LAYOUT, TILE_LAYOUT):
        return _pack_blocks(name, array, dtype, layout)
    if isinstance(array, BlockArray):
        raise LoweringError(f"weight {name}: layout {layout} holds no blocks, got {array.dtype}")
    plain = to_storage(np.asarray(array), dtype)
    if layout == DENSE_LAYOUT:
        plain = pack_dense(plain)
    elif layout == TILE_LAYOUT:
        plain = pack_dense_tiles(plain)
    elif layout != "row":
        raise LoweringError(f"weight {name}: no layout {layout!r} on the CPU")
    data = np.ascontiguousarray(plain).reshape(-1).view(np.uint8)
    return Packed(data, {"w": (0, data.size)})


def to_storage(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Values in the dtype's own bytes; bf16 as uint16."""
    if dtype == BF16:
        bits = round_bf16(array.astype(np.float32)).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16)
    return array.astype(dtype.numpy)


def _pack_blocks(name: str, array: BlockArray, dtype: DType, layout: str) -> Packed:
    if array.dtype != dtype.name:
        raise LoweringError(f"weight {name}: expected blocks of {dtype}, got {array.dtype}")
    block = BLOCK_TYPES[dtype.name]
    if layout == TILE_LAYOUT:
        tiles = pack_tiles(block, array.raw)
        return Packed(tiles, {"w": (0, tiles.size)})
    parts = sections(block, *array.shape)
    data = pack_blocks(block, array.raw)
    return Packed(data, {part: (s.offset, s.bytes) for part, s in parts.items()})
