"""Mixture of experts: routing, and products with one of many weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dim import as_dim
from ..dtype import BF16, F32, I32, DType
from ..op import Array, Cost, Op, expect
from ..types import TensorType
from .elementwise import ACTIVATIONS
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
    """(x [T, K] or [T, k, K], w[E, N, K], ids i32[T, k]) -> [T, k, N], accumulated in f32.

    y[t, j] = w[ids[t, j]] x[t], or x[t, j] where each choice has an operand of its own. ``x`` is
    f32 or bf16, and so is the result, of ``dtype``.
    """

    dtype: DType = F32
    name: ClassVar[str] = "expert_linear"

    def infer(self, x: TensorType, w: TensorType, ids: TensorType) -> tuple[TensorType, ...]:
        good = w.rank == 3 and w.dtype.is_float and ids.rank == 2 and ids.dtype.is_integer
        good = good and {x.dtype, self.dtype} <= {F32, BF16} and x.rank in (2, 3)
        good = good and x.shape[-1] == w.shape[2]
        good = good and x.shape[:-1] in (ids.shape[:1], ids.shape)
        expect(
            good,
            "expert_linear: expected x f32[T, K] or [T, k, K], w [E, N, K] and ids i32[T, k],"
            f" got {x}, {w} and {ids}",
        )
        return (TensorType(self.dtype, (*ids.shape, w.shape[1])),)

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


@dataclass(frozen=True)
class ExpertMlp(Op):
    """(x [T, K], up[E, 2I, K], down[E, H, I], ids i32[T, k], weights f32[T, k], [residual]) -> y.

    y[t] = [residual[t] +] sum over j of weights[t, j] * down[e] (activation(gate x[t]) * (u x[t])),
    where e = ids[t, j] and up[e] is I rows of the gate, then I of u. ``x`` is f32 or bf16, and so
    is the result, of ``dtype``, which the residual has too; everything between is f32.
    """

    activation: str
    has_residual: bool = False
    dtype: DType = F32
    name: ClassVar[str] = "expert_mlp"

    def infer(
        self,
        x: TensorType,
        up: TensorType,
        down: TensorType,
        ids: TensorType,
        weights: TensorType,
        *rest: TensorType,
    ) -> tuple[TensorType, ...]:
        expect(
            self.activation in ACTIVATIONS, f"expert_mlp: unknown activation {self.activation!r}"
        )
        floats = up.dtype.is_float and down.dtype.is_float and ids.dtype.is_integer
        good = floats and {x.dtype, self.dtype} <= {F32, BF16} and weights.dtype == F32
        good = good and (x.rank, up.rank, down.rank, ids.rank) == (2, 3, 3, 2)
        good = good and ids.shape == weights.shape and ids.shape[0] == x.shape[0]
        good = good and up.shape[0] == down.shape[0] and up.shape[2] == x.shape[1]
        good = good and as_dim(2 * down.shape[2]) == up.shape[1]
        expect(
            good,
            "expert_mlp: expected x [T, K], up [E, 2I, K], down [E, H, I], ids i32[T, k] and "
            f"weights f32[T, k], got {x}, {up}, {down}, {ids} and {weights}",
        )
        result = TensorType(self.dtype, (x.shape[0], down.shape[1]))
        wanted = (result,) if self.has_residual else ()
        expect(rest == wanted, f"expert_mlp: expected the residual {wanted}, got {rest}")
        return (result,)

    def reference(
        self, x: Array, up: Array, down: Array, ids: Array, weights: Array, *rest: Array
    ) -> Array:
        gate, other = np.split(ExpertLinear().reference(x, up, ids), 2, axis=-1)
        inner = ACTIVATIONS[self.activation](gate) * other
        outer = ExpertLinear().reference(np.asarray(inner, np.float32), down, ids)
        total = (outer * weights[..., None]).sum(1)
        return np.asarray(total + rest[0] if rest else total, np.float32)

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """At most every choice reads weights of its own, and no weight is read twice."""
        up, down, ids = inputs[1:4]
        moved = sum((value.bytes for value in inputs), start=outputs[0].bytes)
        products = up.shape[1] * up.shape[2] + down.shape[1] * down.shape[2]
        return Cost(as_dim(2 * ids.size * products), as_dim(moved))
