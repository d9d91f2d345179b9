"""Rows of tokens and heads in one axis are taken apart, and what mixes them stays refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sglk.errors import PassError
from sglk.ir.graph import Graph
from sglk.ir.parser import parse_graph
from sglk.passes.flat_tokens import FlatTokens
from sglk.passes.split_merged_tokens import SplitMergedTokens

IDS = "%token_ids: i32[1, tokens], %position_ids: i32[1, tokens]"


def model(body: str, params: str = "") -> str:
    return (
        f"graph g({IDS}) {{\nparam %embed: f32[5, 6]\n{params}\n"
        f"%x: f32[1, tokens, 6] = embedding(%embed, %token_ids)\n"
        f"%h: f32[1, tokens, 2, 3] = reshape(%x) {{shape=(1, tokens, 2, 3)}}\n{body}\n"
        "%logits: f32[1, tokens, 5] = linear(%y, %embed)\nreturn %logits\n}"
    )


MERGE = "%r: f32[2*tokens, 3] = reshape(%h) {shape=(2*tokens, 3)}\n"
BACK = "%y: f32[1, tokens, 6] = reshape(%o) {shape=(1, tokens, 6)}"
GATED_NORM = MERGE + (
    "%g: f32[2*tokens, 3] = silu(%r)\n%q: f32[2*tokens, 3] = mul(%r, %r)\n"
    "%m: f32[2*tokens, 1] = mean(%q) {axis=-1, keepdim=True}\n"
    "%i: f32[2*tokens, 1] = rsqrt(%m)\n%n: f32[2*tokens, 3] = mul(%r, %i)\n"
    "%s: f32[2*tokens, 3] = mul(%n, %w)\n%o: f32[2*tokens, 3] = mul(%s, %g)\n" + BACK
)


def test_text_before_and_after(check: Callable[..., Graph]) -> None:
    before = model(
        MERGE + "%o: f32[2*tokens, 3] = rmsnorm(%r, %w) {eps=1e-05}\n" + BACK, "param %w: f32[3]"
    )
    after = model(
        "%o: f32[1, tokens, 2, 3] = rmsnorm(%h, %w) {eps=1e-05}\n" + BACK, "param %w: f32[3]"
    )
    check("split-merged-tokens", before, after)


@pytest.mark.parametrize(
    "body",
    [
        GATED_NORM,
        MERGE + "%o: f32[2*tokens, 3] = softmax(%r) {axis=1}\n" + BACK,
        MERGE + "%k: f32[2*tokens, 2] = slice(%r) {axis=1, start=0, stop=2}\n"
        "%e: f32[1, tokens, 2, 2] = reshape(%k) {shape=(1, tokens, 2, 2)}\n"
        "%l: f32[1, tokens, 2, 1] = sum(%e) {axis=3, keepdim=True}\n"
        "%o: f32[1, tokens, 2, 3] = mul(%h, %l)\n" + BACK,
        MERGE + "%o: f32[2*tokens, 3] = linear(%r, %w2)\n" + BACK,
        # from features that lie in one axis too
        "%r: f32[2*tokens, 3] = reshape(%x) {shape=(2*tokens, 3)}\n"
        "%o: f32[2*tokens, 3] = softmax(%r) {axis=1}\n" + BACK,
    ],
)
def test_work_on_rows_equals_itself_on_flat_tokens(
    body: str, same_on_batches: Callable[[Graph, str], None]
) -> None:
    params = "\n".join(
        f"param %{name}: f32[{shape}]"
        for name, shape in (("w", "3"), ("w2", "3, 3"))
        if f"%{name})" in body
    )
    same_on_batches(
        parse_graph(model(body, params)), "split-merged-tokens,flat-tokens{page_size=4}"
    )


@pytest.mark.parametrize(
    "body",
    [
        MERGE + "%o: f32[2*tokens, 3] = softmax(%r) {axis=0}\n" + BACK,  # across tokens
        "%t: f32[1, 2, tokens, 3] = transpose(%h) {permutation=(0, 2, 1, 3)}\n"
        "%o: f32[2*tokens, 3] = reshape(%t) {shape=(2*tokens, 3)}\n"  # heads first, then tokens
        "%y: f32[1, tokens, 6] = reshape(%o) {shape=(1, tokens, 6)}",
    ],
)
def test_what_mixes_rows_stays_and_is_refused(body: str) -> None:
    graph = parse_graph(model(body))
    text = graph.as_text()
    assert not SplitMergedTokens().run(graph)
    assert graph.as_text() == text
    with pytest.raises(PassError, match="tokens axis"):
        FlatTokens().run(graph)
