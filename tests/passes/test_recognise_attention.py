"""Attention spelled out as products, masks and a softmax."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sglk.ir.graph import Graph
from sglk.ir.ops.attention import Attention
from sglk.ir.parser import parse_graph
from sglk.ir.testing import assert_same_numbers
from sglk.ir.verify import verify
from sglk.passes.opt import parse_pipeline

Check = Callable[..., Graph]
PASS = "recognise-attention"
HEAD = (
    "graph g(%q: f32[1, 2, tokens, 4], %k: f32[1, 2, tokens, 4], %v: f32[1, 2, tokens, 4]) {\n"
    "const %scale: f32[] = 0.5\nconst %low: f32[] = -3e38\nconst %zero: f32[] = 0.0\n"
    "const %three: i32[] = 3\nconst %slopes: f32[2, 1, 1] = [0.5, 0.25]\n"
)
SCORES = (
    "%kt: f32[1, 2, 4, tokens] = transpose(%k) {permutation=(0, 1, 3, 2)}\n"
    "%qk: f32[1, 2, tokens, tokens] = matmul(%q, %kt)\n"
    "%s: f32[1, 2, tokens, tokens] = mul(%qk, %scale)\n"
)
MASK = (
    "%i: i32[tokens] = iota() {size=tokens}\n"
    "%row: i32[tokens, 1] = reshape(%i) {shape=(tokens, 1)}\n"
    "%seen: bool[tokens, tokens] = le(%i, %row)\n"
)
WINDOW = (
    "%back: i32[tokens, 1] = sub(%row, %three)\n%near: bool[tokens, tokens] = gt(%i, %back)\n"
    "%both: bool[tokens, tokens] = and(%seen, %near)\n"
)
ADDED = (
    "%m: f32[tokens, tokens] = where(%seen, %zero, %low)\n"
    "%f: f32[1, 2, tokens, tokens] = add(%s, %m)\n"
)
CHOSEN = "%f: f32[1, 2, tokens, tokens] = where(%both, %s, %low)\n"
BIASED = (
    "%at: f32[tokens] = cast(%i) {dtype=f32}\n%b: f32[2, 1, tokens] = mul(%slopes, %at)\n"
    "%sb: f32[1, 2, tokens, tokens] = add(%s, %b)\n"
    "%f: f32[1, 2, tokens, tokens] = where(%seen, %sb, %low)\n"
)
TAIL = (
    "%p: f32[1, 2, tokens, tokens] = softmax(%f) {axis=3}\n"
    "%y: f32[1, 2, tokens, 4] = matmul(%p, %v)\nreturn %y\n}"
)
RAISED = (
    "graph g(%q: f32[1, 2, tokens, 4], %k: f32[1, 2, tokens, 4], %v: f32[1, 2, tokens, 4]) {\n"
    "%kt: f32[1, 2, 4, tokens] = transpose(%k) {permutation=(0, 1, 3, 2)}\n"
    "%kk: f32[1, 2, tokens, 4] = transpose(%kt) {permutation=(0, 1, 3, 2)}\n"
    "%a: f32[1, tokens, 2, 4] = attention(%q, %kk, %v) {scale=0.5WINDOW}\n"
    "%y: f32[1, 2, tokens, 4] = transpose(%a) {permutation=(0, 2, 1, 3)}\nreturn %y\n}"
)


def test_a_mask_that_is_added(check: Check) -> None:
    check(PASS, HEAD + SCORES + MASK + ADDED + TAIL, RAISED.replace("WINDOW", ""))


def test_a_window_by_choice_of_scores(check: Check) -> None:
    after = RAISED.replace("WINDOW", ", window=3")
    check(PASS, HEAD + SCORES + MASK + WINDOW + CHOSEN + TAIL, after, tokens=9)


def test_heads_on_the_batch_axis() -> None:
    """As `torch.bmm` wants them."""
    flat = (HEAD + SCORES + MASK + ADDED + TAIL).replace("[1, 2, t", "[2, t")
    flat = flat.replace("[1, 2, 4", "[2, 4").replace("(0, 1, 3, 2)", "(0, 2, 1)")
    before = flat.replace("axis=3", "axis=2")
    assert attention_of(before) == Attention(0.5)


def test_a_bias_by_distance_becomes_two_more_elements_of_a_head() -> None:
    graph = parse_graph(HEAD + SCORES + MASK + BIASED + TAIL)
    (step,) = parse_pipeline(PASS)
    assert step.run(graph)
    verify(graph)
    (node,) = (n for n in graph.nodes if isinstance(n.op, Attention))
    assert [v.type.shape[3] for v in node.inputs] == [20, 20, 4]
    for tokens in (1, 300):  # past the first part of a position
        before = parse_graph(HEAD + SCORES + MASK + BIASED + TAIL)
        assert_same_numbers(before, graph, {"tokens": tokens})


def attention_of(before: str) -> Attention:
    graph = parse_graph(before)
    (step,) = parse_pipeline(PASS)
    assert step.run(graph)
    verify(graph)
    assert_same_numbers(parse_graph(before), graph, {"tokens": 5})
    (op,) = (n.op for n in graph.nodes if isinstance(n.op, Attention))
    assert np.isclose(op.scale, 0.5)
    return op


@pytest.mark.parametrize(
    "scores",
    [
        ADDED.replace("add(%s", "sub(%s"),  # later keys weigh most
        "%t: f32[1, 2, tokens, tokens] = tanh(%s)\n" + ADDED.replace("add(%s", "add(%t"),
        BIASED.replace(
            "%b: f32[2, 1, tokens] = mul(%slopes, %at)",
            "%sq: f32[tokens] = mul(%at, %at)\n%b: f32[2, 1, tokens] = mul(%slopes, %sq)",
        ),
        "%n: f32[1, 2, tokens, tokens] = neg(%s)\n" + ADDED.replace("add(%s", "add(%n"),
        "%g: f32[1, 2, tokens, tokens] = add(%s, %qk)\n"
        "%h: f32[1, 2, tokens, 1] = max(%g) {axis=3, keepdim=True}\n"
        "%u: f32[1, 2, tokens, tokens] = sub(%g, %h)\n" + ADDED.replace("add(%s", "add(%u"),
    ],
    ids=["no-mask", "bent", "square-distance", "negative", "mixes-keys"],
)
def test_other_functions_of_scores_are_left_alone(scores: str) -> None:
    assert not raises(HEAD + SCORES + MASK + scores + TAIL)


def test_a_bias_that_depends_on_data_is_left_alone() -> None:
    bias = "%w: f32[1, 2, tokens, tokens] = matmul(%v, %kt)\n" + ADDED.replace("add(%s", "add(%w")
    both = "%f: f32[1, 2, tokens, tokens] = add(%d, %s)\n"
    assert not raises(HEAD + SCORES + MASK + bias.replace("%f:", "%d:") + both + TAIL)


def raises(before: str) -> bool:
    """Whether the pass made an attention op of it."""
    graph = parse_graph(before)
    graph.erase_dead()
    (step,) = parse_pipeline(PASS)
    changed = step.run(graph)
    assert changed == any(isinstance(n.op, Attention) for n in graph.nodes)
    return changed
