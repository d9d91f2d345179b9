"""The op catalogue. Importing this package registers every op."""

from . import (
    activations,
    attention,
    elementwise,
    indexing,
    linear,
    math,
    moe,
    norm,
    order,
    recurrence,
    reduce,
    rope,
    shape,
    sparse,
    spatial,
)

__all__ = [
    "activations",
    "attention",
    "elementwise",
    "indexing",
    "linear",
    "math",
    "moe",
    "norm",
    "order",
    "recurrence",
    "reduce",
    "rope",
    "shape",
    "sparse",
    "spatial",
]
