"""The op catalogue. Importing this package registers every op."""

from . import (
    activations,
    attention,
    elementwise,
    linear,
    moe,
    norm,
    order,
    reduce,
    rope,
    shape,
    sparse,
)

__all__ = [
    "activations",
    "attention",
    "elementwise",
    "linear",
    "moe",
    "norm",
    "order",
    "reduce",
    "rope",
    "shape",
    "sparse",
]
