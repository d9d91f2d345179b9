"""compressed-tensors (`quant_method: compressed-tensors`), as llm-compressor writes it.

``pack-quantized``: ``weight_packed`` i32 [N, K * bits / 32], integers along K from the lowest bits
up, signed values plus 2^(bits - 1); ``weight_scale`` [N, groups]; ``weight_shape`` i64 [N, K]; if
asymmetric ``weight_zero_point``, packed along N, i32 [N * bits / 32, groups], or i8 [N, groups];
perhaps ``weight_g_idx`` [K], as GPTQ's. ``int-quantized`` and ``float-quantized``: see `scaled.py`.
value = (q - zero point) * scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.forms import GroupForm
from ...ir.groups import GroupArray
from . import scaled
from .layers import (
    Found,
    Layer,
    LayerError,
    Settings,
    Stored,
    check_matrix,
    group_size,
    need,
    prefixes,
    scale_type,
    sorted_columns,
)
from .words import unpack, width

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense")


def find(stored: Stored, settings: Settings) -> Found:
    """Every packed layer, and every i8 or e4m3 tensor with scales."""
    if fault := _fault(settings):
        return Found(faults=[fault])
    found = scaled.find(stored, settings, ("e4m3", "i8"))
    for prefix in prefixes(stored.names(), ".weight_packed"):
        try:
            found.layers[f"{prefix}.weight"] = _packed(stored, set(stored.names()), prefix)
        except LayerError as fault:
            found.faults.append(f"{prefix} {fault}")
    return found


def _fault(settings: Settings) -> str:
    """Why no layer can be read, or ""."""
    unknown = sorted(_formats(settings) - set(FORMATS) - {"mixed-precision"})
    if unknown:
        return f"format {', '.join(unknown)} ({', '.join(FORMATS)} are)"
    sparse = (settings.get("sparsity_config") or {}).get("format") or "dense"
    if sparse != "dense":
        return f"sparsity format {sparse} (dense is)"
    if (settings.get("transform_config") or {}).get("config_groups"):
        return "a transform_config, rotations while the model runs (none are)"
    return ""


def _formats(settings: Settings) -> set[str]:
    groups = (settings.get("config_groups") or {}).values()
    stated = [settings.get("format"), *(group.get("format") for group in groups)]
    return {str(name) for name in stated if name}


def _packed(stored: Stored, names: set[str], prefix: str) -> Layer:
    packed, scales, shape_name = (
        f"{prefix}.weight_{part}" for part in ("packed", "scale", "shape")
    )
    need(stored, list(names), packed, scales, shape_name)
    sizes = stored.stored(shape_name).reshape(-1)
    shape = check_matrix(tuple(int(size) for size in sizes))
    bits = _bits(stored.info(packed).shape, shape)
    scale_shape = stored.info(scales).shape
    groups = scale_shape[1] if len(scale_shape) == 2 else 1
    index, point = f"{prefix}.weight_g_idx", f"{prefix}.weight_zero_point"
    group = group_size(shape[1], groups, None)
    columns = sorted_columns(stored.stored(index), group) if index in names else None
    zero = _zeros(stored, point, bits, (shape[0], groups)) if point in names else None
    form = GroupForm(f"i{bits}", group, scale_type(stored, scales), zero is not None)

    def read() -> GroupArray:
        q = unpack(stored.stored(packed), bits)
        if columns is not None:
            q = q[:, columns]
        scale = np.broadcast_to(stored.stored(scales).reshape(-1, groups), (shape[0], groups))
        return GroupArray(form.name, shape, q, scale.copy(), zero)

    extra = [name for name in (index, point) if name in names]
    return Layer(form, shape, (packed, scales, shape_name, *extra), read, columns)


def _bits(packed: tuple[int, ...], shape: tuple[int, int]) -> int:
    for bits in (4, 8):
        if packed == (shape[0], shape[1] // (32 // bits)) and width(packed[1], bits) == shape[1]:
            return bits
    raise LayerError(f"of {list(shape)} has {list(packed)} words (4 and 8 bits are read)")


def _zeros(stored: Stored, name: str, bits: int, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """[N, groups] in the domain of the packed integers."""
    raw: NDArray[Any] = stored.stored(name)
    if stored.info(name).dtype == "i32":
        unpacked = unpack(raw.T, bits).T[: shape[0]]
    else:
        unpacked = (raw.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    if unpacked.shape != shape:
        raise LayerError(f"has zero points of {list(raw.shape)}")
    return unpacked.copy()
