"""Converters of matrix products, embeddings, norms and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.dtype import F32
from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops import reduce as reduces
from ..ir.ops.attention import Attention
from ..ir.ops.linear import Linear, MatMul
from ..ir.ops.norm import LayerNorm
from ..ir.ops.shape import Transpose
from ..ir.ops.sparse import Embedding
from ..ir.types import TensorType
from .fx_convert_context import Emitter, Unsupported, converts
from .fx_convert_reduce import reduced

# Products ----------------------------------------------------------------------------------


@converts("linear")
def linear(e: Emitter, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.type.rank != 2 or x.type.rank < 1:
        raise Unsupported(f"a linear of {x.type} and {weight.type}")
    rest = () if bias is None else (bias,)
    return e.emit(Linear(has_bias=bias is not None), x, weight, *rest)


@converts("matmul", "mm", "bmm")
def matmul(e: Emitter, a: Value, b: Value) -> Value:
    """Vectors become matrices of one row or column first."""
    left = e.reshape(a, (1, *a.type.shape)) if a.type.rank == 1 else a
    right = e.reshape(b, (*b.type.shape, 1)) if b.type.rank == 1 else b
    return e.reshape(e.emit(MatMul(), left, right), e.shape)


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
    return e.emit(Embedding(), weight, indices)


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
    rest = (_or(e, weight, 1, size), _or(e, bias, 0, size))
    return e.reshape(e.emit(LayerNorm(eps), joined, *rest), x.type.shape)


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


# Attention ---------------------------------------------------------------------------------


@converts("sglk.attention")
def attention(
    e: Emitter,
    q: Value,
    k: Value,
    v: Value,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: Value | None,
) -> Value:
    op = Attention(float(scale), causal, window, softcap, has_sinks=sinks is not None)
    return e.emit(op, q, k, v, *(() if sinks is None else (sinks,)))


@converts("scaled_dot_product_attention")
def scaled_dot_product_attention(
    e: Emitter,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Plain modules; a mask tensor has no symbolic meaning and is refused."""
    if attn_mask is not None or dropout_p:
        raise Unsupported("attention with a mask tensor or dropout (use is_causal)")
    head_dim = q.type.shape[-1]
    if q.type.rank != 4 or not isinstance(head_dim, int):
        raise Unsupported(f"attention of {q.type}")
    factor = float(head_dim**-0.5 if scale is None else scale)
    out = e.emit(Attention(factor, is_causal), q, k, v)
    return e.emit(Transpose((0, 2, 1, 3)), out)
