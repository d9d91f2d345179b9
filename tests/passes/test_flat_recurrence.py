"""Layers with a state on flat tokens: found in a prompt's form, carried in slots by steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sglk.errors import PassError
from sglk.ir.graph import Graph
from sglk.ir.parser import parse_graph
from sglk.passes.flat_tokens import FlatTokens
from sglk.passes.recognise_causal_conv import RecogniseCausalConv

Compare = Callable[[Graph, str], None]
IDS = "%token_ids: i32[1, tokens], %position_ids: i32[1, tokens]"
PARAMS = ("param %w: f32[6, 1, 3]", "param %bias: f32[6]", "param %rate: f32[3, 2]")
PADDED = "{stride=(1,), before=(2,), after=(2,), dilation=(1,), groups=6}"


def model(body: str) -> str:
    """%x f32[1, tokens, 6] and its transpose %t -> %y of %x's type."""
    used = "\n".join(line for line in PARAMS if line.split()[1].rstrip(":") in body)
    return (
        f"graph g({IDS}) {{\nparam %embed: f32[5, 6]\n{used}\n"
        f"%x: f32[1, tokens, 6] = embedding(%embed, %token_ids)\n"
        f"%t: f32[1, 6, tokens] = transpose(%x) {{permutation=(0, 2, 1)}}\n{body}\n"
        "%logits: f32[1, tokens, 5] = linear(%y, %embed)\nreturn %logits\n}"
    )


def conv(options: str = PADDED, stop: str = "tokens", start: str = "0") -> str:
    return model(
        f"%p: f32[1, 6, tokens + 2] = convolution(%t, %w) {options}\n"
        f"%c: f32[1, 6, tokens] = slice(%p) {{axis=2, start={start}, stop={stop}}}\n"
        "%y: f32[1, tokens, 6] = transpose(%c) {permutation=(0, 2, 1)}"
    )


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_padded_convolution_that_is_cut_is_causal(check: Callable[..., None]) -> None:
    after = model(
        "%f: f32[6, 3] = reshape(%w) {shape=(6, 3)}\n"
        "%c: f32[1, 6, tokens] = causal_conv(%t, %f)\n"
        "%y: f32[1, tokens, 6] = transpose(%c) {permutation=(0, 2, 1)}"
    )
    check("recognise-causal-conv", conv(), after)


def test_convolution_after_zeros_is_causal() -> None:
    graph = parse_graph(
        model(
            "const %zero: f32[] = [0.0]\n%z: f32[1, 6, 2] = broadcast(%zero) {shape=(1, 6, 2)}\n"
            "%j: f32[1, 6, tokens + 2] = concat(%z, %t) {axis=2}\n"
            "%c: f32[1, 6, tokens] = convolution(%j, %w, %bias) {stride=(1,), before=(0,), "
            "after=(0,), dilation=(1,), groups=6, has_bias=True}\n"
            "%y: f32[1, tokens, 6] = transpose(%c) {permutation=(0, 2, 1)}"
        )
    )
    assert RecogniseCausalConv().run(graph)
    assert "causal_conv" in names(graph) and "concat" not in names(graph)


@pytest.mark.parametrize(
    "text",
    [
        conv(start="1", stop="tokens + 1"),  # sees the next token
        conv(start="2", stop="tokens + 2"),
        conv(PADDED.replace("before=(2,), after=(2,)", "before=(1,), after=(3,)")),
        conv(
            PADDED.replace("dilation=(1,)", "dilation=(2,)").replace("(2,), after", "(4,), after")
        ),
    ],
)
def test_other_convolutions_stay_and_are_refused(text: str) -> None:
    graph = parse_graph(text)
    RecogniseCausalConv().run(graph)
    assert "causal_conv" not in names(graph)
    with pytest.raises(PassError, match=r"convolution\(...\): merges|convolution\(...\): has no"):
        FlatTokens().run(graph)


HEADS = (
    "%h: f32[1, tokens, 3, 2] = reshape(%x) {shape=(1, tokens, 3, 2)}\n"
    "%q: f32[1, tokens, 1, 2] = slice(%h) {axis=2, start=0, stop=1}\n"
    "%k: f32[1, tokens, 1, 2] = slice(%h) {axis=2, start=1, stop=2}\n"
    "%s: f32[1, tokens, 3] = slice(%x) {axis=2, start=3, stop=6}\n"
    "%g: f32[1, tokens, 3] = sigmoid(%s)\n"
)
BACK = "%y: f32[1, tokens, 6] = reshape(%o) {shape=(1, tokens, 6)}"
STATES = {
    "convolution": conv(),
    "two convolutions": conv().replace(
        "%y: f32[1, tokens, 6] = transpose(%c)",
        "%p1: f32[1, 6, tokens + 2] = convolution(%c, %w) " + PADDED + "\n"
        "%c1: f32[1, 6, tokens] = slice(%p1) {axis=2, start=0, stop=tokens}\n"
        "%y: f32[1, tokens, 6] = transpose(%c1)",
    ),
    "recurrence": model(
        HEADS + "%o: f32[1, tokens, 3, 2] = linear_recurrence(%q, %k, %h, %g)\n" + BACK
    ),
    "with a rate": model(
        HEADS + "%o: f32[1, tokens, 3, 2] = linear_recurrence(%q, %k, %h, %g, %rate) "
        "{has_rate=True}\n" + BACK
    ),
    "delta rule, decays of keys": model(
        HEADS + "%d: f32[1, tokens, 3, 2] = sigmoid(%h)\n"
        "%o: f32[1, tokens, 3, 2] = linear_recurrence(%q, %k, %h, %d, %g) {has_beta=True}\n" + BACK
    ),
    "both kinds": model(
        HEADS + "%o: f32[1, tokens, 3, 2] = linear_recurrence(%q, %k, %h, %g)\n"
        "%r: f32[1, tokens, 6] = reshape(%o) {shape=(1, tokens, 6)}\n"
        "%u: f32[1, 6, tokens] = transpose(%r) {permutation=(0, 2, 1)}\n"
        f"%p: f32[1, 6, tokens + 2] = convolution(%u, %w) {PADDED}\n"
        "%c: f32[1, 6, tokens] = slice(%p) {axis=2, start=0, stop=tokens}\n"
        "%y: f32[1, tokens, 6] = transpose(%c) {permutation=(0, 2, 1)}"
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_steps_over_slots_equal_whole_prompts(name: str, same_on_batches: Compare) -> None:
    same_on_batches(
        parse_graph(STATES[name]), "recognise-causal-conv,canonicalize,flat-tokens{page_size=4}"
    )


def test_layers_of_one_shape_share_a_state() -> None:
    graph = parse_graph(STATES["two convolutions"])
    RecogniseCausalConv().run(graph)
    FlatTokens().run(graph)
    assert [str(v.type) for v in graph.states] == ["f32[2, num_slots, 2, 6]"]
    assert graph.inputs[-1].name == "state_slots"


def test_a_model_without_states_has_no_slots() -> None:
    graph = parse_graph(model("%y: f32[1, tokens, 6] = neg(%x)"))
    FlatTokens().run(graph)
    assert not any(v.name == "state_slots" for v in graph.inputs)


def test_values_of_several_requests_are_refused() -> None:
    text = model("%y: f32[1, tokens, 6] = neg(%x)").replace(
        "%y: f32[1, tokens, 6] = neg(%x)",
        "%j: f32[2, 6, tokens] = concat(%t, %t) {axis=0}\n"
        "%f: f32[6, 3] = reshape(%w) {shape=(6, 3)}\n"
        "%c: f32[2, 6, tokens] = causal_conv(%j, %f)\n"
        "%z: f32[1, 6, tokens] = slice(%c) {axis=0, start=0, stop=1}\n"
        "%y: f32[1, tokens, 6] = transpose(%z) {permutation=(0, 2, 1)}",
    )
    graph = parse_graph(text.replace("param %embed", "param %w: f32[6, 1, 3]\nparam %embed"))
    with pytest.raises(PassError, match=r"expects x of \[1, channels, tokens\]"):
        FlatTokens().run(graph)
