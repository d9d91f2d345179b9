"""Weights of a model without a checkpoint: declared as fills, never made when compiling.

Matrices get numbers around 0, weights of norms around 1, other vectors (biases) around 0. Values
made of constants alone, such as the frequencies of rotary embedding, stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.graph import Node, Value
from ..ir.ops.attention import RopeWriteKv
from ..ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from .artifact.fill import DTYPES, Fill, fill_for
from .lowering import WeightUse

DEVIATION = 0.02
"""As models are initialized: ``initializer_range`` of most configs."""
_NORM_WEIGHT = {RmsNorm: 1, AddRmsNorm: 2, LayerNorm: 1}
"""Which operand of a norm is its weight."""
_FIRST_NORM = 5
"""From this operand on, `RopeWriteKv` has weights of norms."""
RowGranule = Callable[[str], int]


def dummy_fill(use: WeightUse, row_granule: RowGranule) -> tuple[Fill, int] | None:
    """The fill of a weight and its bytes; None where no parameter goes into it.

    ``row_granule`` gives the rows that a layout pads a matrix to a multiple of.
    """
    type = use.value.type
    if not depends_on_params(use.value) or type.dtype.name not in DTYPES:
        return None
    shape = list(type.concrete({}))
    if len(shape) > 1:
        granule = row_granule(use.layout)
        shape[0] = -(-shape[0] // granule) * granule
    size = DTYPES[type.dtype.name]
    for extent in shape:
        size *= extent
    return fill_for(use.name, 1.0 if _is_norm_weight(use.value) else 0.0, DEVIATION), size


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
