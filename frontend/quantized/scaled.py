"""Weights that keep their name and shape, with a tensor of scales beside them.

FP8 checkpoints (`quant_method: fp8`, ``fbgemm_fp8``, ``modelopt``) and compressed-tensors of the
formats ``float-quantized`` and ``int-quantized``: ``weight`` e4m3 or i8 [N, K] and ``weight_scale``
or ``weight_scale_inv``, one for the tensor, for each output, for each group of inputs, or for each
block of outputs and inputs (DeepSeek: 128 x 128); for integers perhaps ``weight_zero_point`` i8.
value = (weight - zero point) * scale, whatever the name says.

A scale of a block is repeated for each of its outputs, that of a tensor for all: rows then stay
whole when products are stacked. Scales of type e8m0, powers of two, become bf16, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.forms import SLICE, GroupForm
from ...ir.groups import GroupArray
from .layers import Found, Layer, LayerError, Settings, Stored, check_matrix, scale_type

_SCALES = ("_scale_inv", "_scale")
_NAN = "holds NaN (the checkpoint is damaged)"


def find(stored: Stored, settings: Settings, elements: tuple[str, ...] = ("e4m3",)) -> Found:
    """Every tensor of these elements, which must have scales; another of 8 bits is a fault, since
    FP8 checkpoints hold pairs of 4-bit floats in i8."""
    found, names = Found(), set(stored.names())
    block = _block(settings)
    for name in stored.names():
        dtype = stored.info(name).dtype
        if dtype in ("e5m2", "e4m3", "i8") and not name.endswith(("_zero_point", *_SCALES)):
            try:
                if dtype not in elements:
                    raise LayerError(f"is {dtype} ({' and '.join(elements)} are read)")
                found.layers[name] = _layer(stored, names, name, block)
            except LayerError as fault:
                found.faults.append(f"{name} {fault}")
    return found


def _block(settings: Settings) -> tuple[int, int] | None:
    """Outputs and inputs of a block, where the settings say so."""
    groups = settings.get("config_groups") or {}
    stated = [g.get("weights", {}).get("block_structure") for g in groups.values()]
    for size in (settings.get("weight_block_size"), *stated):
        if isinstance(size, list | tuple) and len(size) == 2:
            return int(size[0]), int(size[1])
    return None


def _layer(stored: Stored, names: set[str], name: str, block: tuple[int, int] | None) -> Layer:
    info = stored.info(name)
    shape = check_matrix(info.shape)
    scale = next((name + end for end in _SCALES if name + end in names), None)
    if scale is None:
        raise LayerError("has no scales")
    rows, group = _layout(stored.info(scale).shape, shape, block)
    point = f"{name}_zero_point"
    has_zeros = info.dtype == "i8" and point in names and bool(stored.stored(point).any())
    kind = "bf16" if stored.info(scale).dtype == "e8m0" else scale_type(stored, scale)
    form = GroupForm(info.dtype, group, kind, has_zeros)
    groups = form.groups(shape[1])

    def per_row(tensor: NDArray[Any]) -> NDArray[Any]:
        grid = np.broadcast_to(tensor.reshape(-1, groups), (-(-shape[0] // rows), groups))
        return np.repeat(grid, rows, axis=0)[: shape[0]].copy()

    def read() -> GroupArray:
        q = _numbers(stored, name, info.dtype)
        zero = per_row(_offset(stored.stored(point))) if has_zeros else None
        return GroupArray(form.name, shape, q, per_row(_scales(stored, name, scale)), zero)

    return Layer(form, shape, (name, scale, *([point] if point in names else [])), read)


def _layout(
    scales: tuple[int, ...], shape: tuple[int, int], block: tuple[int, int] | None
) -> tuple[int, int | None]:
    """Outputs that share a scale, and inputs (None: all)."""
    n, k = shape
    if not scales or scales in ((1,), (1, 1)):
        return n, None
    if scales in ((n,), (n, 1)):
        return 1, None
    if block and scales == (-(-n // block[0]), -(-k // block[1])):
        rows, group = block
    elif len(scales) == 2 and scales[0] == n and k % scales[1] == 0:
        rows, group = 1, k // scales[1]
    else:
        raise LayerError(f"of {list(shape)} has scales of {list(scales)}")
    if group % SLICE:
        raise LayerError(f"has groups of {group} inputs (multiples of {SLICE} are read)")
    return rows, None if group >= k else group


def _numbers(stored: Stored, name: str, dtype: str) -> NDArray[np.uint8]:
    """As `GroupArray` holds them: integers counted from -128."""
    raw = stored.stored(name)
    if dtype == "i8":
        return _offset(raw)
    bits: NDArray[np.uint8] = raw.view(np.uint8)
    if (bits & 127 == 127).any():
        raise LayerError(f"{name} {_NAN}")
    return bits


def _offset(signed: NDArray[Any]) -> NDArray[np.uint8]:
    return (signed.astype(np.int8, copy=False).view(np.uint8)) ^ np.uint8(128)


def _scales(stored: Stored, weight: str, name: str) -> NDArray[Any]:
    raw = stored.stored(name)
    if stored.info(name).dtype != "e8m0":
        return raw
    exponents = raw.view(np.uint8)
    if (exponents == 255).any():
        raise LayerError(f"{weight}: its scale {_NAN}")
    wide = exponents.astype(np.uint16) << 7  # 2^(e - 127): the exponent of bf16 has the same bias
    return np.where(exponents == 0, np.uint16(0x40), wide)


def unused(names: Sequence[str]) -> set[str]:
    """Scales of activations and of the KV cache."""
    ends = ("input_scale", "output_scale", "k_scale", "v_scale", "q_scale", "activation_scale")
    more = ("input_zero_point", "output_zero_point", "input_global_scale")
    return {name for name in names if name.rpartition(".")[2] in (*ends, *more)}
