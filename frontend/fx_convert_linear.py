"""Converters of matrix products, embeddings, norms, reductions, softmax and attention."""

from __future__ import annotations

import functools
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
from ..ir.ops.shape import Concat, Transpose
from ..ir.ops.sparse import Embedding
from ..ir.types import TensorType
from .fx_convert_context import Converter, Emitter, Unsupported, axis_of, converts
from .fx_convert_shape import take

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
    product = e.emit(MatMul(), a, b)
    if alpha != 1:
        product = e.emit(ops.Mul(), product, e.scalar(alpha, F32))
    if beta != 1:
        x = e.emit(ops.Mul(), x, e.scalar(beta, F32))
    return e.emit(ops.Add(), product, x)


@converts("embedding")
def embedding(e: Emitter, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return e.emit(Embedding(), weight, indices)


@converts("index")
def index(e: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    """Rows of a table by integer index, or parts along one axis by constant ones."""
    given = [(axis, rows) for axis, rows in enumerate(indices) if rows is not None]
    if len(given) != 1 or not given[0][1].type.dtype.is_integer:
        raise Unsupported(f"indexing {x.type} by anything but integers along one dim")
    axis, rows = given[0]
    if rows.data is not None and rows.type.rank == 1 and rows.data.size <= _FEW:
        return _parts(e, x, axis, [int(i) for i in rows.data])
    if axis != 0 or x.type.dtype != F32:
        raise Unsupported(f"indexing {x.type} by computed integers along dim {axis}")
    table = e.reshape(x, (x.type.shape[0], _tail(x)))
    return e.reshape(e.emit(Embedding(), table, rows), e.shape)


_FEW = 64


def _parts(e: Emitter, x: Value, axis: int, at: Sequence[int]) -> Value:
    """One slice for each run of neighbours."""
    size = x.type.shape[axis]
    if not isinstance(size, int):
        raise Unsupported(f"constant indices along the symbolic dim {size}")
    places = [i % size for i in at]
    starts = [n for n, i in enumerate(places) if n == 0 or i != places[n - 1] + 1]
    runs = [places[a:b] for a, b in zip(starts, [*starts[1:], len(places)], strict=True)]
    parts = [take(e, x, axis, run[0], run[-1] + 1) for run in runs]
    return parts[0] if len(parts) == 1 else e.emit(Concat(axis), *parts)


@converts("index_select")
def index_select(e: Emitter, x: Value, dim: int, rows: Value) -> Value:
    return index(e, x, [*[None] * axis_of(x, dim), rows])


def _tail(x: Value) -> Any:
    """Product of all dims but the first."""
    return TensorType(x.type.dtype, x.type.shape[1:]).size


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
    """Absent weights are ones, an absent bias zeros."""
    if len(normalized_shape) != 1:
        raise Unsupported("a layer norm over more than the last dim")
    size = int(normalized_shape[0])
    return e.emit(LayerNorm(eps), x, _or(e, weight, 1, size), _or(e, bias, 0, size))


@converts("native_layer_norm")
def native_layer_norm(
    e: Emitter,
    x: Value,
    shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value]:
    return (layer_norm(e, x, shape, weight, bias, eps),)


def _or(e: Emitter, value: Value | None, fill: float, size: int) -> Value:
    if value is not None:
        return value
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


# Reductions --------------------------------------------------------------------------------


def _axes(x: Value, dim: int | Sequence[int] | None) -> list[int]:
    """Axes to reduce, last first, so that dropping one leaves the others in place."""
    chosen = range(x.type.rank) if dim is None or dim == [] else np.atleast_1d(dim)
    return sorted((axis_of(x, int(d)) for d in chosen), reverse=True)


def _reduce(
    e: Emitter, op: type[reduces.Reduce], x: Value, dim: int | Sequence[int] | None, keepdim: bool
) -> Value:
    return functools.reduce(lambda v, axis: e.emit(op(axis, keepdim), v), _axes(x, dim), x)


def _reduction(op: type[reduces.Reduce]) -> Converter:
    def convert(
        e: Emitter, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Value:
        return _reduce(e, op, e.cast(x, e.result.dtype), dim, keepdim)

    return convert


converts("mean")(_reduction(reduces.Mean))
converts("sum")(_reduction(reduces.Sum))
converts("amax")(_reduction(reduces.Max))


@converts("argmax")
def argmax(e: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    if dim is None:
        x, dim, keepdim = e.reshape(x, (x.type.size,)), 0, False
    return e.emit(reduces.Argmax(axis_of(x, dim), keepdim), x)


@converts("max")
def maximum(
    e: Emitter, x: Value, dim: int | Value | None = None, keepdim: bool = False
) -> Value | tuple[Value, ...]:
    """``max(x)``, ``max(x, other)`` and ``max(x, dim)`` share a name."""
    if isinstance(dim, Value):
        return e.emit(ops.Maximum(), x, dim)
    if dim is None:
        return _reduce(e, reduces.Max, x, None, False)
    axis = axis_of(x, dim)
    return e.emit(reduces.Max(axis, keepdim), x), e.emit(reduces.Argmax(axis, keepdim), x)


@converts("var")
def variance(
    e: Emitter, x: Value, dim: Any = None, *, correction: float | None = 1, keepdim: bool = False
) -> Value:
    """Mean of squared differences, times N / (N - correction)."""
    axes = _axes(x, dim)
    count = TensorType(F32, tuple(x.type.shape[a] for a in axes)).size
    correction = 1 if correction is None else correction
    if not isinstance(count, int) or count <= correction:
        raise Unsupported(f"the variance of {count} elements with correction {correction}")
    centred = e.emit(ops.Sub(), x, _reduce(e, reduces.Mean, x, axes, True))
    squares = _reduce(e, reduces.Mean, e.emit(ops.Mul(), centred, centred), axes, keepdim)
    if correction == 0:
        return squares
    return e.emit(ops.Mul(), squares, e.scalar(count / (count - correction), F32))


@converts("log_softmax", "_log_softmax")
def log_softmax(e: Emitter, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    axis, x = axis_of(x, dim), e.cast(x, F32)
    shifted = e.emit(ops.Sub(), x, e.emit(reduces.Max(axis, True), x))
    total = e.emit(reduces.Sum(axis, True), e.emit(ops.Exp(), shifted))
    return e.emit(ops.Sub(), shifted, e.emit(ops.Log(), total))


@converts("softmax", "_softmax")
def softmax(e: Emitter, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    """The optional dtype is a float, and all floats are f32."""
    return e.emit(reduces.Softmax(axis_of(x, dim)), e.cast(x, F32))


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
