"""Converters of matrix products, embeddings and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.dtype import F32
from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops import reduce as reduces
from ..ir.ops.linear import Linear, MatMul
from ..ir.ops.norm import LayerNorm
from ..ir.types import TensorType
from .fx_convert_context import Emitter, Unsupported, converts
from .fx_convert_indexing import depends_on_inputs, picked_rows
from .fx_convert_reduce import reduced
from .fx_convert_shape import transpose

# Products ----------------------------------------------------------------------------------


@converts("linear")
def linear(e: Emitter, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.type.rank != 2 or x.type.rank < 1:
        raise Unsupported(f"a linear of {x.type} and {weight.type}")
    if depends_on_inputs(weight):
        turned = transpose(e, weight, 0, 1)
        product = matmul(e, x, turned)
        return product if bias is None else e.emit(ops.Add(), product, bias)
    rest = () if bias is None else (bias,)
    return e.emit(Linear(has_bias=bias is not None), x, weight, *rest)


@converts("matmul", "mm", "bmm")
def matmul(e: Emitter, a: Value, b: Value) -> Value:
    """Vectors become matrices of one row or column first."""
    left = e.reshape(a, (1, *a.type.shape)) if a.type.rank == 1 else a
    right = e.reshape(b, (*b.type.shape, 1)) if b.type.rank == 1 else b
    return e.reshape(matmul_of(e, left, right), e.shape)


def matmul_of(e: Emitter, a: Value, b: Value) -> Value:
    """A product of matrices; more axes of batches than two become one."""
    if a.type.rank <= 4 or a.type.shape[:-2] != b.type.shape[:-2]:
        return e.emit(MatMul(), a, b)
    product = e.emit(MatMul(), *(e.reshape(x, _joined(x)) for x in (a, b)))
    return e.reshape(product, (*a.type.shape[:-1], b.type.shape[-1]))


def _joined(x: Value) -> tuple[Any, ...]:
    """Matrices in one axis of batches."""
    return (TensorType(x.type.dtype, x.type.shape[:-2]).size, *x.type.shape[-2:])


@converts("addmm", "baddbmm")
def addmm(e: Emitter, x: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    product, dtype = e.emit(MatMul(), a, b), e.result.dtype
    if alpha != 1:
        product = e.emit(ops.Mul(), product, e.scalar(alpha, dtype))
    if beta != 1:
        x = e.emit(ops.Mul(), x, e.scalar(beta, dtype))
    return e.emit(ops.Add(), product, x)


@converts("embedding")
def embedding(e: Emitter, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return picked_rows(e, weight, indices)


# Norms -------------------------------------------------------------------------------------


@converts("layer_norm")
def layer_norm(
    e: Emitter,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    """Absent weights are ones, an absent bias zeros. Several axes are joined first."""
    size = math.prod(normalized_shape)
    lead = x.type.rank - len(normalized_shape)
    joined = e.reshape(x, (*x.type.shape[:lead], size))
    is_late = depends_on_inputs(weight) or depends_on_inputs(bias)
    stored = (None, None) if is_late else (weight, bias)
    rest = (_or(e, stored[0], 1, size), _or(e, stored[1], 0, size))
    y = e.reshape(e.emit(LayerNorm(eps), joined, *rest), x.type.shape)
    if is_late and weight is not None:
        y = e.emit(ops.Mul(), y, weight)
    return e.emit(ops.Add(), y, bias) if is_late and bias is not None else y


@converts("native_layer_norm")
def native_layer_norm(
    e: Emitter,
    x: Value,
    shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Mean and 1 / deviation come with it, and are dropped again where nobody reads them."""
    axes = list(range(x.type.rank - len(shape), x.type.rank))
    mean = reduced(e, reduces.Mean, x, axes, True)
    centred = e.emit(ops.Sub(), x, mean)
    square = reduced(e, reduces.Mean, e.emit(ops.Mul(), centred, centred), axes, True)
    deviation = e.emit(ops.Rsqrt(), e.emit(ops.Add(), square, e.scalar(eps, F32)))
    return layer_norm(e, x, shape, weight, bias, eps), mean, deviation


def _or(e: Emitter, value: Value | None, fill: float, size: int) -> Value:
    if value is not None:
        return e.reshape(value, (size,))
    return e.graph.const(np.full(size, fill, np.float32), TensorType(F32, (size,)))


@converts("rms_norm")
def rms_norm(
    e: Emitter,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    """Written out: recognition turns this form, whoever wrote it, into one op."""
    if len(normalized_shape) != 1:
        raise Unsupported("an RMS norm over more than the last dim")
    mean = e.emit(reduces.Mean(-1, True), e.emit(ops.Mul(), x, x))
    guard = e.scalar(float(np.finfo(np.float32).eps) if eps is None else eps, F32)
    scaled = e.emit(ops.Mul(), x, e.emit(ops.Rsqrt(), e.emit(ops.Add(), mean, guard)))
    return scaled if weight is None else e.emit(ops.Mul(), scaled, weight)
