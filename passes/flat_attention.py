"""The rule of `flat_tokens` for attention, the one op that may mix tokens: through a KV state."""

from __future__ import annotations

import numpy as np

from ..ir.dim import Dim
from ..ir.dtype import F32
from ..ir.graph import Node, Value
from ..ir.ops.attention import Attention, PagedAttention, WriteKv
from ..ir.ops.shape import Broadcast, Concat, Slice
from ..ir.types import TensorType
from .flat_rules import Flattener, Refusal, expect_free, rule


def kv_shape(attention: Node) -> tuple[Dim, Dim]:
    """KV heads and head width of the state that the attention's keys and values go into.

    A state has one width; the narrower of keys and values is filled up with zeros.
    """
    _, heads, _, width = attention.inputs[1].type.shape
    return heads, max_width(width, attention.inputs[2].type.shape[3])


def max_width(a: Dim, b: Dim) -> Dim:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else a


@rule(Attention)
def _attention(flat: Flattener, node: Node) -> None:
    """Of one sequence, through its pages."""
    op = node.op
    assert isinstance(op, Attention)
    q, k, v, *sinks = node.inputs
    _check_attention(flat, node, op)
    heads, width = kv_shape(node)
    layer = flat.layers.get((heads, width), 0)
    flat.layers[heads, width] = layer + 1
    slots, *where = (flat.inputs[n] for n in ("slots", "query_start", "seq_lens", "page_table"))
    query, keys, values = (_filled(flat, node, flat.known[x], width) for x in (q, k, v))
    state = flat.states[heads, width]
    write = WriteKv(layer, kv_dtype=state.type.dtype)
    state = flat.emit(node, write, state, keys, values, slots)
    flat.states[heads, width] = state
    paged = PagedAttention(
        layer, op.scale, flat.page_size, op.window, op.softcap, has_sinks=op.has_sinks
    )
    result = flat.emit(node, paged, query, state, *where, *(flat.known[s] for s in sinks))
    if v.type.shape[3] != width:
        result = flat.emit(node, Slice(2, 0, v.type.shape[3]), result)
    flat.finish(node, result)


def _filled(flat: Flattener, node: Node, value: Value, width: Dim) -> Value:
    """[T, heads, narrow] with zeros up to ``width``: they add nothing to a score or a result."""
    tokens, heads, narrow = value.type.shape
    if narrow == width:
        return value
    zero = flat.graph.const(np.zeros((), np.float32), TensorType(F32, ()))
    rest = flat.emit(node, Broadcast((tokens, heads, width - narrow)), zero)
    return flat.emit(node, Concat(2), value, rest)


def _check_attention(flat: Flattener, node: Node, op: Attention) -> None:
    q, k, v, *sinks = node.inputs
    if not op.causal:
        raise Refusal("is not causal: tokens would see later ones, which are not computed yet")
    if any(flat.token_axis(x) != 2 or x.type.shape[0] != 1 for x in (q, k, v)):
        raise Refusal(f"expects q, k and v of [1, heads, tokens, width], got {q.type}, {k.type}")
    expect_free(flat, sinks, "sink")
