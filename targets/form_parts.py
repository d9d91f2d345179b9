"""Weights of a group form (`ir.forms`) in parts, each a weight of the artifact of its own.

For targets whose kernels read elements and scales from different places. By layout:

    q      elements row by row: a byte each, or two of 4 bits (`pack_nibbles`)
    scale  [N] or [N, groups] in the form's own type; e4m3: f32
    zero   u8 like the scales, where the form stores zero points
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..errors import LoweringError
from ..ir.forms import GroupForm
from ..ir.groups import GroupArray

Q, SCALE, ZERO = "q", "scale", "zero"
LAYOUTS = (Q, SCALE, ZERO)


def part_of(name: str, array: GroupArray, layout: str) -> NDArray[np.generic]:
    """The numbers of one part."""
    row = array.form.group is None
    if layout == Q:
        return pack_nibbles(array.q) if array.form.bits == 4 else array.q
    if layout == SCALE:
        scales = array.scales() if array.form.is_float else array.scale
        return scales[:, 0] if row else scales
    if array.zero is None:
        raise LoweringError(f"weight {name}: expected zero points, got {array.dtype}")
    return array.zero[:, 0] if row else array.zero


def pack_nibbles(q: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[N, K / 2]: byte r of 16 for each 32 columns has column r below, column 16 + r above.

    >>> pack_nibbles(np.arange(32, dtype=np.uint8)[None] % 16)[0, :3].tolist()
    [0, 17, 34]
    """
    halves = q.reshape(len(q), -1, 2, 16)
    packed = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
    return np.asarray(packed, np.uint8).reshape(len(q), -1)


def part_type(form: GroupForm, shape: tuple[int, int], layout: str) -> tuple[str, tuple[int, ...]]:
    """(dtype, shape) of a part in memory.

    >>> from ..ir.forms import form_named
    >>> part_type(form_named("i4_g128_f16_z"), (64, 256), "q")
    ('u8', (64, 128))
    """
    rows, columns = shape
    if layout == Q:
        return "e4m3" if form.is_float else "u8", (rows, columns * form.bits // 8)
    groups = (rows,) if form.group is None else (rows, form.groups(columns))
    if layout == ZERO:
        return "u8", groups
    return "f32" if form.is_float else form.scale, groups


def part_dtypes(forms: Iterable[GroupForm | None]) -> set[str]:
    """Dtypes of all parts of weights in these forms.

    >>> from ..ir.forms import form_named
    >>> sorted(part_dtypes([form_named("e4m3_row_f32"), form_named("i4_g128_f16"), None]))
    ['e4m3', 'f16', 'f32', 'u8']
    """
    known = {form for form in forms if form is not None}
    return {part_type(form, (1, 1), layout)[0] for form in known for layout in (Q, SCALE)}
