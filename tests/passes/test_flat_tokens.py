"""Flat tokens: the proof refuses what mixes tokens, and a mixed batch equals requests run alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sglk.errors import PassError
from sglk.ir import op as ir_op
from sglk.ir import ops  # noqa: F401  (registers every op)
from sglk.ir.graph import Graph, Value
from sglk.ir.interpret import interpret
from sglk.ir.parser import parse_graph
from sglk.ir.rewrite import clone
from sglk.ir.testing import assert_close, random_array
from sglk.ir.verify import verify
from sglk.passes.flat_rules import RULES
from sglk.passes.flat_tokens import FlatTokens
from sglk.passes.opt import parse_pipeline

BuildLlama = Callable[..., Graph]
PAGE = 4
IDS = "%token_ids: i32[1, tokens], %position_ids: i32[1, tokens]"
STEP = (
    "%token_ids: i32[tokens], %positions: i32[tokens], %slots: i32[tokens], "
    "%query_start: i32[seqs + 1], %seq_lens: i32[seqs], %page_table: i32[seqs, pages], "
    "%logit_rows: i32[rows]"
)


def flatten(text: str) -> Graph:
    graph = parse_graph(text)
    assert FlatTokens(page_size=PAGE).run(graph)
    verify(graph)
    return graph


def model(body: str, params: str = "") -> str:
    """Embeds the ids as %x f32[1, tokens, 6], computes %y of that type, and makes logits."""
    return (
        f"graph g({IDS}) {{\nparam %embed: f32[5, 6]\n{params}\n"
        f"%x: f32[1, tokens, 6] = embedding(%embed, %token_ids)\n{body}\n"
        "%logits: f32[1, tokens, 5] = linear(%y, %embed)  # model.py:99\nreturn %logits\n}"
    )


# Text -------------------------------------------------------------------------------------------

ATTENTION = """
%h: f32[1, tokens, 2, 3] = reshape(%x) {shape=(1, tokens, 2, 3)}
%q: f32[1, 2, tokens, 3] = transpose(%h) {permutation=(0, 2, 1, 3)}
%a: f32[1, tokens, 2, 3] = attention(%q, %q, %q) {scale=0.5}
%y: f32[1, tokens, 6] = reshape(%a) {shape=(1, tokens, 6)}
"""


def test_text_before_and_after(normal: Callable[[str], str]) -> None:
    after = f"""graph g({STEP}) {{
  param %embed: f32[5, 6]
  state %kv: f32[1, 2, kv_slots, 2, 3]
  %x: f32[tokens, 6] = embedding(%embed, %token_ids)
  %h: f32[tokens, 2, 3] = reshape(%x) {{shape=(tokens, 2, 3)}}
  %s: f32[1, 2, kv_slots, 2, 3] = write_kv(%kv, %h, %h, %slots) {{layer=0}}
  %a: f32[tokens, 2, 3] = paged_attention(%h, %s, %query_start, %seq_lens, %page_table) \
{{layer=0, scale=0.5, page_size=4}}
  %r: f32[rows, 2, 3] = gather_rows(%a, %logit_rows)
  %y: f32[rows, 6] = reshape(%r) {{shape=(rows, 6)}}
  %logits: f32[rows, 5] = linear(%y, %embed)  # model.py:99
  return %logits
}}
"""
    graph = flatten(model(ATTENTION))
    assert normal(graph.as_text()) == normal(parse_graph(after).as_text())


def test_a_second_run_changes_nothing(captured_llama: BuildLlama) -> None:
    graph = captured_llama()
    assert FlatTokens().run(graph)
    text = graph.as_text()
    assert not FlatTokens().run(graph)
    assert graph.as_text() == text


def test_layers_of_another_kv_shape_get_their_own_state() -> None:
    second = """
%g: f32[1, tokens, 1, 6] = reshape(%y1) {shape=(1, tokens, 1, 6)}
%p: f32[1, 1, tokens, 6] = transpose(%g) {permutation=(0, 2, 1, 3)}
%b: f32[1, tokens, 1, 6] = attention(%p, %p, %p) {scale=0.5}
%y: f32[1, tokens, 6] = reshape(%b) {shape=(1, tokens, 6)}
"""
    graph = flatten(model(ATTENTION.replace("%y", "%y1") + second))
    shapes = [(v.name, v.type.shape[0], v.type.shape[3:]) for v in graph.states]
    assert shapes == [("kv", 1, (2, 3)), ("kv_1", 1, (1, 6))]


def test_rows_are_gathered_where_one_value_carries_all(captured_llama: BuildLlama) -> None:
    graph = captured_llama(layers=2)
    FlatTokens(page_size=PAGE).run(graph)
    (gather,) = [n for n in graph.nodes if n.op.name == "gather_rows"]
    assert gather.inputs[0].producer is not None and gather.inputs[0].producer.op.name == "add"
    later = graph.nodes[graph.nodes.index(gather) :]
    assert not any("tokens" in str(v.type) for n in later for v in n.outputs)
    assert not any(n.op.name == "paged_attention" for n in later)


# Refusals ---------------------------------------------------------------------------------------

MIXING = {
    "mean over the tokens": (
        "%m: f32[1, 1, 6] = mean(%x) {axis=1, keepdim=True}  # model.py:7\n"
        "%y: f32[1, tokens, 6] = sub(%x, %m)",
        r"%m = mean\(...\) at model.py:7: reduces the tokens axis",
    ),
    "max of the positions": (
        "%p: i32[1, 1] = max(%position_ids) {axis=1, keepdim=True}  # rope.py:3\n"
        "%f: f32[1, 1] = cast(%p) {dtype=f32}\n%g: f32[1, 1, 1] = reshape(%f) {shape=(1, 1, 1)}\n"
        "%y: f32[1, tokens, 6] = mul(%x, %g)",
        r"%p = max\(...\) at rope.py:3: reduces the tokens axis",
    ),
    "softmax over the tokens": (
        "%y: f32[1, tokens, 6] = softmax(%x) {axis=1}  # model.py:8",
        r"%y = softmax\(...\) at model.py:8: reduces the tokens axis",
    ),
    "shift by one token": (
        "const %z: f32[1, 1, 6] = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]\n"
        "%s: f32[1, tokens - 1, 6] = slice(%x) {axis=1, start=0, stop=tokens - 1}  # model.py:9\n"
        "%y: f32[1, tokens, 6] = concat(%z, %s) {axis=1}",
        r"%s = slice\(...\) at model.py:9: depends on the number of tokens",
    ),
    "last token only": (
        "%s: f32[1, 1, 6] = slice(%x) {axis=1, start=tokens - 1, stop=tokens}\n"
        "%y: f32[1, tokens, 6] = sub(%x, %s)",
        r"%s = slice\(...\): depends on the number of tokens",
    ),
    "first token": (
        "%s: f32[1, 1, 6] = slice(%x) {axis=1, start=0, stop=1}\n"
        "%y: f32[1, tokens, 6] = sub(%x, %s)",
        r"%s = slice\(...\): cuts the tokens axis",
    ),
    "running sum by a triangle": (
        "%i: i32[tokens] = iota() {size=tokens}\n"
        "%c: i32[tokens, 1] = reshape(%i) {shape=(tokens, 1)}\n"
        "%l: bool[tokens, tokens] = le(%i, %c)\n%w: f32[tokens, tokens] = cast(%l) {dtype=f32}\n"
        "%r: f32[tokens, 6] = reshape(%x) {shape=(tokens, 6)}\n"
        "%s: f32[tokens, 6] = matmul(%w, %r)\n"
        "%y: f32[1, tokens, 6] = reshape(%s) {shape=(1, tokens, 6)}",
        r"%l = le\(...\): pairs tokens with tokens",
    ),
    "reshape across tokens": (
        "%s: f32[1, 6, tokens] = reshape(%x) {shape=(1, 6, tokens)}\n"
        "%y: f32[1, tokens, 6] = transpose(%s) {permutation=(0, 2, 1)}",
        r"%s = reshape\(...\): merges or splits the tokens axis",
    ),
    "tokens merged with features": (
        "%s: f32[6*tokens] = reshape(%x) {shape=(6*tokens,)}\n"
        "%y: f32[1, tokens, 6] = reshape(%s) {shape=(1, tokens, 6)}",
        r"%s = reshape\(...\): merges, cuts or joins the tokens axis",
    ),
    "product over the tokens": (
        "%t: f32[1, 6, tokens] = transpose(%x) {permutation=(0, 2, 1)}\n"
        "%g: f32[1, 6, 6] = matmul(%t, %x)\n%y: f32[1, tokens, 6] = matmul(%x, %g)",
        r"%g = matmul\(...\): has a right side that depends on tokens",
    ),
    "norm over the tokens": (
        "%t: f32[1, 6, tokens] = transpose(%x) {permutation=(0, 2, 1)}\n"
        "%s: f32[1, 6, tokens] = softmax(%t) {axis=2}\n"
        "%y: f32[1, tokens, 6] = transpose(%s) {permutation=(0, 2, 1)}",
        r"%s = softmax\(...\): reduces the tokens axis",
    ),
    "rows picked along the tokens": (
        "%r: f32[tokens, 6] = reshape(%x) {shape=(tokens, 6)}\n"
        "%p: i32[tokens] = reshape(%position_ids) {shape=(tokens,)}\n"
        "%s: f32[tokens, 6] = gather_rows(%r, %p)\n"
        "%y: f32[1, tokens, 6] = reshape(%s) {shape=(1, tokens, 6)}",
        r"%s = gather_rows\(...\): picks rows along the tokens axis",
    ),
    "counter past the tokens": (
        "%i: i32[tokens + 1] = iota() {size=tokens + 1}\n"
        "%s: i32[1] = slice(%i) {axis=0, start=0, stop=1}\n%f: f32[1] = cast(%s) {dtype=f32}\n"
        "%y: f32[1, tokens, 6] = mul(%x, %f)",
        r"%i = iota\(...\): depends on the number of tokens",
    ),
    "attention that sees later tokens": (
        ATTENTION.replace("scale=0.5", "scale=0.5, causal=False"),
        r"%a = attention\(...\): is not causal",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_mixing_tokens_is_refused_by_name(name: str) -> None:
    body, message = MIXING[name]
    with pytest.raises(PassError, match=message):
        flatten(model(body))


def test_one_error_lists_every_refusal() -> None:
    body = (
        "%m: f32[1, 1, 6] = mean(%x) {axis=1, keepdim=True}\n"
        "%a: f32[1, tokens, 6] = sub(%x, %m)\n"
        "%y: f32[1, tokens, 6] = softmax(%x) {axis=1}"
    )
    with pytest.raises(PassError) as caught:
        flatten(model(body))
    assert "got 1 that" in str(caught.value)  # what nobody reads is no part of the model
    both = body.replace("%y:", "%s:") + "\n%y: f32[1, tokens, 6] = add(%a, %s)"
    with pytest.raises(PassError) as caught:
        flatten(model(both))
    lines = str(caught.value).splitlines()
    assert "got 2 that are not proved to" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["%m", "%s"]


NEGATED = "%y: f32[1, tokens, 6] = neg(%x)"
FOUR_DIMS = "%z: f32[1, tokens, 5, 1] = reshape(%logits) {shape=(1, tokens, 5, 1)}\nreturn %z"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph g(%ids: i32[1, tokens]) {\nreturn %ids\n}", "expected inputs .*got %ids"),
        ("graph g(%token_ids: i32[tokens]) {\nreturn %token_ids\n}", "got %token_ids: i32"),
        (model(NEGATED).replace("return %logits", "return %x, %y"), "2 outputs"),
        (model(NEGATED).replace("return %logits", FOUR_DIMS), "expected logits"),
    ],
)
def test_another_signature_is_refused(text: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        FlatTokens().run(parse_graph(text))


def test_every_op_has_a_rule_or_is_known_to_have_none() -> None:
    without = {"iota", "write_kv", "paged_attention", "rope_write_kv"}
    covered = {
        name for name, cls in ir_op.OPS.items() if any(base in RULES for base in cls.__mro__)
    }
    assert set(ir_op.OPS) - covered == without


# Numbers ----------------------------------------------------------------------------------------

LOCAL = {
    "heads on another axis": ATTENTION,
    "tokens last": (
        "%t: f32[1, 6, tokens] = transpose(%x) {permutation=(0, 2, 1)}\n"
        "%m: f32[1, 1, tokens] = max(%t) {axis=1, keepdim=True}\n"
        "%n: f32[1, tokens] = sum(%t) {axis=1}\n"
        "%o: f32[1, 1, tokens] = reshape(%n) {shape=(1, 1, tokens)}\n"
        "%s: f32[1, 6, tokens] = sub(%t, %m)\n%r: f32[1, 6, tokens] = mul(%s, %o)\n"
        "%y: f32[1, tokens, 6] = transpose(%r) {permutation=(0, 2, 1)}"
    ),
    "flat rows and back": (
        "%r: f32[tokens, 6] = reshape(%x) {shape=(tokens, 6)}\n"
        "%s: f32[tokens, 6] = softmax(%r) {axis=1}\n"
        "%y: f32[1, tokens, 6] = reshape(%s) {shape=(1, tokens, 6)}"
    ),
    "tokens first": (
        "%r: f32[tokens, 1, 6] = transpose(%x) {permutation=(1, 0, 2)}\n"
        "%s: f32[tokens, 1, 6] = mul(%r, %x2)\n"
        "%y: f32[1, tokens, 6] = transpose(%s) {permutation=(1, 0, 2)}"
    ).replace("%x2", "%w"),
    "frequencies by a product": (
        "%w3: f32[1, 6, 1] = reshape(%w) {shape=(1, 6, 1)}\n"
        "%p: f32[1, tokens] = cast(%position_ids) {dtype=f32}\n"
        "%p3: f32[1, 1, tokens] = reshape(%p) {shape=(1, 1, tokens)}\n"
        "%f: f32[1, 6, tokens] = matmul(%w3, %p3)\n"
        "%t: f32[1, tokens, 6] = transpose(%f) {permutation=(0, 2, 1)}\n"
        "%y: f32[1, tokens, 6] = add(%t, %x)"
    ),
    "counter as positions": (
        "%i: i32[tokens] = iota() {size=tokens}\n%f: f32[tokens] = cast(%i) {dtype=f32}\n"
        "%g: f32[tokens, 1] = reshape(%f) {shape=(tokens, 1)}\n%y: f32[1, tokens, 6] = mul(%x, %g)"
    ),
    "head of a position table": (
        "%s: f32[tokens, 6] = slice(%table) {axis=0, start=2, stop=tokens + 2}\n"
        "%y: f32[1, tokens, 6] = add(%x, %s)"
    ),
    "learned positions": (
        "const %two: i32[] = [2]\n%p: i32[1, tokens] = add(%position_ids, %two)\n"
        "%s: f32[1, tokens, 6] = embedding(%table, %p)\n%y: f32[1, tokens, 6] = add(%x, %s)"
    ),
    "slices, joins and repeats of features": (
        "%a: f32[1, tokens, 2] = slice(%x) {axis=2, start=0, stop=2}\n"
        "%b: f32[1, tokens, 4] = slice(%x) {axis=2, start=2, stop=6}\n"
        "%c: f32[1, tokens, 6] = concat(%b, %a) {axis=2}\n"
        "%w3: f32[1, tokens, 6] = broadcast(%w) {shape=(1, tokens, 6)}\n"
        "%d: f32[1, tokens, 6] = add(%c, %w3)\n"
        "%e: f32[1, tokens, 1] = mean(%d) {axis=2, keepdim=True}\n"
        "%f: f32[1, tokens, 6] = broadcast(%e) {shape=(1, tokens, 6)}\n"
        "%y: f32[1, tokens, 6] = sub(%d, %f)"
    ),
    "a matrix free of tokens": (
        "%w2: f32[1, 6, 1] = reshape(%w) {shape=(1, 6, 1)}\n%w3: f32[1, 6, 6] = mul(%w2, %w)\n"
        "%y: f32[1, tokens, 6] = matmul(%x, %w3)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOCAL)
def test_local_model_equals_itself_on_flat_tokens(name: str) -> None:
    captured = parse_graph(model(LOCAL[name], "param %w: f32[6]\nparam %table: f32[32, 6]"))
    for step in parse_pipeline("canonicalize,fold-constants,eliminate-common"):
        step.run(captured)
    assert_mixed_batches_equal_single_runs(captured)


@pytest.mark.parametrize("options", [{}, {"bias": True, "qk_norm": True}, {"kv_heads": 1}])
def test_llama_on_mixed_batches(options: dict[str, int], captured_llama: BuildLlama) -> None:
    assert_mixed_batches_equal_single_runs(captured_llama(**options))


LENGTHS = (9, 1, 6)
STEPS: tuple[dict[int, int], ...] = (
    {0: 5},  # one chunk of a long prompt
    {0: 3, 2: 4},  # its next chunk beside another prompt
    {1: 1, 2: 1, 0: 1},  # single tokens of all, in another order
    {2: 1},
)
"""Each step: sequence -> tokens of it that the step computes."""


def assert_mixed_batches_equal_single_runs(captured: Graph) -> None:
    rng = np.random.default_rng(0)
    params = {v.name: random_array(v.type, rng, {}) for v in captured.params}
    prompts = [rng.integers(0, 5, n).astype(np.int32) for n in LENGTHS]
    alone = [run_alone(captured, ids, params) for ids in prompts]
    step = clone(captured)
    assert FlatTokens(page_size=PAGE).run(step)
    verify(step)
    paged = PagedRun(step, params, rng)
    for batch in STEPS:
        for seq, position, logits in paged.step(prompts, batch):
            assert_close(logits, alone[seq][position], 1e-5, f"sequence {seq} at {position}")
    assert paged.done == list(LENGTHS)


def run_alone(captured: Graph, ids: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    inputs = {"token_ids": ids[None], "position_ids": np.arange(len(ids), dtype=np.int32)[None]}
    (logits,) = interpret(clone(captured, {"tokens": len(ids)}), inputs, params)
    return np.asarray(logits[0])


class PagedRun:
    """The step graph over a KV state that lives on between steps, on scattered pages."""

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
        sizes = {"kv_slots": self.slots}
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
        }
        return {**{k: np.array(v, np.int32) for k, v in arrays.items()}, **self.states}


def last_version(state: Value) -> Value:
    """What the state is after every write of the step."""
    for node in state.uses:
        for value in node.outputs:
            if value.type == state.type:
                return last_version(value)
    return state
