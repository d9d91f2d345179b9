"""Converters of attention: of decoders as one op, of other modules as products and a softmax."""

from __future__ import annotations

from ..ir.dtype import BOOL, F32, I32
from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops.attention import Attention
from ..ir.ops.reduce import Softmax
from ..ir.ops.shape import Iota, Transpose
from .fx_convert_context import Emitter, Unsupported, converts
from .fx_convert_indexing import DECODER_INPUTS
from .fx_convert_linear import matmul_of
from .fx_convert_shape import transpose


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
    """Of a decoder one op, whose mask is known by its kind; of any other module what it means."""
    if dropout_p:
        raise Unsupported("attention with dropout (call eval() on the module)")
    head_dim = q.type.shape[-1]
    if not isinstance(head_dim, int):
        raise Unsupported(f"attention of {q.type}")
    factor = float(head_dim**-0.5 if scale is None else scale)
    names = {value.name for value in e.graph.inputs}
    if not names >= DECODER_INPUTS and all(isinstance(d, int) for d in q.type.shape[-2:]):
        return _spelled_out(e, q, k, v, attn_mask, is_causal, factor)
    if attn_mask is not None or q.type.rank != 4:
        raise Unsupported("attention with a mask tensor (use is_causal)")
    out = e.emit(Attention(factor, is_causal), q, k, v)
    return e.emit(Transpose((0, 2, 1, 3)), out)


def _spelled_out(
    e: Emitter, q: Value, k: Value, v: Value, mask: Value | None, is_causal: bool, scale: float
) -> Value:
    k, v = (_for_heads(e, x, q) for x in (k, v))
    turned = transpose(e, k, -1, -2)
    scores = matmul_of(e, q, turned)
    scores = e.emit(ops.Mul(), scores, e.scalar(scale, F32))
    if is_causal:
        rows, columns = (e.emit(Iota(n, I32)) for n in scores.type.shape[-2:])
        mask = e.emit(ops.Ge(), e.reshape(rows, (*rows.type.shape, 1)), columns)
    if mask is not None and mask.type.dtype == BOOL:
        scores = e.emit(ops.Where(), mask, scores, e.scalar(float("-inf"), F32))
    elif mask is not None:
        scores = e.emit(ops.Add(), scores, e.cast(mask, F32))
    return matmul_of(e, e.emit(Softmax(-1), scores), v)


def _for_heads(e: Emitter, x: Value, q: Value) -> Value:
    """Keys or values once for each head that reads them."""
    if x.type.rank < 3 or x.type.shape[-3] == q.type.shape[-3]:
        return x
    *lead, heads, tokens, width = x.type.shape
    group = int(q.type.shape[-3]) // int(heads)
    apart = e.reshape(x, (*lead, heads, 1, tokens, width))
    wide = e.broadcast(apart, (*lead, heads, group, tokens, width))
    return e.reshape(wide, (*lead, heads * group, tokens, width))
