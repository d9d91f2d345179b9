"""Weights in group forms, from [N, K] to the layout that `group_linear.py` reads (NumPy only).

As for blocks (`packing.py`): columns of 64 outputs, N padded with zeros, a section for each plane.

    >>> from ...ir.groups import random_groups
    >>> array = random_groups("i4_g64_f16_z", (70, 128), np.random.default_rng(0))
    >>> for name, part in group_sections(array.form, 70, 128).items():
    ...     print(name, part.offset, part.dtype, part.shape)
    q 0 u8 (2, 4, 16, 64)
    d 8192 f16 (2, 2, 64)
    z 8704 u8 (2, 2, 64)
    >>> pack_groups(array).size
    8960
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.forms import SCALE_BYTES, SLICE, GroupForm
from ...ir.groups import GroupArray
from .packing import ALIGN, LANES, Section

Array = NDArray[Any]


def form_constants(form: GroupForm, k: int) -> dict[str, object]:
    """The constexprs that tell the kernels of `group_linear.py` this form; row scales have K."""
    return {
        "BITS": form.bits,
        "GROUP": form.group or k,
        "ZERO": form.zero,
        "E4M3": form.is_float,
    }


def group_sections(form: GroupForm, n: int, k: int) -> dict[str, Section]:
    """Where each plane lies in the packed blob of a weight [n, k]."""
    blocks = -(-n // LANES)
    deep = SLICE * form.bits // 8
    groups = (blocks, form.groups(k), LANES)
    planes = [("q", "u8", 1, (blocks, k // SLICE, deep, LANES))]
    planes.append(("d", form.scale, SCALE_BYTES[form.scale], groups))
    if form.has_zeros:
        planes.append(("z", "u8", 1, groups))
    out: dict[str, Section] = {}
    offset = 0
    for name, dtype, size, shape in planes:
        out[name] = Section(offset, prod(shape) * size, dtype, shape)
        offset += -(-prod(shape) * size // ALIGN) * ALIGN
    return out


def pack_groups(array: GroupArray) -> NDArray[np.uint8]:
    """One blob of the sections; exact."""
    n, k = array.shape
    parts = group_sections(array.form, n, k)
    last = list(parts.values())[-1]
    blob = np.zeros(last.offset + -(-last.bytes // ALIGN) * ALIGN, np.uint8)
    fields: dict[str, Array] = {"d": array.scale}
    if array.zero is not None:
        fields["z"] = array.zero
    for name, part in parts.items():
        plane = blob[part.offset : part.offset + part.bytes]
        if name == "q":
            _fill_integers(plane.reshape(part.shape), array.q, array.form.bits)
        else:
            _fill(plane.view(fields[name].dtype).reshape(part.shape), fields[name])
    return blob


def _fill_integers(plane: Array, q: Array, bits: int) -> None:
    """A column block at a time keeps the scratch small."""
    for column in range(len(plane)):
        rows = q[column * LANES : (column + 1) * LANES]
        deep = rows.reshape(len(rows), -1, SLICE)
        if bits == 4:
            deep = deep[..., :16] | deep[..., 16:] << 4
        plane[column, ..., : len(rows)] = np.moveaxis(deep, 0, -1)


def _fill(plane: Array, values: Array) -> None:
    for column in range(len(plane)):
        rows = values[column * LANES : (column + 1) * LANES]
        plane[column, ..., : len(rows)] = rows.T
