"""Group forms: matrices of few bits whose scales lie in tensors of their own.

What AWQ, GPTQ, compressed-tensors and FP8 checkpoints hold, by one scheme instead of a list: the
element, how many columns share a scale, the scale's type, and whether zero points are stored.

>>> form = form_named("i4_g128_f16_z")
>>> form.groups(256), form.row_bytes(256)
(2, 134)
>>> print(form_named("q4_0"), form_named("e4m3_row_f32").value_text)
None e4m3(q) * scale
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ELEMENT_BITS = {"i4": 4, "i8": 8, "e4m3": 8}
SCALE_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
SLICE = 32
"""K is a multiple of this many columns, and so is a group: what one step of a kernel multiplies."""
_NAME = re.compile(
    rf"({'|'.join(ELEMENT_BITS)})_(?:g([1-9][0-9]*)|row)_({'|'.join(SCALE_BYTES)})(_z)?"
)


@dataclass(frozen=True)
class GroupForm:
    """One form. ``value = (q - zero) * scale``, one rounding to f32."""

    element: str
    """``i4``, ``i8`` or ``e4m3`` (float8 e4m3fn)."""
    group: int | None
    """Columns that share a scale; None: the whole row."""
    scale: str
    """Type of the scales: ``f16``, ``bf16`` or ``f32``."""
    has_zeros: bool = False
    """Whether each scale has an integer zero point; else ``zero`` holds for all."""

    @property
    def name(self) -> str:
        """The dtype's name."""
        group = "row" if self.group is None else f"g{self.group}"
        return f"{self.element}_{group}_{self.scale}" + ("_z" if self.has_zeros else "")

    @property
    def bits(self) -> int:
        return ELEMENT_BITS[self.element]

    @property
    def is_float(self) -> bool:
        """Whether elements are small floats, which need no zero point."""
        return self.element == "e4m3"

    @property
    def zero(self) -> int:
        """What stored integers are counted from where no zero points are stored."""
        return 0 if self.is_float else 1 << (self.bits - 1)

    @property
    def value_text(self) -> str:
        """The formula, for people."""
        if self.is_float:
            return f"{self.element}(q) * scale"
        return f"(q - {'zero' if self.has_zeros else self.zero}) * scale"

    def groups(self, columns: int) -> int:
        """Scales of a row; the last group may be a part."""
        return 1 if self.group is None else -(-columns // self.group)

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row, its scales and zero points (a byte each) included."""
        per_group = SCALE_BYTES[self.scale] + self.has_zeros
        return columns * self.bits // 8 + self.groups(columns) * per_group

    @property
    def bits_per_weight(self) -> float:
        """Scales included; those of whole rows count as nothing."""
        shared = 8 * (SCALE_BYTES[self.scale] + self.has_zeros)
        return self.bits + (shared / self.group if self.group else 0)


def form_named(name: str) -> GroupForm | None:
    """The form of that name; None for every other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    element, group, scale, zeros = match.groups()
    form = GroupForm(element, int(group) if group else None, scale, zeros is not None)
    known = not (form.is_float and form.has_zeros) and (form.group or SLICE) % SLICE == 0
    return form if known else None
