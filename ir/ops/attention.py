"""Attention: as captured, and over pages of a KV state.

A KV state has the logical type ``dtype[layers, 2, slots, kv_heads, head_dim]``; index 1 of the
second axis is V. slot = page * page_size + offset. Its physical layout belongs to the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import sympy

from ..dim import Dim, as_dim, dim
from ..dtype import BF16, F32, DType, round_bf16
from ..op import Array, Cost, Op, expect
from ..types import TensorType
from .norm import rms
from .rope import check_tables, rotate


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    visible: np.ndarray,
    scale: float,
    softcap: float | None,
    sinks: np.ndarray | None,
) -> np.ndarray:
    """One sequence in f64. q [Tq, H, D], k, v [Tk, KVH, D], visible [Tq, Tk] -> [Tq, H, D] like q.

    ``softcap`` bounds scores by softcap * tanh(score / softcap) (Gemma 2); ``sinks`` [H] are logits
    that join the softmax and carry no value (gpt-oss).
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), groups, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(visible[None], scores, -np.inf)
    top = np.max(scores, -1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks.astype(np.float64)[:, None, None])
    weights = np.exp(scores - top)
    total = np.sum(weights, -1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64)[:, None, None] - top)
    return np.asarray(np.einsum("hqk,khd->qhd", weights / total, v), q.dtype)


def visible_keys(
    query_positions: np.ndarray, num_keys: int, causal: bool, window: int | None
) -> np.ndarray:
    """[Tq, Tk] truth: key j is seen by the query at position p if j <= p and j > p - window."""
    q, k = query_positions[:, None], np.arange(num_keys)[None, :]
    seen = np.ones((len(query_positions), num_keys), bool)
    if causal:
        seen &= k <= q
    if window is not None:
        seen &= k > q - window
    return seen


def _check_heads(where: str, heads: Dim, kv_heads: Dim, sinks: tuple[TensorType, ...]) -> None:
    """Each KV head serves an equal share of the query heads; each query head may have a sink."""
    known = isinstance(heads, int) and isinstance(kv_heads, int)
    expect(
        not known or (kv_heads > 0 and heads % kv_heads == 0),
        f"{where}: expected heads in equal groups over {kv_heads} KV heads, got {heads}",
    )
    for sink in sinks:
        expect(sink.shape == (heads,), f"{where}: expected sinks [{heads}], got {sink}")


@dataclass(frozen=True)
class Attention(Op):
    """As captured: (q [B, H, T, D], k [B, KVH, T, D], v, [sinks [H]]) -> [B, T, H, D], all tokens
    of one call."""

    scale: float
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    name: ClassVar[str] = "attention"

    def infer(
        self, q: TensorType, k: TensorType, v: TensorType, *sinks: TensorType
    ) -> tuple[TensorType, ...]:
        good = (
            q.rank == k.rank == v.rank == 4
            and q.shape[0] == k.shape[0]
            and q.shape[3] == k.shape[3]
            and k.shape[:3] == v.shape[:3]
            and q.dtype == k.dtype == v.dtype
        )
        expect(
            good, f"attention: expected q [B, H, T, D] and k, v [B, KVH, T, D], got {q}, {k}, {v}"
        )
        expect(len(sinks) == self.has_sinks, f"attention: got {len(sinks)} sink operands")
        expect(self.window is None or self.window > 0, f"attention: window {self.window}?")
        batch, heads, tokens, _ = q.shape
        expect(
            not self.causal or k.shape[2] == tokens,
            f"attention: expected as many keys as queries when causal, got {q} and {k}",
        )
        _check_heads("attention", heads, k.shape[1], sinks)
        return (q.with_shape(batch, tokens, heads, v.shape[3]),)

    def reference(self, q: Array, k: Array, v: Array, *sinks: Array) -> Array:
        seen = visible_keys(np.arange(q.shape[2]), k.shape[2], self.causal, self.window)
        q, k, v = (np.swapaxes(x, 1, 2) for x in (q, k, v))
        sink = sinks[0] if sinks else None
        rows = zip(q, k, v, strict=True)
        return np.stack([attend(*row, seen, self.scale, self.softcap, sink) for row in rows])

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        q, k, *_ = inputs
        moved = sum((t.bytes for t in (*inputs, *outputs)), start=0)
        return Cost(as_dim(4 * q.size * k.shape[2]), as_dim(moved))


def _store(
    op: WriteKv | RopeWriteKv, state: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray
) -> np.ndarray:
    if op.kv_dtype == BF16:
        k, v = round_bf16(k), round_bf16(v)
    layer, state = op.layer, state.copy()
    state[layer, 0, slots] = k
    state[layer, 1, slots] = v
    return state


def _check_state(where: str, state: TensorType, layer: int) -> None:
    good = state.rank == 5 and state.shape[1] == 2 and layer >= 0
    good = good and (not isinstance(state.shape[0], int) or layer < state.shape[0])
    expect(
        good,
        f"{where}: expected a state [layers, 2, slots, kv_heads, head_dim] with layer {layer},"
        f" got {state}",
    )


@dataclass(frozen=True)
class WriteKv(Op):
    """(state, k [T, KVH, D], v [T, KVH, D], slots i32[T]) -> state with those slots of ``layer``
    replaced.

    k and v are rounded to ``kv_dtype``, the state's element type.
    """

    layer: int
    kv_dtype: DType = F32
    name: ClassVar[str] = "write_kv"

    def infer(
        self, state: TensorType, k: TensorType, v: TensorType, slots: TensorType
    ) -> tuple[TensorType, ...]:
        _check_state("write_kv", state, self.layer)
        good = (
            k == v
            and k.shape[1:] == state.shape[3:]
            and slots.shape == k.shape[:1]
            and slots.dtype.is_integer
        )
        expect(
            good, f"write_kv: expected k, v [T, KVH, D] for {state}, got {k}, {v}, slots {slots}"
        )
        expect(
            state.dtype == self.kv_dtype, f"write_kv: expected a {self.kv_dtype} state, got {state}"
        )
        return (state,)

    def reference(self, state: Array, k: Array, v: Array, slots: Array) -> Array:
        return _store(self, state, k, v, slots)

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """Only the slots that are written are moved."""
        state, k, v, slots = inputs
        written = k.with_dtype(state.dtype).bytes + v.with_dtype(state.dtype).bytes
        return Cost(0, as_dim(k.bytes + v.bytes + slots.bytes + written))


@dataclass(frozen=True)
class RopeWriteKv(Op):
    """(qkv [T, (H + 2 KVH) D], cos [T, R], sin [T, R], state, slots, [q_norm f32[D], k_norm
    f32[D]]) -> (q [T, H, D], state').

    Splits the fused projection, rotates q and k, and writes k and v at ``slots`` of ``layer``.
    With ``eps``, heads of q and k go through an RMS norm with the weights at the end before they
    rotate; nothing is rounded in between.
    """

    heads: int
    layer: int
    kv_dtype: DType = F32
    interleaved: bool = False
    eps: float | None = None
    name: ClassVar[str] = "rope_write_kv"

    def infer(
        self,
        qkv: TensorType,
        cos: TensorType,
        sin: TensorType,
        state: TensorType,
        slots: TensorType,
        *norms: TensorType,
    ) -> tuple[TensorType, ...]:
        expect(
            state.dtype == self.kv_dtype,
            f"rope_write_kv: expected a {self.kv_dtype} state, got {state}",
        )
        _check_state("rope_write_kv", state, self.layer)
        expect(qkv.rank == 2, f"rope_write_kv: expected qkv [T, N], got {qkv}")
        kv_heads, head_dim = state.shape[3:]
        width = as_dim((self.heads + 2 * kv_heads) * head_dim)
        good = qkv.shape[1] == width and slots.shape == qkv.shape[:1] and slots.dtype.is_integer
        expect(good, f"rope_write_kv: expected qkv [T, {width}], got {qkv}, {cos}, {sin}, {slots}")
        check_tables("rope_write_kv", head_dim, qkv, cos, sin)
        wanted = [] if self.eps is None else [TensorType(F32, (head_dim,))] * 2
        expect(list(norms) == wanted, f"rope_write_kv: expected norms {wanted}, got {norms}")
        return (qkv.with_shape(qkv.shape[0], self.heads, head_dim), state)

    def reference(
        self, qkv: Array, cos: Array, sin: Array, state: Array, slots: Array, *norms: Array
    ) -> tuple[Array, ...]:
        kv_heads, head_dim = state.shape[3:]
        heads = qkv.reshape(len(qkv), -1, head_dim)
        q, k, v = np.split(heads, [self.heads, self.heads + kv_heads], axis=1)
        if self.eps is not None:
            pairs = zip((q, k), norms, strict=True)
            q, k = ((rms(x, float(self.eps)) * w).astype(x.dtype) for x, w in pairs)
        q, k = (rotate(x, cos, sin, self.interleaved) for x in (q, k))
        return q, _store(self, state, k, v, slots)

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """Three operations per rotated element; only the slots that are written are moved."""
        qkv, cos, sin, state, slots = inputs[:5]
        _, _, _, kv_heads, width = state.shape
        kv = state.with_shape(qkv.shape[0], kv_heads, width)
        read = qkv.bytes + cos.bytes + sin.bytes + slots.bytes
        flops = 3 * (outputs[0].size + kv.size)
        return Cost(as_dim(flops), as_dim(read + outputs[0].bytes + 2 * kv.bytes))


@dataclass(frozen=True)
class PagedAttention(Op):
    """(q [T, H, D], state, query_start i32[S+1], seq_lens i32[S], page_table i32[S, P], [sinks]) ->
    [T, H, D].

    Rows query_start[s] up to query_start[s+1] are the last ones of sequence s, which has
    seq_lens[s] keys in its pages. Causal. Rows past query_start[S] are padding and give zeros.
    ``products``: the type that q is rounded to, and that the softmax's weights may be rounded to.
    """

    layer: int
    scale: float
    page_size: int
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    products: DType = F32
    name: ClassVar[str] = "paged_attention"

    def infer(
        self,
        q: TensorType,
        state: TensorType,
        query_start: TensorType,
        seq_lens: TensorType,
        page_table: TensorType,
        *sinks: TensorType,
    ) -> tuple[TensorType, ...]:
        _check_state("paged_attention", state, self.layer)
        good = q.rank == 3 and q.shape[2] == state.shape[4] and self.page_size > 0
        expect(good, f"paged_attention: expected q [T, H, D] for the state, got {q} and {state}")
        good = page_table.rank == 2 and seq_lens.rank == query_start.rank == 1
        good = good and page_table.shape[:1] == seq_lens.shape
        good = good and query_start.shape[0] == as_dim(sympy.sympify(seq_lens.shape[0]) + 1)
        good = good and all(t.dtype.is_integer for t in (query_start, seq_lens, page_table))
        expect(
            good,
            "paged_attention: expected integers query_start [S+1], seq_lens [S], page_table [S, P],"
            f" got {query_start}, {seq_lens}, {page_table}",
        )
        expect(len(sinks) == self.has_sinks, f"paged_attention: got {len(sinks)} sink operands")
        expect(self.window is None or self.window > 0, f"paged_attention: window {self.window}?")
        _check_heads("paged_attention", q.shape[1], state.shape[3], sinks)
        return (q,)

    def reference(
        self,
        q: Array,
        state: Array,
        query_start: Array,
        seq_lens: Array,
        page_table: Array,
        *sinks: Array,
    ) -> Array:
        result = np.zeros_like(q)
        q = round_bf16(q) if self.products == BF16 else q
        for s, length in enumerate(seq_lens):
            rows = slice(int(query_start[s]), int(query_start[s + 1]))
            keys = np.arange(length)
            slots = page_table[s][keys // self.page_size] * self.page_size + keys % self.page_size
            positions = np.arange(length - (rows.stop - rows.start), length)
            seen = visible_keys(positions, int(length), True, self.window)
            k, v = state[self.layer, 0, slots], state[self.layer, 1, slots]
            if rows.stop > rows.start:
                sink = sinks[0] if sinks else None
                result[rows] = attend(q[rows], k, v, seen, self.scale, self.softcap, sink)
        return result

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """Keys seen per query are bounded by the page table's width."""
        q, state, _, _, page_table, *_ = inputs
        keys = page_table.shape[1] * self.page_size
        row = state.shape[3] * state.shape[4] * 2 * int(state.dtype.bits // 8)
        moved = q.bytes + outputs[0].bytes + page_table.shape[0] * keys * row
        return Cost(as_dim(4 * q.size * keys), as_dim(moved))


SLOTS = dim("kv_slots")
"""Slots of a KV state: pages times page size, known when the artifact is loaded."""
