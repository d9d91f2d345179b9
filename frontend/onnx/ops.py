"""Importing this module enters every op function in `registry.OPS`."""

from __future__ import annotations

from . import ops_math

__all__ = ["ops_math"]
