"""Parts picked along an axis, for flat tokens: features in an order of their own, never tokens."""

from __future__ import annotations

import pytest
from sglk.errors import PassError
from sglk.ir.ops.indexing import TakeAxis
from sglk.ir.parser import parse_graph
from sglk.passes.flat_tokens import FlatTokens

IDS = "%token_ids: i32[1, tokens], %position_ids: i32[1, tokens]"


def model(body: str) -> str:
    return (
        f"graph g({IDS}) {{\nparam %embed: f32[5, 6]\nparam %head: f32[5, 4]\n"
        "const %order: i32[4] = [5, 0, 0, 2]\n"
        f"%x: f32[1, tokens, 6] = embedding(%embed, %token_ids)\n{body}\n"
        "%logits: f32[1, tokens, 5] = linear(%y, %head)\nreturn %logits\n}"
    )


@pytest.mark.parametrize(
    ("body", "axis"),
    [
        ("%y: f32[1, tokens, 4] = take_axis(%x, %order) {axis=2}", 1),
        (
            "%h: f32[1, tokens, 6, 1] = reshape(%x) {shape=(1, tokens, 6, 1)}\n"
            "%t: f32[1, 6, tokens, 1] = transpose(%h) {permutation=(0, 2, 1, 3)}\n"
            "%p: f32[1, 4, tokens, 1] = take_axis(%t, %order) {axis=1}\n"
            "%b: f32[1, tokens, 4, 1] = transpose(%p) {permutation=(0, 2, 1, 3)}\n"
            "%y: f32[1, tokens, 4] = reshape(%b) {shape=(1, tokens, 4)}",
            1,
        ),
    ],
    ids=["the last axis", "heads before tokens"],
)
def test_features_are_picked_for_each_token(body: str, axis: int) -> None:
    graph = parse_graph(model(body))
    assert FlatTokens().run(graph)
    (pick,) = [node for node in graph.nodes if node.op.name == "take_axis"]
    assert pick.op == TakeAxis(axis) and str(pick.outputs[0].type).startswith("f32[rows, 4")


def test_tokens_are_not_picked() -> None:
    body = (
        "%p: f32[1, 4, 6] = take_axis(%x, %order) {axis=1}\n"
        "%m: f32[1, 1, 6] = mean(%p) {axis=1, keepdim=True}\n"
        "%a: f32[1, tokens, 6] = add(%x, %m)\n"
        "%y: f32[1, tokens, 4] = take_axis(%a, %order) {axis=2}"
    )
    with pytest.raises(PassError, match=r"%p = take_axis\(...\): picks along the tokens axis"):
        FlatTokens().run(parse_graph(model(body)))
