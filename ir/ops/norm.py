"""Normalisations over the last axis, accumulated in f64 in the reference and f32 in kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dtype import F32
from ..op import Array, Op, expect
from ..types import TensorType


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x x) + eps) over the last axis, in f64."""
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt(np.mean(wide * wide, -1, keepdims=True) + eps))


def _is_weight(weight: TensorType, x: TensorType) -> bool:
    """Of x's own type, or f32 whatever x is."""
    plain = x.rank > 0 and x.dtype.is_float and not x.dtype.is_block
    return plain and weight.shape == x.shape[-1:] and weight.dtype in (x.dtype, F32)


@dataclass(frozen=True)
class RmsNorm(Op):
    """y = x / sqrt(mean(x x) + eps) * weight (Zhang and Sennrich 2019)."""

    eps: float = 1e-6
    name: ClassVar[str] = "rmsnorm"

    def infer(self, x: TensorType, weight: TensorType) -> tuple[TensorType, ...]:
        good = _is_weight(weight, x)
        expect(good, f"rmsnorm: expected a weight of the last dim of {x}, got {weight}")
        return (x,)

    def reference(self, x: Array, weight: Array) -> Array:
        return (rms(x, self.eps) * weight).astype(x.dtype)


@dataclass(frozen=True)
class AddRmsNorm(Op):
    """(x, r, weight) -> (s = x + r, rmsnorm(s, weight)): a residual sum and its norm."""

    eps: float = 1e-6
    name: ClassVar[str] = "add_rmsnorm"

    def infer(self, x: TensorType, r: TensorType, weight: TensorType) -> tuple[TensorType, ...]:
        expect(x == r, f"add_rmsnorm: expected equal types, got {x} and {r}")
        good = _is_weight(weight, x)
        expect(good, f"add_rmsnorm: expected a weight of the last dim of {x}, got {weight}")
        return (x, x)

    def reference(self, x: Array, r: Array, weight: Array) -> tuple[Array, ...]:
        total = (x + r).astype(x.dtype)
        return total, (rms(total, self.eps) * weight).astype(x.dtype)


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x, weight, bias) -> (x - mean) / sqrt(var + eps) * weight + bias (Ba et al. 2016)."""

    eps: float = 1e-5
    name: ClassVar[str] = "layernorm"

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType) -> tuple[TensorType, ...]:
        good = weight == bias and _is_weight(weight, x)
        expect(
            good,
            f"layernorm: expected weight and bias of the last dim of {x}, got {weight}, {bias}",
        )
        return (x,)

    def reference(self, x: Array, weight: Array, bias: Array) -> Array:
        wide = x.astype(np.float64)
        centred = wide - np.mean(wide, -1, keepdims=True)
        scaled = centred / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + self.eps)
        return (scaled * weight + bias).astype(x.dtype)
