"""Importing this module enters every op function in `registry.OPS`."""

from __future__ import annotations

from . import (
    ops_activation,
    ops_cast,
    ops_control,
    ops_conv,
    ops_generate,
    ops_index,
    ops_linear,
    ops_logic,
    ops_math,
    ops_norm,
    ops_pool,
    ops_quantize,
    ops_recurrent,
    ops_reduce,
    ops_resize,
    ops_sequence,
    ops_shape,
    ops_signal,
)

__all__ = [
    "ops_activation",
    "ops_cast",
    "ops_control",
    "ops_conv",
    "ops_generate",
    "ops_index",
    "ops_linear",
    "ops_logic",
    "ops_math",
    "ops_norm",
    "ops_pool",
    "ops_quantize",
    "ops_recurrent",
    "ops_reduce",
    "ops_resize",
    "ops_sequence",
    "ops_shape",
    "ops_signal",
]
