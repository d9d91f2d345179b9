"""Activations in fewer bits, for products that multiply in fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dim import as_dim
from ..dtype import BF16, F32, I8, round_bf16
from ..op import Array, Op, expect
from ..types import TensorType

LIMIT = np.float32(127)
"""Largest magnitude of an integer activation: symmetric, so that negating one is exact."""
TINY = np.float32(2.0**-100)
"""A group whose largest magnitude is less counts as zeros: 127 / absmax stays finite."""


@dataclass(frozen=True)
class RoundRows(Op):
    """(x f32[..., K]) -> (bf16[..., K], f32[..., K / group]): x rounded, and its sums by group.

    A product with weights d q + m needs the sums of x over each group of equal d and m.
    """

    group: int = 32
    name: ClassVar[str] = "round_rows"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        width = x.shape[-1] if x.rank else 0
        good = x.dtype == F32 and isinstance(width, int) and width > 0 and width % self.group == 0
        expect(good, f"round_rows: expected f32[..., multiple of {self.group}], got {x}")
        return x.with_dtype(BF16), x.with_shape(*x.shape[:-1], as_dim(width // self.group))

    def reference(self, x: Array) -> tuple[Array, ...]:
        rounded = round_bf16(np.asarray(x, np.float32))
        groups = rounded.reshape(*x.shape[:-1], -1, self.group)
        return rounded, groups.sum(-1, dtype=np.float32)


@dataclass(frozen=True)
class QuantizeRows(Op):
    """(x f32[..., K]) -> (i8[..., K], f32[..., K / group]): x as integers, a scale for each group.

    scale = absmax / 127, integer = x * (127 / absmax), each operation in f32, rounded to nearest,
    ties to even. A group below `TINY` becomes zeros with scale 0; one with NaN or infinity becomes
    zeros with scale NaN, which a product passes on.
    """

    group: int = 32
    name: ClassVar[str] = "quantize_rows"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        width = x.shape[-1] if x.rank else 0
        good = x.dtype == F32 and isinstance(width, int) and width > 0 and width % self.group == 0
        expect(good, f"quantize_rows: expected f32[..., multiple of {self.group}], got {x}")
        return x.with_dtype(I8), x.with_shape(*x.shape[:-1], as_dim(width // self.group))

    def reference(self, x: Array) -> tuple[Array, ...]:
        groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, self.group)
        largest = np.abs(groups).max(-1)
        usable = (largest >= TINY) & np.isfinite(largest)
        safe = np.where(usable, largest, np.float32(1))
        scale = np.where(usable, safe / LIMIT, np.where(largest < TINY, np.float32(0), np.nan))
        scaled = np.where(usable[..., None], groups, np.float32(0)) * (LIMIT / safe)[..., None]
        return np.rint(scaled).astype(np.int8).reshape(x.shape), scale.astype(np.float32)


@dataclass(frozen=True)
class GroupSums(Op):
    """(x f32[..., K]) -> f32[..., K / group]: what a product with weights d q + m needs of m."""

    group: int = 32
    name: ClassVar[str] = "group_sums"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        width = x.shape[-1] if x.rank else 0
        good = x.dtype == F32 and isinstance(width, int) and width > 0 and width % self.group == 0
        expect(good, f"group_sums: expected f32[..., multiple of {self.group}], got {x}")
        return (x.with_shape(*x.shape[:-1], as_dim(width // self.group)),)

    def reference(self, x: Array) -> Array:
        groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, self.group)
        return groups.sum(-1, dtype=np.float32)
