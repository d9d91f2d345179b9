"""Exporters of the ops of language models, each as a function of standard ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir.dtype import BF16, F32, I8, I32
from ...ir.graph import Node
from .export_nodes import Builder, fused
from .export_ops import activated


def _rounded(b: Builder, x: str, to_bf16: bool) -> str:
    return b.op("Cast", b.op("Cast", x, to=16), to=1) if to_bf16 else x


def _is_bf16(node: Node) -> bool:
    return node.outputs[0].type.dtype == BF16


# Norms ----------------------------------------------------------------------------------------


def _rms(b: Builder, x: str, eps: float) -> str:
    mean = b.op("ReduceMean", b.op("Mul", x, x), b.ints(-1), keepdims=1)
    return b.op("Div", x, b.op("Sqrt", b.op("Add", mean, b.const(eps))))


@fused("rmsnorm")
def rms_norm(b: Builder, node: Node, x: str, weight: str) -> str:
    y = b.op("Mul", _rms(b, x, vars(node.op)["eps"]), weight)
    return _rounded(b, y, _is_bf16(node))


@fused("add_rmsnorm")
def add_rms_norm(b: Builder, node: Node, x: str, r: str, weight: str) -> tuple[str, str]:
    total = _rounded(b, b.op("Add", x, r), _is_bf16(node))
    y = b.op("Mul", _rms(b, total, vars(node.op)["eps"]), weight)
    return total, _rounded(b, y, _is_bf16(node))


@fused("layernorm")
def layer_norm(b: Builder, node: Node, x: str, weight: str, bias: str) -> str:
    y = b.op("LayerNormalization", x, weight, bias, epsilon=vars(node.op)["eps"])
    return _rounded(b, y, _is_bf16(node))


# Products -------------------------------------------------------------------------------------


def _operands(op: Any, b: Builder, x: str, rest: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Integers times their scales; sums of x are a shortcut of kernels that exact values need
    not."""
    if op.has_scales:
        groups = b.op("Unsqueeze", rest[0], b.ints(-1))
        apart = b.op("Concat", b.op("Shape", rest[0]), b.ints(-1), axis=0)
        wide = b.op("Reshape", b.op("Cast", x, to=1), apart)
        whole = b.op("Mul", wide, groups)
        return b.op("Reshape", whole, b.op("Shape", x)), rest[op.num_sides :]
    return x, rest[1:] if op.has_sums else rest


@fused("linear")
def linear(b: Builder, node: Node, x: str, w: str, *rest: str) -> str:
    op: Any = node.op
    x, rest = _operands(op, b, x, rest)
    y = b.op("MatMul", x, b.op("Transpose", w, perm=[1, 0]))
    if op.has_bias:
        y = b.op("Add", y, rest[0])
    y = activated(b, op.activation, y) if op.activation else y
    y = b.op("Add", y, rest[-1]) if op.has_residual else y
    return _rounded(b, y, _is_bf16(node))


@fused("gated_linear")
def gated_linear(b: Builder, node: Node, x: str, w: str, *rest: str) -> str:
    op: Any = node.op
    x, _ = _operands(op, b, x, rest)
    y = b.op("MatMul", x, b.op("Transpose", w, perm=[1, 0]))
    gate, up = b.several("Split", 2, y, axis=-1, num_outputs=2)
    return _rounded(b, b.op("Mul", activated(b, op.activation, gate), up), _is_bf16(node))


@fused("group_sums", "round_rows")
def group_sums(b: Builder, node: Node, x: str) -> Any:
    op: Any = node.op
    rounded = _rounded(b, x, op.name == "round_rows")
    sums = b.op("ReduceSum", _groups(b, node, rounded), b.ints(-1), keepdims=0)
    return (rounded, sums) if op.name == "round_rows" else sums


def _groups(b: Builder, node: Node, x: str) -> str:
    """[..., K] -> [..., K / group, group]"""
    op: Any = node.op
    rank, width = node.inputs[0].type.rank, int(node.inputs[0].type.shape[-1])
    return b.reshape(x, *(0 for _ in range(rank - 1)), width // op.group, op.group)


@fused("quantize_rows")
def quantize_rows(b: Builder, node: Node, x: str) -> tuple[str, str]:
    groups = _groups(b, node, x)
    largest = b.op("ReduceMax", b.op("Abs", groups), b.ints(-1), keepdims=1)
    tiny = b.op("Less", largest, b.const(2.0**-100))
    broken = b.op("Or", b.op("IsInf", largest), b.op("IsNaN", largest))
    unusable = b.op("Or", tiny, broken)
    safe = b.op("Where", unusable, b.const(1), largest)
    scaled = b.op("Mul", groups, b.op("Div", b.const(127), safe))
    whole = b.op("Round", b.op("Where", unusable, b.const(0), scaled))
    scale = b.op("Where", broken, b.const(np.nan), b.op("Div", safe, b.const(127)))
    scale = b.op("Where", tiny, b.const(0), scale)
    return b.cast(b.op("Reshape", whole, b.op("Shape", x)), I8), b.op("Squeeze", scale, b.ints(-1))


# Experts --------------------------------------------------------------------------------------


@fused("moe_route")
def moe_route(b: Builder, node: Node, logits: str) -> tuple[str, str]:
    op: Any = node.op
    values, ids = b.several("TopK", 2, b.op("Softmax", logits, axis=-1), b.ints(op.top_k))
    if op.renormalize:
        values = b.op("Div", values, b.op("ReduceSum", values, b.ints(-1), keepdims=1))
    return b.cast(ids, I32), values


def _chosen(b: Builder, x: str, w: str, ids: str, own: bool) -> str:
    """x [T, K] or [T, k, K] by the weights of the chosen experts: [T, k, N]."""
    rows = b.op("Unsqueeze", x, b.ints(2) if own else b.ints(1, 2))
    weights = b.op("Transpose", b.op("Gather", w, ids, axis=0), perm=[0, 1, 3, 2])
    return b.op("Squeeze", b.op("MatMul", rows, weights), b.ints(2))


@fused("expert_linear")
def expert_linear(b: Builder, node: Node, x: str, w: str, ids: str) -> str:
    y = _chosen(b, x, w, ids, node.inputs[0].type.rank == 3)
    return _rounded(b, y, _is_bf16(node))


@fused("expert_mlp")
def expert_mlp(
    b: Builder, node: Node, x: str, up: str, down: str, ids: str, weights: str, *rest: str
) -> str:
    gate, other = b.several("Split", 2, _chosen(b, x, up, ids, False), axis=-1, num_outputs=2)
    inner = b.op("Mul", activated(b, vars(node.op)["activation"], gate), other)
    outer = _chosen(b, inner, down, ids, True)
    scaled = b.op("Mul", outer, b.op("Unsqueeze", weights, b.ints(-1)))
    total = b.op("ReduceSum", scaled, b.ints(1), keepdims=0)
    total = b.op("Add", total, rest[0]) if rest else total
    return _rounded(b, total, _is_bf16(node))


# Positions ------------------------------------------------------------------------------------


@fused("rope_table")
def rope_table(b: Builder, node: Node, positions: str, frequencies: str) -> tuple[str, str]:
    column = b.op("Unsqueeze", b.cast(positions, F32), b.ints(1))
    angle = b.op("Mul", column, b.op("Unsqueeze", frequencies, b.ints(0)))
    scale = vars(node.op)["scale"]
    cos, sin = b.op("Cos", angle), b.op("Sin", angle)
    if scale == 1:
        return cos, sin
    return b.op("Mul", cos, b.const(scale)), b.op("Mul", sin, b.const(scale))


@fused("rope")
def rope(b: Builder, node: Node, x: str, cos: str, sin: str) -> str:
    pairs = int(node.inputs[1].type.shape[1])
    interleaved = bool(vars(node.op)["interleaved"])
    return rotated(b, x, cos, sin, pairs, int(node.inputs[0].type.shape[2]), interleaved)


def rotated(
    b: Builder, x: str, cos: str, sin: str, pairs: int, width: int, interleaved: bool
) -> str:
    """Pairs (i, i + R), or (2i, 2i + 1); what is left of a head passes through."""
    cos, sin = (b.op("Unsqueeze", t, b.ints(1)) for t in (cos, sin))

    def part(start: int, stop: int, step: int = 1) -> str:
        return b.op("Slice", x, b.ints(start), b.ints(stop), b.ints(2), b.ints(step))

    if interleaved:
        first, second = part(0, 2 * pairs, 2), part(1, 2 * pairs, 2)
    else:
        first, second = part(0, pairs), part(pairs, 2 * pairs)
    new_first = b.op("Sub", b.op("Mul", first, cos), b.op("Mul", second, sin))
    new_second = b.op("Add", b.op("Mul", second, cos), b.op("Mul", first, sin))
    if interleaved:
        both = [b.op("Unsqueeze", part, b.ints(3)) for part in (new_first, new_second)]
        turned = b.reshape(b.op("Concat", *both, axis=3), 0, 0, 2 * pairs)
    else:
        turned = b.op("Concat", new_first, new_second, axis=2)
    if width == 2 * pairs:
        return turned
    return b.op("Concat", turned, part(2 * pairs, width), axis=2)


# Attention ------------------------------------------------------------------------------------


def attended(b: Builder, op: Any, q: str, k: str, v: str, seen: str, sinks: tuple[str, ...]) -> str:
    """q [.., H, Tq, D], k and v [.., H, Tk, D], seen broadcast to the scores."""
    turned = b.op("Transpose", k, perm=[0, 1, 3, 2])
    scores = b.op("Mul", b.op("MatMul", q, turned), b.const(op.scale))
    if op.softcap is not None:
        cap = b.const(op.softcap)
        scores = b.op("Mul", b.op("Tanh", b.op("Div", scores, cap)), cap)
    scores = b.op("Where", seen, scores, b.const(-math.inf))
    if sinks:
        column = b.reshape(sinks[0], 1, -1, 1, 1)
        first = b.op("Slice", scores, b.ints(0), b.ints(1), b.ints(3))
        wide = b.op("Expand", column, b.op("Shape", first))
        scores = b.op("Concat", scores, wide, axis=3)
    weights = b.op("Softmax", scores, axis=-1)
    if sinks:
        weights = b.op("Slice", weights, b.ints(0), b.ints(-1), b.ints(3))
    return b.op("MatMul", weights, v)


def _repeated(b: Builder, x: str, groups: int, axis: int) -> str:
    """Each KV head for its query heads; x of rank 4."""
    if groups == 1:
        return x
    wide = b.op("Unsqueeze", x, b.ints(axis + 1))
    repeats = [groups if i == axis + 1 else 1 for i in range(5)]
    tiled = b.op("Tile", wide, b.ints(*repeats))
    shape = [0, 0, 0, 0]
    shape[axis] = -1
    if axis == 1:
        sizes = [b.size(x, 0), b.ints(-1), b.size(x, 2), b.size(x, 3)]
        return b.op("Reshape", tiled, b.op("Concat", *sizes, axis=0))
    sizes = [b.size(x, 0), b.size(x, 1), b.ints(-1), b.size(x, 3)]
    return b.op("Reshape", tiled, b.op("Concat", *sizes, axis=0))


def _visible(b: Builder, op: Any, queries: str, keys: str) -> str:
    """Key j for the query at position p: j <= p, and j > p - window."""
    seen = b.op("LessOrEqual", keys, queries)
    if op.window is not None:
        after = b.op("Greater", keys, b.op("Sub", queries, b.const(op.window, np.int64)))
        seen = b.op("And", seen, after)
    return seen


def _count_up(b: Builder, size: str) -> str:
    scalar = b.op("Squeeze", size, b.ints(0))
    return b.op("Range", b.const(0, np.int64), scalar, b.const(1, np.int64))


@fused("attention")
def attention(b: Builder, node: Node, q: str, k: str, v: str, *sinks: str) -> str:
    """As captured: all tokens of one call, [B, H, T, D] -> [B, T, H, D]."""
    op: Any = node.op
    groups = int(node.inputs[0].type.shape[1]) // int(node.inputs[1].type.shape[1])
    k, v = (_repeated(b, x, groups, 1) for x in (k, v))
    rows = b.op("Unsqueeze", _count_up(b, b.size(q, 2)), b.ints(1))
    columns = b.op("Unsqueeze", _count_up(b, b.size(k, 2)), b.ints(0))
    if op.causal:
        seen = _visible(b, op, rows, columns)
    else:
        seen = b.op("GreaterOrEqual", b.op("Add", rows, columns), b.const(0, np.int64))
        if op.window is not None:
            lowest = b.op("Sub", rows, b.const(op.window, np.int64))
            seen = b.op("Greater", columns, lowest)
    y = attended(b, op, q, k, v, seen, tuple(b.op("Unsqueeze", s, b.ints(0)) for s in sinks))
    return b.op("Transpose", y, perm=[0, 2, 1, 3])


def _stored(b: Builder, op: Any, state: str, k: str, v: str, slots: str) -> str:
    """The state with k and v of some tokens written at their slots of one layer."""
    if op.kv_dtype == BF16:
        k, v = (_rounded(b, x, True) for x in (k, v))
    layer = b.op("Unsqueeze", b.op("Mul", slots, b.like(0, slots)), b.ints(1))
    layer = b.op("Add", b.op("Cast", layer, to=7), b.const(op.layer, np.int64))
    column = b.op("Cast", b.op("Unsqueeze", slots, b.ints(1)), to=7)
    for side, value in ((0, k), (1, v)):
        which = b.op("Add", b.op("Mul", layer, b.const(0, np.int64)), b.const(side, np.int64))
        places = b.op("Concat", layer, which, column, axis=1)
        state = b.op("ScatterND", state, places, b.op("CastLike", value, state))
    return state


@fused("write_kv")
def write_kv(b: Builder, node: Node, state: str, k: str, v: str, slots: str) -> str:
    return _stored(b, node.op, state, k, v, slots)


@fused("rope_write_kv")
def rope_write_kv(
    b: Builder, node: Node, qkv: str, cos: str, sin: str, state: str, slots: str, *norms: str
) -> tuple[str, str]:
    op: Any = node.op
    kv_heads, width = (int(d) for d in node.inputs[3].type.shape[3:])
    heads = b.reshape(qkv, 0, -1, width)
    sizes = b.ints(op.heads, kv_heads, kv_heads)
    q, k, v = b.several("Split", 3, heads, sizes, axis=1)
    if op.eps is not None:
        q, k = (b.op("Mul", _rms(b, x, op.eps), w) for x, w in zip((q, k), norms, strict=True))
    pairs = int(node.inputs[1].type.shape[1])
    q, k = (rotated(b, x, cos, sin, pairs, width, op.interleaved) for x in (q, k))
    return _rounded(b, q, _is_bf16(node)), _stored(b, op, state, k, v, slots)


@fused("paged_attention")
def paged_attention(
    b: Builder, node: Node, q: str, state: str, starts: str, lengths: str, pages: str, *sinks: str
) -> str:
    """Each query by itself over all keys of its sequence's pages; rows past the last are zeros."""
    op: Any = node.op
    heads, kv_heads = int(node.inputs[0].type.shape[1]), int(node.inputs[1].type.shape[3])
    starts, lengths, pages = (b.op("Cast", x, to=7) for x in (starts, lengths, pages))
    rows = b.op("Unsqueeze", _count_up(b, b.size(q, 0)), b.ints(1))
    ends = b.op("Slice", starts, b.ints(1), b.ints(1 << 30), b.ints(0))
    begun = b.op("Cast", b.op("GreaterOrEqual", rows, b.op("Unsqueeze", ends, b.ints(0))), to=7)
    sequence = b.op("ReduceSum", begun, b.ints(1), keepdims=0)
    last = b.op("Sub", b.size(lengths, 0), b.ints(1))
    inside = b.op("LessOrEqual", sequence, last)
    sequence = b.op("Min", sequence, last)
    from_end = b.op("Sub", b.op("Gather", ends, sequence), b.op("Squeeze", rows, b.ints(1)))
    positions = b.op("Sub", b.op("Gather", lengths, sequence), from_end)
    own = b.op("Gather", pages, sequence)
    offsets = b.const(np.arange(op.page_size), np.int64)
    first = b.op("Mul", b.op("Unsqueeze", own, b.ints(2)), b.const(op.page_size, np.int64))
    slots = b.op("Flatten", b.op("Add", first, offsets), axis=1)
    keys = b.op("Unsqueeze", _count_up(b, b.size(slots, 1)), b.ints(0))
    seen = _visible(b, op, b.op("Unsqueeze", positions, b.ints(1)), keys)
    seen = b.op("Unsqueeze", seen, b.ints(1, 2))
    k, v = (_keys_of(b, op, state, side, slots, heads // kv_heads) for side in (0, 1))
    query = b.op("Unsqueeze", _rounded(b, q, op.products == BF16), b.ints(2))
    sink = tuple(b.op("Unsqueeze", s, b.ints(0)) for s in sinks)
    y = b.op("Squeeze", attended(b, op, query, k, v, seen, sink), b.ints(2))
    shown = b.op("Unsqueeze", inside, b.ints(1, 2))
    return _rounded(b, b.op("Where", shown, y, b.const(0)), _is_bf16(node))


def _keys_of(b: Builder, op: Any, state: str, side: int, slots: str, groups: int) -> str:
    """[T, H, keys, D]: keys or values of one layer, by the slots of each query."""
    layer = b.op("Gather", state, b.const(op.layer, np.int64), axis=0)
    values = b.op("Gather", b.op("Gather", layer, b.const(side, np.int64), axis=0), slots, axis=0)
    turned = b.op("Transpose", b.op("Cast", values, to=1), perm=[0, 2, 1, 3])
    return _repeated(b, turned, groups, 1)
