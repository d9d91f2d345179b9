"""Weights of a model without a checkpoint: declared as fills, never made when compiling.

Matrices get numbers around 0, weights of norms around 1, other vectors (biases) around 0. Values
made of constants alone, such as the frequencies of rotary embedding, stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import LoweringError
from ..ir.graph import Node, Value
from ..ir.ops.attention import RopeWriteKv
from ..ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from .artifact.fill import DTYPES, Fill, fill_for
from .form_parts import SCALE, ZERO
from .weight_use import WeightUse

DEVIATION = 0.02
"""As models are initialized: ``initializer_range`` of most configs."""
E4M3_REACH = 384.0
"""Largest magnitude of elements that are made; 448 is the largest there is."""
MIDDLE, REACH = 127.75, 127.7
"""Of bytes, before they are cut: one integer of 8 bits, or two of 4."""
_NORM_WEIGHT = {RmsNorm: 1, AddRmsNorm: 2, LayerNorm: 1}
"""Which operand of a norm is its weight."""
_FIRST_NORM = 5
"""From this operand on, `RopeWriteKv` has weights of norms."""
RowGranule = Callable[[str], int]


def dummy_fill(use: WeightUse, row_granule: RowGranule) -> tuple[Fill, int] | None:
    """The fill of a weight and its bytes; None where no parameter goes into it.

    ``row_granule`` gives the rows that a layout pads a matrix to a multiple of.
    """
    if not depends_on_params(use.value) or use.dtype not in DTYPES:
        return None
    shape = list(use.shape)
    if len(shape) > 1 and use.stored is None:
        granule = row_granule(use.layout)
        shape[0] = -(-shape[0] // granule) * granule
    size = DTYPES[use.dtype]
    for extent in shape:
        size *= extent
    if use.stored is not None:
        return _fill_of_part(use), size
    return fill_for(use.name, 1.0 if _is_norm_weight(use.value) else 0.0, DEVIATION), size


def _fill_of_part(use: WeightUse) -> Fill:
    """Elements over most of their range, with scales that make them even numbers around 0."""
    form = use.value.type.dtype.form
    if form is None:
        raise LoweringError(f"weight {use.name}: expected a group form, got {use.value.type}")
    reach = E4M3_REACH if form.is_float else form.zero
    if use.layout == SCALE:
        return fill_for(use.name, DEVIATION * 3**0.5 / reach, 0.0)
    if use.layout == ZERO:
        return fill_for(use.name, form.zero, 0.0)
    if form.is_float:
        return fill_for(use.name, 0.0, E4M3_REACH / 3**0.5)
    return fill_for(use.name, MIDDLE, REACH / 3**0.5)


def depends_on_params(value: Value) -> bool:
    """Whether a static value is made of parameters, and not of constants alone."""
    if value.producer is None:
        return value.kind == "param"
    return any(map(depends_on_params, value.producer.inputs))


def _is_norm_weight(value: Value) -> bool:
    return any(_scales(node, value) for node in value.uses)


def _scales(node: Node, value: Value) -> bool:
    """Whether ``node`` is a norm and ``value`` its weight."""
    if isinstance(node.op, RopeWriteKv):
        return any(v is value for v in node.inputs[_FIRST_NORM:])
    at = _NORM_WEIGHT.get(type(node.op))
    return at is not None and node.inputs[at] is value
