"""Flat tokens: the proof refuses what mixes tokens, and a mixed batch equals requests run alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sglk.errors import PassError
from sglk.ir import op as ir_op
from sglk.ir import ops  # noqa: F401  (registers every op)
from sglk.ir.graph import Graph
from sglk.ir.parser import parse_graph
from sglk.ir.verify import verify
from sglk.passes.flat_rules import RULES
from sglk.passes.flat_tokens import FlatTokens
from sglk.passes.opt import parse_pipeline

BuildLlama = Callable[..., Graph]
Compare = Callable[[Graph, str], None]
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
    "parts picked along the tokens": (
        "const %i: i32[1] = [0]\n%f: f32[1, 1, 6] = take_axis(%x, %i) {axis=1}\n"
        "%y: f32[1, tokens, 6] = add(%x, %f)",
        r"%f = take_axis\(...\): picks along the tokens axis",
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
    made_later = {"round_rows", "quantize_rows", "group_sums", "expert_mlp"}
    of_images = {"convolution", "avg_pool", "max_pool"}
    on_states = {"write_kv", "paged_attention", "rope_write_kv", "slot_conv", "slot_recurrence"}
    without = {"iota", "bitcast"} | on_states | made_later | of_images
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
    "ops on the batch axis": (
        "%t: f32[1, tokens, 6] = tanh(%x)\n%c: f32[2, tokens, 6] = concat(%x, %t) {axis=0}\n"
        "%s: f32[1, tokens, 6] = slice(%c) {axis=0, start=1, stop=2}\n"
        "%m: f32[tokens, 6] = mean(%x) {axis=0}\n%y: f32[1, tokens, 6] = mul(%s, %m)"
    ),
    "parts of features by index": (
        "const %i: i32[2] = [4, 1]\n%a: f32[1, tokens, 2] = take_axis(%x, %i) {axis=2}\n"
        "%b: f32[1, tokens, 2] = tanh(%a)\n"
        "%y: f32[1, tokens, 6] = put_axis(%x, %i, %b) {axis=2, how='add'}"
    ),
    "a matrix free of tokens": (
        "%w2: f32[1, 6, 1] = reshape(%w) {shape=(1, 6, 1)}\n%w3: f32[1, 6, 6] = mul(%w2, %w)\n"
        "%y: f32[1, tokens, 6] = matmul(%x, %w3)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOCAL)
def test_local_model_equals_itself_on_flat_tokens(name: str, same_on_batches: Compare) -> None:
    captured = parse_graph(model(LOCAL[name], "param %w: f32[6]\nparam %table: f32[32, 6]"))
    for step in parse_pipeline("canonicalize,fold-constants,eliminate-common"):
        step.run(captured)
    same_on_batches(captured, f"flat-tokens{{page_size={PAGE}}}")


@pytest.mark.parametrize("options", [{}, {"bias": True, "qk_norm": True}, {"kv_heads": 1}])
def test_llama_on_mixed_batches(
    options: dict[str, int], captured_llama: BuildLlama, same_on_batches: Compare
) -> None:
    same_on_batches(captured_llama(**options), f"flat-tokens{{page_size={PAGE}}}")
