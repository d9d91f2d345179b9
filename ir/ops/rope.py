"""Rotary position embedding (RoFormer, Su et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dim import Dim
from ..dtype import F32
from ..op import Array, Op, expect
from ..types import TensorType


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """Rotate pairs of the first 2R of D elements. x [T, H, D]; cos, sin [T, R].

    Pairs are (i, i + R), or (2i, 2i + 1) when interleaved; elements from 2R on pass through.
    """
    pairs = cos.shape[-1]
    a_index = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    b_index = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    a, b = x[..., a_index], x[..., b_index]
    c, s = cos[:, None, :], sin[:, None, :]
    result = np.array(x)
    result[..., a_index] = a * c - b * s
    result[..., b_index] = b * c + a * s
    return result


def check_tables(
    where: str, head_dim: Dim, x: TensorType, cos: TensorType, sin: TensorType
) -> None:
    """Tables are f32 [T, R], one row for each token of ``x``, and 2R fits in a head."""
    good = cos.rank == 2 and cos == sin and cos.shape[0] == x.shape[0] and cos.dtype == F32
    known = good and isinstance(cos.shape[1], int) and isinstance(head_dim, int)
    expect(
        good and (not known or 2 * cos.shape[1] <= head_dim),
        f"{where}: expected cos and sin f32[{x.shape[0]}, R] with 2R <= {head_dim},"
        f" got {cos} and {sin}",
    )


@dataclass(frozen=True)
class RopeTable(Op):
    """(positions i32[T], inv_freq f32[R]) -> (cos f32[T, R], sin f32[T, R]) of positions x
    inv_freq.

    Both are multiplied by ``scale`` (the attention factor of yarn and longrope). The product is
    rounded to f32 as models do; its cosine and sine are exact to f32.
    """

    scale: float = 1.0
    name: ClassVar[str] = "rope_table"

    def infer(self, positions: TensorType, inv_freq: TensorType) -> tuple[TensorType, ...]:
        good = positions.rank == 1 and positions.dtype.is_integer
        good = good and inv_freq.rank == 1 and inv_freq.dtype == F32
        expect(
            good,
            f"rope_table: expected positions [T] and inv_freq [R], got {positions} and {inv_freq}",
        )
        result = TensorType(F32, (*positions.shape, *inv_freq.shape))
        return (result, result)

    def reference(self, positions: Array, inv_freq: Array) -> tuple[Array, ...]:
        angle = positions.astype(np.float32)[:, None] * inv_freq[None, :]
        wide = angle.astype(np.float64)
        scale = np.float32(self.scale)
        return np.cos(wide).astype(np.float32) * scale, np.sin(wide).astype(np.float32) * scale


@dataclass(frozen=True)
class Rope(Op):
    """(x f32[T, H, D], cos f32[T, R], sin f32[T, R]) -> f32[T, H, D], see `rotate`; 2R <= D."""

    interleaved: bool = False
    name: ClassVar[str] = "rope"

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType) -> tuple[TensorType, ...]:
        expect(x.rank == 3, f"rope: expected x [T, H, D], got {x}")
        check_tables("rope", x.shape[2], x, cos, sin)
        return (x,)

    def reference(self, x: Array, cos: Array, sin: Array) -> Array:
        return rotate(x, cos, sin, self.interleaved)
