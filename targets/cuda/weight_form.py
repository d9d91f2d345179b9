"""How products see a weight: bf16, or a group form in parts (`form_parts.py` has the layouts)."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.forms import GroupForm, form_named
from ...ir.graph import Value
from ..form_parts import SCALE, ZERO, Q, part_type
from ..kernel import POINTERS
from ..lowering import Lowering, Operand

BF16, E4M3 = "bf16", "e4m3"
WIDEST_STEP = 128
"""Columns of a step where each group has scales of its own."""


@dataclass(frozen=True)
class WeightForm:
    """What decides which kernels multiply by a weight, and how fast."""

    element: str = BF16
    """``bf16``, ``e4m3``, ``i8`` or ``i4``."""
    group: int = 0
    """Columns that share a scale; 0: whole rows."""

    @property
    def key(self) -> str:
        """Its name in tuning files.

        >>> WeightForm("i4", 128).key, WeightForm("e4m3").key
        ('i4_g128', 'e4m3')
        """
        return f"{self.element}_g{self.group}" if self.group else self.element

    @property
    def bytes_per_weight(self) -> float:
        """Scales of groups included, as f16."""
        return {BF16: 2.0, E4M3: 1.0, "i8": 1.0, "i4": 0.5}[self.element] + (
            2 / self.group if self.group else 0
        )

    @property
    def widest_step(self) -> int:
        """The most columns, a power of two, that never are of two groups.

        >>> WeightForm("i8", 96).widest_step, WeightForm("i8").widest_step
        (32, 128)
        """
        return min(self.group & -self.group, WIDEST_STEP) if self.group else WIDEST_STEP

    def kernel_form(self, x: str) -> str:
        """FORM of `kernels/weight_forms.py` where x is multiplied as that type."""
        if self.element == x:
            return "same"
        return "wide" if self.element == E4M3 else self.element


PLAIN = WeightForm()
"""bf16."""


def form_of_key(key: str) -> WeightForm:
    """The form of that name; a wrong one raises `ValueError`."""
    element, _, group = key.partition("_g")
    if element not in (BF16, E4M3, "i8", "i4"):
        raise ValueError(f"no weights of {key!r}")
    return WeightForm(element, int(group) if group else 0)


def form_of(weight: Value) -> WeightForm:
    """The form of a product's weight."""
    form = weight.type.dtype.form
    return PLAIN if form is None else WeightForm(form.element, form.group or 0)


def weight_operands(ctx: Lowering, weight: Value) -> dict[str, Operand | None]:
    """``w``, and of a group form its scales and zero points."""
    form = form_named(weight.type.dtype.name)
    if form is None:
        return {"w": ctx.weight(weight, "row", BF16)}
    return {
        "w": _part(ctx, weight, form, Q),
        "w_scale": _part(ctx, weight, form, SCALE),
        "w_zero": _part(ctx, weight, form, ZERO) if form.has_zeros else None,
    }


def _part(ctx: Lowering, weight: Value, form: GroupForm, layout: str) -> Operand:
    n, k = weight.type.concrete({})
    stored = part_type(form, (n, k), layout)
    assert stored[0] in POINTERS
    return ctx.weight(weight, layout, stored[0], stored=stored)
