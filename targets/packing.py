"""Weights in the layouts that the rows of ``rows/`` ask for. One weight is in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import LoweringError
from ..ir.blocks import BlockArray
from ..ir.dtype import BF16, DType, round_bf16
from ..ir.groups import GroupArray
from ..ir.op import Array
from ..ir.quantized import Quantized
from .kernels.group_packing import group_sections, pack_groups
from .kernels.packing import BLOCK_TYPES, LANES, pack_blocks, pack_dense, sections
from .rows.linear import BLOCK_LAYOUT, DENSE_LAYOUT

ROW_GRANULES = {"row": 1, DENSE_LAYOUT: LANES}
"""Rows that a dense matrix is padded to a multiple of, by layout."""


@dataclass(frozen=True)
class Packed:
    """Bytes of one weight; ``sections`` maps a plane's name to its offset and length."""

    data: np.ndarray
    sections: dict[str, tuple[int, int]]


def pack_weight(name: str, array: Array, dtype: DType, layout: str) -> Packed:
    """``array`` (f32 values or blocks) as ``dtype`` in ``layout``, or `LoweringError`."""
    if isinstance(array, Quantized):
        return _pack_blocks(name, array, dtype, layout)
    plain = to_storage(np.asarray(array), dtype)
    if layout == DENSE_LAYOUT:
        plain = np.stack([pack_dense(w) for w in plain]) if plain.ndim == 3 else pack_dense(plain)
    elif layout != "row":
        raise LoweringError(f"weight {name}: no layout {layout!r}")
    return plain_bytes(plain)


def plain_bytes(array: np.ndarray) -> Packed:
    """An array's bytes as the one section ``w``."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Packed(data, {"w": (0, data.size)})


def to_storage(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Values in the dtype's own bytes; bf16 as uint16."""
    if dtype == BF16:
        bits = round_bf16(array.astype(np.float32)).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16)
    return array.astype(dtype.numpy)


def check_blocks(name: str, array: Quantized, dtype: DType) -> None:
    """Quantized weights travel as they are stored: another type is refused."""
    if array.dtype != dtype.name:
        raise LoweringError(f"weight {name}: expected blocks of {dtype}, got {array.dtype}")


def _pack_blocks(name: str, array: Quantized, dtype: DType, layout: str) -> Packed:
    if layout != BLOCK_LAYOUT:
        raise LoweringError(f"weight {name}: layout {layout} holds no blocks, got {array.dtype}")
    check_blocks(name, array, dtype)
    if isinstance(array, GroupArray):
        parts, data = group_sections(array.form, *array.shape), pack_groups(array)
    elif isinstance(array, BlockArray):
        block = BLOCK_TYPES[dtype.name]
        parts, data = sections(block, *array.shape), pack_blocks(block, array.raw)
    else:
        raise LoweringError(f"weight {name}: no packing of {type(array).__name__}")
    return Packed(data, {part: (s.offset, s.bytes) for part, s in parts.items()})
