"""Weights as checkpoints store them, with room after small ones for the last block of a copy."""

from __future__ import annotations

import numpy as np

from ...errors import LoweringError
from ...ir.blocks import BlockArray
from ...ir.dtype import DType
from ...ir.op import Array
from ..packing import Packed, to_storage
from .buffers import SLACK

SMALL = 1 << 20
"""Bytes up to which a weight gets `SLACK`: tiles of bigger ones end where they do."""


def pack_weight(name: str, array: Array, dtype: DType, layout: str) -> Packed:
    """Row-major values; products and gathers read whole rows. ``row16`` has 16 rows at least."""
    if layout not in ("row", "row16") or isinstance(array, BlockArray):
        raise LoweringError(f"weight {name}: no layout {layout!r} for {dtype} on Kunlun")
    plain = np.ascontiguousarray(to_storage(np.asarray(array), dtype))
    if layout == "row16" and len(plain) < 16:
        plain = np.concatenate([plain, np.zeros((16 - len(plain), *plain.shape[1:]), plain.dtype)])
    data = plain.reshape(-1).view(np.uint8)
    size = data.size
    if size <= SMALL:
        data = np.concatenate([data, np.zeros(SLACK, np.uint8)])
    return Packed(data, {"w": (0, size)})
