"""What ``--dtype`` may be, the types that plain weights are stored in, and how close results are.

A type of few bits is for the weights of linears but the last; other matrices are bf16 then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import SglkError

if TYPE_CHECKING:
    from .dtype import DType
    from .target import Target

FORMS = {
    "fp8": "e4m3_row_f32",
    "fp8-block": "e4m3_g128_f32",
    "int8": "i8_row_f32",
    "int4": "i4_g32_f16_z",
}
"""Types of few bits and the forms (`ir.forms`) that they stand for."""

TOLERANCE = {"f32": 1e-3, "f16": 1e-2, "bf16": 1e-1, "int8": 1.5e-1, "fp8": 2.5e-1}
"""Largest relative L2 error of self-test logits by the type of cache, of activations or of what
products multiply; the reference has f32 in all, and weights as stored."""


def tolerance_of(weights: str, cache: str, activations: str) -> float:
    """The bound of the coarsest of these types.

    >>> tolerance_of("fp8-block", "bf16", "bf16"), tolerance_of("int4", "f16", "f32")
    (0.25, 0.01)
    """
    products = "fp8" if weights.startswith("fp8") else activations
    return max(TOLERANCE[cache], TOLERANCE[activations], TOLERANCE[products])


def weight_types(name: str, target: Target) -> tuple[DType, DType | None]:
    """(type of plain matrices, form of the weights of linears); refuses forms without a kernel."""
    from .dtype import BF16, F16, F32, dtype

    if name not in FORMS:
        return {"fp16": F16, "fp32": F32}.get(name, BF16), None
    form = dtype(FORMS[name])
    if not target.supports(form):
        known = ", ".join(each for each, form in FORMS.items() if target.supports(dtype(form)))
        raise SglkError(
            f"--dtype: expected one that {target.name}:{target.arch} multiplies by "
            f"({known or 'none of few bits'}), got {name} (--dtype bf16 always works)"
        )
    return BF16, form
