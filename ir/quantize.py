"""Plain matrices rounded to a group form (`ir.forms`): scales from the values themselves.

A scale is the largest magnitude of its group over the largest element (448 for e4m3, 127 for i8, 7
for i4); with zero points, the width of the group's range, zero included, over that of the integers.

>>> made = quantize(np.float32([[1.0, -0.5] * 16]), "i8_row_f32")
>>> made.q[0, :2], made.dequantize()[0, 0]
(array([255,  64], dtype=uint8), np.float32(1.0))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import VerifyError
from .dtype import round_bf16
from .forms import GroupForm, form_named
from .groups import GroupArray

LARGEST = {"e4m3": 448.0, "i8": 127.0, "i4": 7.0}
"""Magnitude that a group's largest value becomes, where there are no zero points."""
_BIAS_SHIFT = (127 - 7) << 3
"""What the exponents of f32 and e4m3 differ by, above 3 bits of fraction."""
_SMALLEST_NORMAL, _QUANTUM = 2.0**-6, 2.0**-9
_LARGEST_BYTE = 0x7E
_ROWS_AT_ONCE = 1 << 22


def e4m3_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rounded to nearest, ties to even; beyond 448 the largest.

    >>> e4m3_bytes(np.float32([448, 1e9, -1, 2.0**-9, 0.0]))
    array([126, 126, 184,   1,   0], dtype=uint8)
    """
    size = np.abs(values)
    bits = size.view(np.uint32)
    normal = ((bits + np.uint32(0x7FFFF) + ((bits >> 20) & np.uint32(1))) >> 20).astype(np.int32)
    small = np.rint(np.minimum(size, 1.0) / np.float32(_QUANTUM)).astype(np.int32)
    code = np.where(size < _SMALLEST_NORMAL, small, normal - _BIAS_SHIFT)
    code = np.minimum(code, _LARGEST_BYTE)
    signed: NDArray[np.uint8] = (code | np.signbit(values).astype(np.int32) << 7).astype(np.uint8)
    return signed


def quantize(values: NDArray[np.float32], name: str) -> GroupArray:
    """Values [N, K] in the form of that name."""
    form = form_named(name)
    if form is None or values.ndim != 2:
        raise VerifyError(f"quantize: expected a form and a matrix, got {name} of {values.shape}")
    step = max(1, _ROWS_AT_ONCE // max(1, values.shape[1]))
    starts = range(0, max(1, values.shape[0]), step)
    parts = [_quantize(np.asarray(values[s : s + step], np.float32), form) for s in starts]
    whole = parts[0]
    if len(parts) > 1:
        stacked = whole._stacked(parts[1:])
        assert isinstance(stacked, GroupArray)
        whole = stacked
    return whole


def _quantize(values: NDArray[np.float32], form: GroupForm) -> GroupArray:
    rows, columns = values.shape
    width = form.group or columns
    padded = np.zeros((rows, form.groups(columns) * width), np.float32)
    padded[:, :columns] = values
    groups = padded.reshape(rows, -1, width)
    if form.has_zeros:
        low = np.minimum(groups.min(-1), 0)
        extent = (np.maximum(groups.max(-1), 0) - low) / ((1 << form.bits) - 1)
    else:
        low = None
        extent = np.abs(groups).max(-1) / np.float32(LARGEST[form.element])
    scale, real = _stored_scales(extent, form.scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(real[..., None] > 0, groups / real[..., None], np.float32(0))
    zero = None
    if form.is_float:
        q = e4m3_bytes(ratio.astype(np.float32))
    else:
        middle: NDArray[np.generic] | int = form.zero
        if low is not None:
            zero = np.where(real > 0, np.rint(-low / np.where(real > 0, real, 1)), 0)
            zero = np.clip(zero, 0, (1 << form.bits) - 1).astype(np.uint8)
            middle = zero[..., None].astype(np.int32)
        q = np.clip(np.rint(ratio) + middle, 0, (1 << form.bits) - 1).astype(np.uint8)
    kept = np.ascontiguousarray(q.reshape(rows, -1)[:, :columns])
    return GroupArray(form.name, (rows, columns), kept, scale, zero)


def _stored_scales(
    extent: NDArray[np.float32], kind: str
) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
    """(as stored, as f32); 0 where all values of a group are."""
    if kind == "f32":
        return extent.astype(np.float32), extent.astype(np.float32)
    if kind == "f16":
        half = extent.astype(np.float16)
        return half, half.astype(np.float32)
    rounded = round_bf16(extent)
    return (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16), rounded
