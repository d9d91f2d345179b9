"""Mixture-of-experts routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dtype import F32, I32
from ..op import Array, Op, expect
from ..types import TensorType
from .reduce import Softmax


@dataclass(frozen=True)
class MoeRoute(Op):
    """(router logits f32[T, E]) -> (expert ids i32[T, k], weights f32[T, k]), best expert first.

    Softmax over all experts, the ``top_k`` largest (equal ones: lowest index first), divided by
    their sum when ``renormalize`` (Mixtral of Experts, Jiang et al. 2024).
    """

    top_k: int
    renormalize: bool = True
    name: ClassVar[str] = "moe_route"

    def infer(self, logits: TensorType) -> tuple[TensorType, ...]:
        good = (
            logits.rank == 2
            and logits.dtype == F32
            and isinstance(logits.shape[1], int)
            and 0 < self.top_k <= logits.shape[1]
        )
        expect(good, f"moe_route: expected logits f32[T, E] with E >= {self.top_k}, got {logits}")
        weights = logits.with_shape(logits.shape[0], self.top_k)
        return (weights.with_dtype(I32), weights)

    def reference(self, logits: Array) -> tuple[Array, ...]:
        probabilities = Softmax().reference(logits)
        ids = np.argsort(-probabilities, axis=-1, kind="stable")[:, : self.top_k]
        weights = np.take_along_axis(probabilities, ids, -1)
        if self.renormalize:
            weights = weights / np.sum(weights, -1, keepdims=True)
        return ids.astype(np.int32), weights.astype(logits.dtype)
