"""Weights as CUDA's rows ask for them: row-major, in the dtype that the graph gives them."""

from __future__ import annotations

from ...errors import LoweringError
from ...ir.blocks import BlockArray
from ...ir.dtype import DType
from ...ir.op import Array
from ..packing import Packed
from ..packing import pack_weight as pack_shared


def pack_weight(name: str, array: Array, dtype: DType, layout: str) -> Packed:
    """``array`` as ``dtype``, rows one after the other; `LoweringError` for anything else."""
    if layout != "row" or isinstance(array, BlockArray):
        raise LoweringError(f"weight {name}: expected plain rows, got {dtype} in {layout!r}")
    return pack_shared(name, array, dtype, layout)
