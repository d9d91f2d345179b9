"""A small Llama step graph, built by hand: what the pass pipeline ends with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sglk.ir.dim import dim
from sglk.ir.dtype import F32, I32, DType
from sglk.ir.graph import Graph, Value
from sglk.ir.ops.attention import SLOTS, PagedAttention, RopeWriteKv
from sglk.ir.ops.linear import GatedLinear, Linear
from sglk.ir.ops.norm import RmsNorm
from sglk.ir.ops.rope import RopeTable
from sglk.ir.ops.shape import Reshape
from sglk.ir.ops.sparse import Embedding, GatherRows
from sglk.ir.types import TensorType

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 64, 3, 1, 32, 128, 96
T, S, P, L = dim("tokens"), dim("seqs"), dim("pages"), dim("rows")
INPUTS = {
    "token_ids": (T,),
    "positions": (T,),
    "slots": (T,),
    "query_start": (S + 1,),
    "seq_lens": (S,),
    "page_table": (S, P),
    "logit_rows": (L,),
}
MakeStep = Callable[..., Graph]


def make_step(layers: int = 2, weight: DType = F32, kv: DType = F32, page_size: int = 32) -> Graph:
    """Embedding, ``layers`` decoder layers, tied head."""
    g = Graph("step")
    inputs = {name: g.input(name, TensorType(I32, shape)) for name, shape in INPUTS.items()}
    state = g.state("kv", TensorType(kv, (layers, 2, SLOTS, KV_HEADS, HEAD_DIM)))
    table = g.param("embed", TensorType(weight, (VOCAB, HIDDEN)))
    frequencies = (1e4 ** -(np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))).astype(np.float32)
    inv_freq = g.const(frequencies, TensorType(F32, frequencies.shape), "inv_freq")
    cos, sin = g.append(RopeTable(), inputs["positions"], inv_freq)
    h = g.emit(Embedding(), table, inputs["token_ids"])
    for layer in range(layers):
        h, state = _layer(g, layer, h, state, cos, sin, inputs, weight, page_size)
    h = g.emit(GatherRows(), h, inputs["logit_rows"])
    h = g.emit(RmsNorm(1e-5), h, g.param("norm", TensorType(F32, (HIDDEN,))))
    g.outputs = [g.emit(Linear(), h, table)]
    return g


def _layer(
    g: Graph,
    layer: int,
    h: Value,
    state: Value,
    cos: Value,
    sin: Value,
    inputs: dict[str, Value],
    weight: DType,
    page_size: int,
) -> tuple[Value, Value]:
    def param(name: str, dtype: DType, *shape: int) -> Value:
        return g.param(f"layers.{layer}.{name}", TensorType(dtype, shape))

    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    x = g.emit(RmsNorm(1e-5), h, param("norm1", F32, HIDDEN))
    qkv = g.emit(Linear(), x, param("qkv", weight, width, HIDDEN))
    rope = RopeWriteKv(HEADS, layer, kv_dtype=state.type.dtype)
    q, state = g.append(rope, qkv, cos, sin, state, inputs["slots"])
    attention = PagedAttention(layer, HEAD_DIM**-0.5, page_size)
    operands = (inputs[n] for n in ("query_start", "seq_lens", "page_table"))
    a = g.emit(attention, q, state, *operands)
    a = g.emit(Reshape((T, HEADS * HEAD_DIM)), a)
    o = param("o", weight, HIDDEN, HEADS * HEAD_DIM)
    h = g.emit(Linear(has_residual=True), a, o, h)
    x = g.emit(RmsNorm(1e-5), h, param("norm2", F32, HIDDEN))
    x = g.emit(GatedLinear("silu"), x, param("gate_up", weight, 2 * FFN, HIDDEN))
    h = g.emit(Linear(has_residual=True), x, param("down", weight, HIDDEN, FFN), h)
    return h, state


@pytest.fixture
def llama_step() -> MakeStep:
    """``llama_step(layers=2, weight=F32, kv=F32)`` gives a step graph."""
    return make_step
