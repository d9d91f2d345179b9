"""Importing this module enters every op function in `registry.OPS`."""

from __future__ import annotations

from . import (
    ops_control,
    ops_generate,
    ops_index,
    ops_logic,
    ops_math,
    ops_reduce,
    ops_shape,
)

__all__ = [
    "ops_control",
    "ops_generate",
    "ops_index",
    "ops_logic",
    "ops_math",
    "ops_reduce",
    "ops_shape",
]
