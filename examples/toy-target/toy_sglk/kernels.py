"""The chip's kernels: NumPy functions on flat arrays, by the names that `backend.py` launches.

An argument that is memory arrives as a flat view of it, from the argument's offset to the end of
its buffer; numbers arrive as numbers, constants by name. A kernel writes its results in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def embedding(table: Floats, ids: Ints, y: Floats, *, K: int) -> None:
    y.reshape(-1, K)[:] = table.reshape(-1, K)[ids]


def linear(x: Floats, w: Floats, y: Floats, *, K: int) -> None:
    y[:] = (x.reshape(-1, K) @ w.reshape(-1, K).T).reshape(-1)


def rmsnorm(x: Floats, w: Floats, y: Floats, eps: float, *, K: int) -> None:
    rows = x.reshape(-1, K)
    scale = 1 / np.sqrt(np.mean(rows * rows, -1, keepdims=True) + np.float32(eps))
    y.reshape(-1, K)[:] = rows * scale * w


def add(a: Floats, b: Floats, y: Floats) -> None:
    np.add(a, b, out=y)


def mul(a: Floats, b: Floats, y: Floats) -> None:
    np.multiply(a, b, out=y)


def silu(x: Floats, y: Floats) -> None:
    with np.errstate(over="ignore"):
        y[:] = x / (1 + np.exp(-x))


def columns(x: Floats, y: Floats, *, K: int, START: int, STOP: int) -> None:
    """Columns START to STOP of rows of K."""
    y.reshape(-1, STOP - START)[:] = x.reshape(-1, K)[:, START:STOP]


def rope_table(positions: Ints, inv_freq: Floats, cos: Floats, sin: Floats, scale: float) -> None:
    angle = (positions.astype(np.float32)[:, None] * inv_freq).astype(np.float64)
    cos[:] = (np.cos(angle).astype(np.float32) * np.float32(scale)).reshape(-1)
    sin[:] = (np.sin(angle).astype(np.float32) * np.float32(scale)).reshape(-1)


def rope(
    x: Floats, cos: Floats, sin: Floats, y: Floats,
    *, HEADS: int, D: int, PAIRS: int, INTERLEAVED: bool,
) -> None:  # fmt: skip
    heads, result = x.reshape(-1, HEADS, D), y.reshape(-1, HEADS, D)
    c, s = (t.reshape(-1, 1, PAIRS) for t in (cos, sin))
    first = slice(0, 2 * PAIRS, 2) if INTERLEAVED else slice(0, PAIRS)
    second = slice(1, 2 * PAIRS, 2) if INTERLEAVED else slice(PAIRS, 2 * PAIRS)
    result[:] = heads
    result[..., first] = heads[..., first] * c - heads[..., second] * s
    result[..., second] = heads[..., second] * c + heads[..., first] * s


def write_kv(
    k: Floats, v: Floats, slots: Ints, cache: Floats, *, LAYER: int, LAYERS: int, HEADS: int, D: int
) -> None:
    """The chip's layout of a cache: [layers, K or V, slots, heads, D]."""
    pages = cache.reshape(LAYERS, 2, -1, HEADS, D)
    pages[LAYER, 0, slots] = k.reshape(-1, HEADS, D)
    pages[LAYER, 1, slots] = v.reshape(-1, HEADS, D)


def paged_attention(
    q: Floats, cache: Floats, query_start: Ints, seq_lens: Ints, page_table: Ints, y: Floats,
    scale: float, sinks: Floats | None = None,
    *, LAYER: int, LAYERS: int, HEADS: int, KV_HEADS: int, D: int, PAGE: int, WINDOW: int,
    SOFTCAP: float,
) -> None:  # fmt: skip
    """Each sequence by itself: its last rows of q over the keys in its pages."""
    queries, result = q.reshape(-1, HEADS, D), y.reshape(-1, HEADS, D)
    keys, values = cache.reshape(LAYERS, 2, -1, KV_HEADS, D)[LAYER]
    table = page_table.reshape(len(seq_lens), -1)
    result[query_start[-1] :] = 0  # padding
    for number, length in enumerate(seq_lens):
        rows = slice(query_start[number], query_start[number + 1])
        places = np.arange(length)
        slots = table[number][places // PAGE] * PAGE + places % PAGE
        at = np.arange(length - (rows.stop - rows.start), length)[:, None]
        seen = (places <= at) & (places > at - (WINDOW or length + 1))
        k, v = (np.repeat(c[slots], HEADS // KV_HEADS, axis=1) for c in (keys, values))
        scores = np.einsum("qhd,khd->hqk", queries[rows], k) * np.float32(scale)
        if SOFTCAP:
            scores = np.float32(SOFTCAP) * np.tanh(scores / np.float32(SOFTCAP))
        scores = np.where(seen, scores, -np.inf)
        result[rows] = np.einsum("hqk,khd->qhd", _softmax(scores, sinks), v)


def _softmax(scores: Floats, sinks: Floats | None) -> Floats:
    """Over the keys; a sink is one more score that carries no value."""
    top = scores.max(-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    return np.asarray(weights / total, np.float32)


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        embedding, linear, rmsnorm, add, mul, silu, columns, rope_table, rope, write_kv,
        paged_attention,
    )
}  # fmt: skip
