"""Weights in tiles, the layout of the CPU's own rows; every other layout is shared."""

from __future__ import annotations

import numpy as np

from ...ir.blocks import BlockArray
from ...ir.dtype import DType
from ...ir.op import Array
from .. import packing
from ..kernels.packing import BLOCK_TYPES
from ..packing import Packed
from .rows_native import TILE_LAYOUT
from .tiles import pack_dense_tiles, pack_tiles


def pack_weight(name: str, array: Array, dtype: DType, layout: str) -> Packed:
    """``array`` (f32 values or blocks) as ``dtype`` in ``layout``, or `LoweringError`."""
    if layout != TILE_LAYOUT:
        return packing.pack_weight(name, array, dtype, layout)
    if not isinstance(array, BlockArray):
        plain = packing.to_storage(np.asarray(array), dtype)
        return packing.plain_bytes(pack_dense_tiles(plain))
    packing.check_blocks(name, array, dtype)
    tiles = pack_tiles(BLOCK_TYPES[dtype.name], array.raw)
    return Packed(tiles, {"w": (0, tiles.size)})
