"""How a tt.dot of bf16 by bf16 in f32 is computed: four forms with the same bits."""

from __future__ import annotations

import enum

from . import bands
from .context import Context
from .expr import LANES
from .ir import BF16, F32, Op, Value
from .storage import REGISTER_VECTORS

FEW_ROWS = 4
"""Rows whose sums stay in vectors where the right side is loaded as it is."""


class Form(enum.Enum):
    ELEMENTS = "each output by itself: odd shapes"
    FEW = "sums in vectors, the right side evaluated where it is used"
    BANDS = "16 rows at a time, where their sums are used"
    WHOLE = "all rows, the right side stored in pairs"


def form(ctx: Context, op: Op) -> Form | None:
    """None: another kind of product, or no product."""
    if op.name != "tt.dot" or any(v.element != BF16 for v in op.operands[:2]):
        return None
    shape, depth = op.result.shape, op.operands[0].shape[-1]
    if op.result.element != F32:
        return None
    if len(shape) != 2 or shape[1] % LANES or depth < 2:
        return Form.ELEMENTS
    if shape[0] == 1 or (ctx.emulation is None and _is_few(shape, op.operands[1])):
        return Form.FEW
    return Form.BANDS if bands.takes(ctx, op) else Form.WHOLE


def _is_few(shape: tuple[int, ...], right: Value) -> bool:
    """Storing the right side and loading it into tiles would take longer than the products."""
    rows, columns = shape
    is_small = rows <= FEW_ROWS and rows * columns // LANES <= REGISTER_VECTORS
    return is_small and is_loaded(right)


def is_loaded(value: Value) -> bool:
    """A load, perhaps of another float type."""
    op = value.op
    while op is not None and op.name in ("arith.extf", "arith.truncf", "tt.fp_to_fp"):
        op = op.operands[0].op
    return op is not None and op.name == "tt.load"
