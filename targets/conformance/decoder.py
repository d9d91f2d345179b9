"""Small decoders in captured form, and what their logits must be.

The reference is the captured graph on NumPy, each sequence whole: it knows nothing of pages,
chunks, fusion or kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...ir.dim import dim
from ...ir.dtype import F32, I32
from ...ir.graph import Graph, Value
from ...ir.interpret import interpret
from ...ir.op import Array
from ...ir.ops.attention import Attention
from ...ir.ops.elementwise import Add, Mul, Silu
from ...ir.ops.linear import Linear
from ...ir.ops.norm import RmsNorm
from ...ir.ops.rope import Rope, RopeTable
from ...ir.ops.shape import Reshape, Transpose
from ...ir.ops.sparse import Embedding
from ...ir.rewrite import clone
from ...ir.types import TensorType

T = dim("tokens")


@dataclass(frozen=True)
class Shape:
    """Sizes and attention of a decoder of the Llama kind."""

    name: str
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    pairs: int = 16
    """Rotated pairs of a head; half of head_dim: all of it rotates."""
    interleaved: bool = False
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    head_norms: bool = False
    """Whether heads of q and k go through a norm of their own before they rotate (Qwen3)."""
    layers: int = 2
    hidden: int = 64
    inner: int = 128
    vocab: int = 96


SHAPES = (
    Shape("grouped heads"),
    Shape("a KV head for each head", heads=2, kv_heads=2, head_dim=64, pairs=32),
    Shape("one KV head, half of a head rotates", heads=3, kv_heads=1, pairs=8),
    Shape("window, soft cap and sinks", window=24, softcap=20.0, has_sinks=True),
    Shape("interleaved rotation", interleaved=True, layers=1),
)


def decoder_graph(shape: Shape) -> Graph:
    """(token_ids i32[1, tokens], position_ids) -> logits f32[1, tokens, vocab], a tied head."""
    return _Maker(shape).make()


class _Maker:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.graph = Graph("conformance")

    def make(self) -> Graph:
        g, shape = self.graph, self.shape
        ids, positions = (
            g.input(name, TensorType(I32, (1, T))) for name in ("token_ids", "position_ids")
        )
        table = self._param("embed", shape.vocab, shape.hidden)
        steps = np.arange(shape.pairs) / shape.pairs
        frequencies = (1e4**-steps).astype(np.float32)
        inv_freq = g.const(frequencies, TensorType(F32, frequencies.shape), "inv_freq")
        flat = g.emit(Reshape((T,)), positions)
        cos, sin = g.append(RopeTable(), flat, inv_freq)
        h = g.emit(Embedding(), table, ids)
        for layer in range(shape.layers):
            h = self._layer(f"layers.{layer}", h, cos, sin)
        h = g.emit(RmsNorm(1e-5), h, self._param("norm", shape.hidden))
        g.outputs = [g.emit(Linear(), h, table)]
        return g

    def _param(self, name: str, *shape: int) -> Value:
        return self.graph.param(name, TensorType(F32, shape))

    def _layer(self, name: str, h: Value, cos: Value, sin: Value) -> Value:
        g, hidden, inner = self.graph, self.shape.hidden, self.shape.inner
        x = g.emit(RmsNorm(1e-5), h, self._param(f"{name}.norm1", hidden))
        h = g.emit(Add(), h, self._attention(name, x, cos, sin))
        x = g.emit(RmsNorm(1e-5), h, self._param(f"{name}.norm2", hidden))
        gate = g.emit(Linear(), x, self._param(f"{name}.gate", inner, hidden))
        up = g.emit(Linear(), x, self._param(f"{name}.up", inner, hidden))
        product = g.emit(Mul(), g.emit(Silu(), gate), up)
        down = self._param(f"{name}.down", hidden, inner)
        return g.emit(Add(), h, g.emit(Linear(), product, down))

    def _attention(self, name: str, x: Value, cos: Value, sin: Value) -> Value:
        g, shape = self.graph, self.shape
        q = self._heads(f"{name}.q", x, shape.heads, (cos, sin))
        k = self._heads(f"{name}.k", x, shape.kv_heads, (cos, sin))
        v = self._heads(f"{name}.v", x, shape.kv_heads, None)
        sinks = [self._param(f"{name}.sinks", shape.heads)] if shape.has_sinks else []
        op = Attention(
            shape.head_dim**-0.5,
            window=shape.window,
            softcap=shape.softcap,
            has_sinks=shape.has_sinks,
        )
        width = shape.heads * shape.head_dim
        y = g.emit(Reshape((1, T, width)), g.emit(op, q, k, v, *sinks))
        return g.emit(Linear(), y, self._param(f"{name}.o", shape.hidden, width))

    def _heads(self, name: str, x: Value, heads: int, tables: tuple[Value, Value] | None) -> Value:
        """[1, heads, tokens, head_dim] of one projection, rotated if tables are given."""
        g, width = self.graph, self.shape.head_dim
        y = g.emit(Linear(), x, self._param(name, heads * width, self.shape.hidden))
        if tables is not None:
            flat = g.emit(Reshape((T, heads, width)), y)
            if self.shape.head_norms:
                flat = g.emit(RmsNorm(1e-5), flat, self._param(f"{name}_norm", width))
            y = g.emit(Rope(self.shape.interleaved), flat, *tables)
        y = g.emit(Reshape((1, T, heads, width)), y)
        return g.emit(Transpose((0, 2, 1, 3)), y)


def random_params(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Weights that keep values near 1 through the layers; norms near 1."""
    rng = np.random.default_rng(seed)
    return {v.name: _random(v, rng) for v in graph.params}


def _random(value: Value, rng: np.random.Generator) -> Array:
    shape = value.type.concrete({})
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return (rng.standard_normal(shape) * (2 / shape[1]) ** 0.5).astype(np.float32)


@dataclass
class Reference:
    """Logits of whole sequences by the captured graph; each is computed once."""

    graph: Graph
    params: Mapping[str, Array]
    known: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)

    def logits(self, tokens: tuple[int, ...]) -> np.ndarray:
        """f32 [tokens, vocab]; a prefix of a known sequence has the same rows, being causal."""
        for other, rows in self.known.items():
            if other[: len(tokens)] == tokens:
                return rows[: len(tokens)]
        ids = np.array(tokens, np.int32)[None]
        inputs = {"token_ids": ids, "position_ids": np.arange(ids.size, dtype=np.int32)[None]}
        (logits,) = interpret(clone(self.graph, {"tokens": ids.size}), inputs, self.params)
        self.known[tokens] = np.asarray(logits[0], np.float32)
        return self.known[tokens]
