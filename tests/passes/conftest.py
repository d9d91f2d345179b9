"""Captured-form models for pass tests, written out as the frontend makes them from transformers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sglk.ir.dim import Dim, dim
from sglk.ir.dtype import BF16, F32, I32, Q4_1, Q8_0
from sglk.ir.graph import Graph, Value
from sglk.ir.interpret import interpret
from sglk.ir.op import Op
from sglk.ir.ops.attention import Attention
from sglk.ir.ops.elementwise import Add, Cast, Cos, Mul, Neg, Pow, Rsqrt, Silu, Sin
from sglk.ir.ops.linear import Linear
from sglk.ir.ops.reduce import Mean
from sglk.ir.ops.shape import Concat, Reshape, Slice, Transpose
from sglk.ir.ops.sparse import Embedding
from sglk.ir.parser import parse_graph
from sglk.ir.rewrite import clone
from sglk.ir.target import MemoryLevel, Target, Unit
from sglk.ir.testing import assert_close, assert_same_numbers, random_array
from sglk.ir.types import TensorType
from sglk.ir.verify import verify
from sglk.passes.opt import parse_pipeline
from sglk.passes.pipeline import run_pipeline

T = dim("tokens")


@dataclasses.dataclass
class LlamaBuilder:
    """transformers' modeling_llama.py in core ops, one request."""

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    ffn: int = 64
    vocab: int = 11
    bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        self.graph = Graph("tiny_llama")

    def __call__(self, op: Op, *inputs: Value) -> Value:
        return self.graph.emit(op, *inputs, source="modeling_llama.py:1")

    def param(self, name: str, *shape: Dim) -> Value:
        return self.graph.param(name, TensorType(F32, shape))

    def number(self, x: float) -> Value:
        return self.graph.const(np.array(x, np.float32), TensorType(F32, ()))

    def build(self) -> Graph:
        ids = self.graph.input("token_ids", TensorType(I32, (1, T)))
        positions = self.graph.input("position_ids", TensorType(I32, (1, T)))
        x = self(Embedding(), self.param("embed", self.vocab, self.hidden), ids)
        cos, sin = self.rotary(positions)
        for i in range(self.layers):
            x = self.layer(f"layers.{i}.", x, cos, sin)
        x = self.norm("norm", x, self.hidden)
        logits = self(Linear(), x, self.param("lm_head", self.vocab, self.hidden))
        self.graph.outputs = [logits]
        return self.graph

    def rotary(self, positions: Value) -> tuple[Value, Value]:
        half = self.head_dim // 2
        frequencies = (1 / 10000 ** (np.arange(half) / half)).astype(np.float32)
        inv_freq = self.graph.const(frequencies, TensorType(F32, (half,)), "inv_freq")
        angle = self(Cast(F32), self(Reshape((1, T, 1)), positions))
        freqs = self(Mul(), angle, inv_freq)
        both = self(Concat(2), freqs, freqs)
        cos, sin = (self(Mul(), self(op, both), self.number(1.0)) for op in (Cos(), Sin()))
        return cos, sin

    def layer(self, name: str, x: Value, cos: Value, sin: Value) -> Value:
        h = self.norm(name + "input_layernorm", x, self.hidden)
        x = self(Add(), x, self.attention(name + "self_attn.", h, cos, sin))
        h = self.norm(name + "post_attention_layernorm", x, self.hidden)
        gate = self(Silu(), self.linear(name + "gate", h, self.ffn, self.hidden))
        up = self.linear(name + "up", h, self.ffn, self.hidden)
        return self(
            Add(), x, self.linear(name + "down", self(Mul(), gate, up), self.hidden, self.ffn)
        )

    def norm(self, name: str, x: Value, width: int) -> Value:
        wide = self(Cast(F32), x)
        mean = self(Mean(-1, keepdim=True), self(Pow(), wide, self.number(2.0)))
        root = self(Rsqrt(), self(Add(), mean, self.number(1e-5)))
        normed = self(Cast(F32), self(Mul(), wide, root))
        return self(Mul(), self.param(name + ".weight", width), normed)

    def linear(self, name: str, x: Value, rows: int, columns: int, bias: bool = False) -> Value:
        y = self(Linear(), x, self.param(name + ".weight", rows, columns))
        return self(Add(), y, self.param(name + ".bias", rows)) if bias else y

    def attention(self, name: str, x: Value, cos: Value, sin: Value) -> Value:
        q = self.project(name + "q", x, self.heads)
        k = self.project(name + "k", x, self.kv_heads)
        v = self.turn(self.heads_of(name + "v", x, self.kv_heads))
        q, k = (self.rotate(y, cos, sin) for y in (q, k))
        a = self(Attention(self.head_dim**-0.5), q, k, v)
        a = self(Reshape((1, T, self.heads * self.head_dim)), a)
        return self.linear(name + "o", a, self.hidden, self.heads * self.head_dim)

    def heads_of(self, name: str, x: Value, heads: int) -> Value:
        y = self.linear(name, x, heads * self.head_dim, self.hidden, self.bias)
        return self(Reshape((1, T, heads, self.head_dim)), y)

    def turn(self, x: Value) -> Value:
        return self(Transpose((0, 2, 1, 3)), x)

    def project(self, name: str, x: Value, heads: int) -> Value:
        y = self.heads_of(name, x, heads)
        return self.turn(self.norm(name + "_norm", y, self.head_dim) if self.qk_norm else y)

    def rotate(self, x: Value, cos: Value, sin: Value) -> Value:
        cos, sin = (self(Reshape((1, 1, T, self.head_dim)), t) for t in (cos, sin))
        half = self.head_dim // 2
        low, high = self(Slice(3, 0, half), x), self(Slice(3, half, self.head_dim), x)
        turned = self(Concat(3), self(Neg(), high), low)
        return self(Add(), self(Mul(), x, cos), self(Mul(), turned, sin))


@pytest.fixture
def captured_llama() -> Callable[..., Graph]:
    """``captured_llama(layers=2, bias=True)`` -> a captured graph of small sizes."""
    return lambda **options: LlamaBuilder(**options).build()


@pytest.fixture
def target() -> Target:
    """A chip with every fused op and small pages."""
    return Target(
        name="test",
        arch="test",
        dtypes=frozenset({F32, BF16, Q4_1, Q8_0}),
        units=(Unit("simd", {"f32": 1e9}),),
        memory=(MemoryLevel("ram", 0, 1e9),),
        programs=2,
        lanes=16,
        page_size=4,
        token_buckets=(1,),
        fused_ops=frozenset(
            {"rmsnorm", "add_rmsnorm", "gated_linear", "rope_write_kv", "rope_table", "linear"}
        ),
    )


@pytest.fixture
def check() -> Callable[..., Graph]:
    """Runs passes on a graph in text form and holds them to the rules that every pass keeps.

    The result must equal ``after``, be well formed, give equal numbers, and not change when the
    passes run again. Without ``after`` nothing may change.
    """
    return check_passes


def check_passes(pipeline: str, before: str, after: str | None = None, **sizes: int) -> Graph:
    given, graph = parse_graph(before), parse_graph(before)
    passes = parse_pipeline(pipeline)
    changed = [p.run(graph) for p in passes]
    verify(graph)
    wanted = given.as_text() if after is None else parse_graph(after).as_text()
    assert normal(graph.as_text()) == normal(wanted)
    assert any(changed) == (after is not None)
    again = [p.name for p in passes if p.run(graph)]
    assert not again, f"a second run of {again} changed the graph"
    assert_same_numbers(given, graph, sizes or {"tokens": 3})
    return graph


def normal(text: str) -> str:
    """Node and constant names in order of appearance: names of new values are no part of a test."""
    names: dict[str, str] = {}
    for line in text.splitlines():
        if match := re.match(r"\s*(?:const )?((?:%[\w.]+: [^=]*?)+) = ", line):
            for name in re.findall(r"%([\w.]+): ", match[1]):
                names.setdefault(name, f"v{len(names)}")
    return re.sub(r"%([\w.]+)", lambda m: f"%{names.get(m[1], m[1])}", text)


@pytest.fixture(name="normal")
def normal_fixture() -> Callable[[str], str]:
    """Graph text with names of computed values replaced by their order."""
    return normal


PAGE = 4
LENGTHS = (9, 1, 6)
STEPS: tuple[dict[int, int], ...] = (
    {0: 5},  # one chunk of a long prompt
    {0: 3, 2: 4},  # its next chunk beside another prompt
    {1: 1, 2: 1, 0: 1},  # single tokens of all, in another order
    {2: 1},
)
"""Each step: sequence -> tokens of it that the step computes."""


@pytest.fixture
def same_on_batches() -> Callable[[Graph, str], None]:
    """Compares a captured graph, run on each request alone, with its step form after the passes.

    The step form computes mixed batches over a paged state: chunked prefill, single tokens of all
    sequences in another order, padded rows.
    """
    return assert_mixed_batches_equal_single_runs


def assert_mixed_batches_equal_single_runs(captured: Graph, pipeline: str) -> None:
    rng = np.random.default_rng(0)
    params = {v.name: random_array(v.type, rng, {}) for v in captured.params}
    prompts = [rng.integers(0, 5, n).astype(np.int32) for n in LENGTHS]
    alone = [run_alone(captured, ids, params) for ids in prompts]
    step = clone(captured)
    run_pipeline(step, parse_pipeline(pipeline), ())
    verify(step)
    paged = PagedRun(step, params, rng)
    for batch in STEPS:
        for seq, position, logits in paged.step(prompts, batch):
            assert_close(logits, alone[seq][position], 1e-4, f"sequence {seq} at {position}")
    assert paged.done == list(LENGTHS)


def run_alone(captured: Graph, ids: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    inputs = {"token_ids": ids[None], "position_ids": np.arange(len(ids), dtype=np.int32)[None]}
    (logits,) = interpret(clone(captured, {"tokens": len(ids)}), inputs, params)
    return np.asarray(logits[0])


class PagedRun:
    """The step graph over states that live on between steps, on scattered pages and slots."""

    PADDING = 2

    def __init__(
        self, graph: Graph, params: dict[str, np.ndarray], rng: np.random.Generator
    ) -> None:
        self.graph, self.params = graph, params
        self.done = [0] * len(LENGTHS)
        columns = -(-max(LENGTHS) // PAGE)
        pages = 1 + rng.permutation(len(LENGTHS) * columns)
        self.table = pages.reshape(len(LENGTHS), columns).astype(np.int32)
        self.slots = (len(LENGTHS) * columns + 1) * PAGE
        self.state_slots = 1 + rng.permutation(len(LENGTHS))
        sizes = {"kv_slots": self.slots, "num_slots": len(LENGTHS) + 1}
        self.states = {v.name: random_array(v.type, rng, sizes) for v in graph.states}

    def step(
        self, prompts: Sequence[np.ndarray], batch: dict[int, int]
    ) -> list[tuple[int, int, np.ndarray]]:
        """Logits of every token of the step, as (sequence, position, logits)."""
        rows = [(s, self.done[s] + i) for s, n in batch.items() for i in range(n)]
        for s, n in batch.items():
            self.done[s] += n
        logits, *states = interpret(
            self._sized(len(rows), batch), self._inputs(prompts, batch, rows), self.params
        )
        self.states = dict(zip(self.states, states, strict=True))
        return [(s, p, logits[i]) for i, (s, p) in enumerate(rows)]

    def _sized(self, rows: int, batch: dict[int, int]) -> Graph:
        sizes = {
            "tokens": rows + self.PADDING,
            "rows": rows,
            "seqs": len(batch),
            "pages": self.table.shape[1],
            "kv_slots": self.slots,
            "num_slots": len(LENGTHS) + 1,
        }
        graph = clone(self.graph, sizes)
        graph.outputs = [*graph.outputs, *(last_version(v) for v in graph.states)]
        return graph

    def _inputs(
        self, prompts: Sequence[np.ndarray], batch: dict[int, int], rows: list[tuple[int, int]]
    ) -> dict[str, np.ndarray]:
        pad = [0] * self.PADDING
        slots = [self.table[s][p // PAGE] * PAGE + p % PAGE for s, p in rows]
        arrays = {
            "token_ids": [*(prompts[s][p] for s, p in rows), *pad],
            "positions": [*(p for _, p in rows), *pad],
            "slots": [*slots, *pad],
            "query_start": np.cumsum([0, *batch.values()]),
            "seq_lens": [self.done[s] for s in batch],
            "page_table": self.table[list(batch)],
            "logit_rows": np.arange(len(rows)),
            "state_slots": self.state_slots[list(batch)],
        }
        return {**{k: np.array(v, np.int32) for k, v in arrays.items()}, **self.states}


def last_version(state: Value) -> Value:
    """What the state is after every write of the step."""
    for node in state.uses:
        for value in node.outputs:
            if value.type == state.type:
                return last_version(value)
    return state
