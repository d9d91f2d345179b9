"""Weights as CUDA's rows ask for them: row-major, in the dtype that the graph gives them; those of
group forms in parts (`form_parts.py`)."""

from __future__ import annotations

from ...errors import LoweringError
from ...ir.dtype import DType
from ...ir.groups import GroupArray
from ...ir.op import Array
from ...ir.quantized import Quantized
from ..form_parts import LAYOUTS, part_of
from ..packing import Packed, check_blocks, plain_bytes
from ..packing import pack_weight as pack_shared


def pack_weight(name: str, array: Array, dtype: DType, layout: str) -> Packed:
    """``array`` as ``dtype``, rows one after the other; `LoweringError` for anything else."""
    if isinstance(array, GroupArray) and layout in LAYOUTS:
        check_blocks(name, array, dtype)
        return plain_bytes(part_of(name, array, layout))
    if layout != "row" or isinstance(array, Quantized):
        raise LoweringError(f"weight {name}: expected plain rows, got {dtype} in {layout!r}")
    return pack_shared(name, array, dtype, layout)
