"""Mixture of experts: routing, and products with one of many weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dim import as_dim
from ..dtype import F32, I32
from ..op import Array, Cost, Op, expect
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


@dataclass(frozen=True)
class ExpertLinear(Op):
    """(x f32[T, K] or [T, k, K], w[E, N, K], ids i32[T, k]) -> f32[T, k, N], accumulated in f32.

    y[t, j] = w[ids[t, j]] x[t], or x[t, j] where each choice has an operand of its own.
    """

    name: ClassVar[str] = "expert_linear"

    def infer(self, x: TensorType, w: TensorType, ids: TensorType) -> tuple[TensorType, ...]:
        good = w.rank == 3 and w.dtype.is_float and ids.rank == 2 and ids.dtype.is_integer
        good = good and x.dtype == F32 and x.rank in (2, 3) and x.shape[-1] == w.shape[2]
        good = good and x.shape[:-1] in (ids.shape[:1], ids.shape)
        expect(
            good,
            "expert_linear: expected x f32[T, K] or [T, k, K], w [E, N, K] and ids i32[T, k],"
            f" got {x}, {w} and {ids}",
        )
        return (TensorType(F32, (*ids.shape, w.shape[1])),)

    def reference(self, x: Array, w: Array, ids: Array) -> Array:
        rows = np.broadcast_to(x if x.ndim == 3 else x[:, None], (*ids.shape, x.shape[-1]))
        result = np.zeros((*ids.shape, w.shape[1]), np.float32)
        for expert in np.unique(ids):
            chosen = ids == expert
            result[chosen] = rows[chosen] @ np.asarray(w[expert], np.float32).T
        return result

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """At most every choice reads a weight of its own, and no weight is read twice."""
        x, w, ids = inputs
        moved = x.bytes + w.bytes + ids.bytes + outputs[0].bytes
        return Cost(as_dim(2 * outputs[0].size * w.shape[2]), as_dim(moved))
