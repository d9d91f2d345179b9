"""Activations in fewer bits, for products that multiply in fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dim import as_dim
from ..dtype import BF16, F32, round_bf16
from ..op import Array, Op, expect
from ..types import TensorType


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
