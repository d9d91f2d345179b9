"""Matrix products: plain, with a weight [N, K] of any dtype, and fused forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dim import as_dim, prod
from ..dtype import BF16, F32, I8, DType, round_bf16
from ..op import Array, Cost, Op, expect
from ..quantized import Quantized
from ..types import TensorType, broadcast_shapes
from .elementwise import ACTIVATIONS


def dense(weight: Array) -> np.ndarray:
    """The weight as f32 values, whatever its dtype."""
    return weight.dequantize() if isinstance(weight, Quantized) else np.asarray(weight, np.float32)


def _product_cost(inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
    """2 M N K operations; every operand moved once."""
    rows = prod(inputs[0].shape[:-1])
    moved = sum((t.bytes for t in (*inputs, *outputs)), start=0)
    return Cost(as_dim(2 * rows * inputs[1].size), as_dim(moved))


def _may_multiply(x: TensorType, w: TensorType) -> bool:
    same = w.rank == 2 and x.rank > 0 and x.shape[-1:] == w.shape[1:]
    return (
        same
        and w.dtype.is_float
        and (x.dtype in (F32, BF16) or (x.dtype == I8 and w.dtype.is_block))
    )


def _expect_sides(where: str, op: Linear | GatedLinear, x: TensorType, *rest: TensorType) -> None:
    """What follows w and belongs to x: scales or sums, and x rounded."""
    expect(op.has_scales or x.dtype != I8, f"{where}: expected scales of {x}")
    if op.has_side:
        _expect_side(where, op, x, rest[0])
    if op.rounded_from:
        rounded = rest[op.has_side] if op.has_rounded else x
        good = op.rounded_from > 0 and rounded == x.with_dtype(BF16)
        expect(good, f"{where}: expected x rounded to bf16, got {x}, {rounded}")


def _expect_side(where: str, op: Linear | GatedLinear, x: TensorType, side: TensorType) -> None:
    """Scales of integer x, or sums of float x, over groups of its last dim."""
    good = side.dtype == F32 and side.rank == x.rank and side.shape[:-1] == x.shape[:-1]
    wanted, kind = ("i8", "scales") if op.has_scales else ("float", "sums")
    good = good and (x.dtype == I8) == op.has_scales and not (op.has_scales and op.has_sums)
    expect(good, f"{where}: expected {wanted} x and its f32 {kind}, got {x}, {side}")


def _real(x: Array, scales: Array | None) -> Array:
    """The values that x stands for; integers come with a scale for each group."""
    if scales is None:
        return x
    wide = np.repeat(scales, x.shape[-1] // scales.shape[-1], axis=-1)
    return np.asarray(x.astype(np.float32) * wide, np.float32)


def _product(op: Linear | GatedLinear, x: Array, w: Array, *rest: Array) -> Array:
    """x w^T as the op asks for with so many rows."""
    if op.rounded_from and x.size // x.shape[-1] >= op.rounded_from:
        return np.matmul(rest[op.has_side] if op.has_rounded else x, round_bf16(dense(w)).T)
    return np.matmul(_real(x, rest[0] if op.has_scales else None), dense(w).T)


@dataclass(frozen=True)
class MatMul(Op):
    """(a[..., M, K], b[..., K, N]) -> [..., M, N], leading dims broadcast, f16 summed in f32."""

    name: ClassVar[str] = "matmul"

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        good = a.rank >= 2 and b.rank >= 2 and a.shape[-1] == b.shape[-2] and a.dtype == b.dtype
        good = good and not a.dtype.is_block
        expect(good, f"matmul: expected [..., M, K] and [..., K, N] of one dtype, got {a} and {b}")
        lead = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
        return (a.with_shape(*lead, a.shape[-2], b.shape[-1]),)

    def reference(self, a: Array, b: Array) -> Array:
        wide = np.float32 if a.dtype == np.float16 else a.dtype
        return np.matmul(a.astype(wide), b.astype(wide)).astype(a.dtype)

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        moved = sum((t.bytes for t in (*inputs, *outputs)), start=0)
        return Cost(as_dim(2 * outputs[0].size * inputs[0].shape[-1]), as_dim(moved))


class _Sides:
    """Of a product: which operands after the weight belong to x."""

    has_sums: bool
    has_scales: bool
    rounded_from: int

    @property
    def has_side(self) -> bool:
        """Whether scales or sums of x follow the weight."""
        return self.has_sums or self.has_scales

    @property
    def has_rounded(self) -> bool:
        """Whether x rounded to bf16 follows those."""
        return self.rounded_from > 0 and self.has_scales

    @property
    def num_sides(self) -> int:
        """Operands after the weight that belong to x."""
        return self.has_side + self.has_rounded


@dataclass(frozen=True)
class Linear(_Sides, Op):
    """(x[..., K], w[N, K], [side], [bias f32[N]], [residual[..., N]]) -> [..., N].

    y = activation(x w^T + bias) + residual, accumulated in f32; y and the residual have ``dtype``,
    f32 or bf16, and y is rounded once. ``x`` is f32 or bf16, ``w`` of any float dtype, block types
    included; for those ``x`` may be i8, its scales beside it
    (``has_scales``, `QuantizeRows`). ``has_sums`` (of float x by group, `GroupSums`), ``has_bias``
    and ``has_residual`` say which other optional operands follow.

    With i8 every kernel sums alike, so results have the same bits everywhere. For each group of
    equal scales, in order: S the exact sum of integer x times (integer w - zero), and
    acc = fma(f32(S), d * dx, acc); for types with a minimum X the exact sum of integer x, and
    acc = fma(m, dx * f32(X), acc). d, m: f32 scales of the weight's group; dx: the scale of x.

    ``rounded_from``: products of so many rows or more round to bf16 both x and w instead; where x
    is i8, bf16 x follows its scales. 0: never.
    """

    has_bias: bool = False
    has_residual: bool = False
    activation: str | None = None
    has_sums: bool = False
    has_scales: bool = False
    dtype: DType = F32
    rounded_from: int = 0
    name: ClassVar[str] = "linear"

    def infer(self, x: TensorType, w: TensorType, *rest: TensorType) -> tuple[TensorType, ...]:
        good = _may_multiply(x, w)
        expect(good, f"linear: expected x f32 or bf16 [..., K] and w [N, K], got {x} and {w}")
        expect(
            len(rest) == self.num_sides + self.has_bias + self.has_residual,
            f"linear: got {len(rest)} optional operands",
        )
        expect(
            self.activation is None or self.activation in ACTIVATIONS,
            f"linear: unknown activation {self.activation!r} (known: {', '.join(ACTIVATIONS)})",
        )
        expect(self.dtype in (F32, BF16), f"linear: expected f32 or bf16, got {self.dtype}")
        result = TensorType(self.dtype, (*x.shape[:-1], w.shape[0]))
        _expect_sides("linear", self, x, *rest)
        if self.has_bias:
            wanted, bias = TensorType(F32, w.shape[:1]), rest[self.num_sides]
            expect(bias == wanted, f"linear: expected a bias {wanted}, got {bias}")
        if self.has_residual:
            expect(rest[-1] == result, f"linear: expected a residual {result}, got {rest[-1]}")
        return (result,)

    def reference(self, x: Array, w: Array, *rest: Array) -> Array:
        y = _product(self, x, w, *rest)
        if self.has_bias:
            y = y + rest[self.num_sides]
        if self.activation:
            y = ACTIVATIONS[self.activation](y)
        return np.asarray(y + rest[-1] if self.has_residual else y, np.float32)

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        return _product_cost(inputs, outputs)


@dataclass(frozen=True)
class GatedLinear(_Sides, Op):
    """(x[..., K], w[2N, K], [side]) -> [..., N]: activation(x wg^T) * (x wu^T), w = (wg, wu).

    The gated MLP's first half (GLU Variants Improve Transformer, Shazeer 2020). ``x`` is f32,
    bf16 or i8, with what follows it as in `Linear`; the result has ``dtype``, f32 or bf16.
    """

    activation: str
    has_sums: bool = False
    has_scales: bool = False
    dtype: DType = F32
    rounded_from: int = 0
    name: ClassVar[str] = "gated_linear"

    def infer(self, x: TensorType, w: TensorType, *rest: TensorType) -> tuple[TensorType, ...]:
        good = _may_multiply(x, w) and len(rest) == self.num_sides
        expect(good, f"gated_linear: expected x [..., K], w [2N, K], side, got {x}, {w}, {rest}")
        _expect_sides("gated_linear", self, x, *rest)
        rows = w.shape[0]
        expect(
            isinstance(rows, int) and rows % 2 == 0,
            f"gated_linear: expected an even row count, got {w}",
        )
        expect(
            self.activation in ACTIVATIONS, f"gated_linear: unknown activation {self.activation!r}"
        )
        expect(self.dtype in (F32, BF16), f"gated_linear: expected f32 or bf16, got {self.dtype}")
        return (TensorType(self.dtype, (*x.shape[:-1], as_dim(rows // 2))),)

    def reference(self, x: Array, w: Array, *side: Array) -> Array:
        gate, up = np.split(_product(self, x, w, *side), 2, axis=-1)
        return np.asarray(ACTIVATIONS[self.activation](gate) * up, np.float32)

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        return _product_cost(inputs, outputs)
