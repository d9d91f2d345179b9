"""Rotary embedding in the spellings of different models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sglk.ir.graph import Graph
from sglk.passes.opt import parse_pipeline

Check = Callable[..., Graph]
H = "graph g(%x: f32[tokens, 2, 4], %positions: i32[tokens]) {\n"
FREQ = "const %f: f32[2] = [1.0, 0.25]\n"
ANGLE = (
    "%p: i32[tokens, 1] = reshape(%positions) {shape=(tokens, 1)}\n"
    "%pf: f32[tokens, 1] = cast(%p) {dtype=f32}\n%a: f32[tokens, 2] = mul(%pf, %f)\n"
)
HALVES = "%t: f32[tokens, 4] = concat(%a, %a) {axis=1}\n"
TABLES = (
    "%c2: f32[tokens, 4] = cos(%t)\n%s2: f32[tokens, 4] = sin(%t)\n"
    "%c: f32[tokens, 1, 4] = reshape(%c2) {shape=(tokens, 1, 4)}\n"
    "%s: f32[tokens, 1, 4] = reshape(%s2) {shape=(tokens, 1, 4)}\n"
)
ROTATE_HALF = (
    "%lo: f32[tokens, 2, 2] = slice(%x) {axis=2, start=0, stop=2}\n"
    "%hi: f32[tokens, 2, 2] = slice(%x) {axis=2, start=2, stop=4}\n"
    "%n: f32[tokens, 2, 2] = neg(%hi)\n%r: f32[tokens, 2, 4] = concat(%n, %lo) {axis=2}\n"
)
SUM = (
    "%xc: f32[tokens, 2, 4] = mul(%x, %c)\n%rs: f32[tokens, 2, 4] = mul(%r, %s)\n"
    "%y: f32[tokens, 2, 4] = add(%xc, %rs)\nreturn %y\n}"
)
ROPE = (
    "%c: f32[tokens, 2], %s: f32[tokens, 2] = rope_table(%positions, %f)\n"
    "%y: f32[tokens, 2, 4] = rope(%x, %c, %s)\nreturn %y\n}"
)
INTERLEAVED = ROPE.replace("rope(%x, %c, %s)", "rope(%x, %c, %s) {interleaved=True}")
EVERY_TWO = (
    "%ev: f32[tokens, 2, 2] = slice(%x) {axis=2, start=0, stop=4, step=2}\n"
    "%od: f32[tokens, 2, 2] = slice(%x) {axis=2, start=1, stop=4, step=2}\n"
    "%n: f32[tokens, 2, 2] = neg(%od)\n"
    "%n1: f32[tokens, 2, 2, 1] = reshape(%n) {shape=(tokens, 2, 2, 1)}\n"
    "%e1: f32[tokens, 2, 2, 1] = reshape(%ev) {shape=(tokens, 2, 2, 1)}\n"
    "%st: f32[tokens, 2, 2, 2] = concat(%n1, %e1) {axis=3}\n"
    "%r: f32[tokens, 2, 4] = reshape(%st) {shape=(tokens, 2, 4)}\n"
)
REPEATED = (
    "%a1: f32[tokens, 2, 1] = reshape(%a) {shape=(tokens, 2, 1)}\n"
    "%a2: f32[tokens, 2, 2] = broadcast(%a1) {shape=(tokens, 2, 2)}\n"
    "%t: f32[tokens, 4] = reshape(%a2) {shape=(tokens, 4)}\n"
)
CONCAT_OF_SUMS = (
    "%c2: f32[tokens, 2] = cos(%a)\n%s2: f32[tokens, 2] = sin(%a)\n"
    "%c: f32[tokens, 1, 2] = reshape(%c2) {shape=(tokens, 1, 2)}\n"
    "%s: f32[tokens, 1, 2] = reshape(%s2) {shape=(tokens, 1, 2)}\n"
    "%lo: f32[tokens, 2, 2] = slice(%x) {axis=2, start=0, stop=2}\n"
    "%hi: f32[tokens, 2, 2] = slice(%x) {axis=2, start=2, stop=4}\n"
    "%lc: f32[tokens, 2, 2] = mul(%lo, %c)\n%hs: f32[tokens, 2, 2] = mul(%hi, %s)\n"
    "%first: f32[tokens, 2, 2] = sub(%lc, %hs)\n"
    "%hc: f32[tokens, 2, 2] = mul(%hi, %c)\n%ls: f32[tokens, 2, 2] = mul(%lo, %s)\n"
    "%second: f32[tokens, 2, 2] = add(%hc, %ls)\n"
    "%y: f32[tokens, 2, 4] = concat(%first, %second) {axis=2}\nreturn %y\n}"
)

SPELLINGS = {
    "rotate half": (ANGLE + HALVES + TABLES + ROTATE_HALF + SUM, ROPE),
    "sine first": (
        ANGLE + HALVES + TABLES + ROTATE_HALF + SUM.replace("add(%xc, %rs)", "add(%rs, %xc)"),
        ROPE,
    ),
    "tables joined after the cosine": (
        ANGLE
        + "%c1: f32[tokens, 2] = cos(%a)\n%s1: f32[tokens, 2] = sin(%a)\n"
        "%c2: f32[tokens, 4] = concat(%c1, %c1) {axis=1}\n"
        "%s2: f32[tokens, 4] = concat(%s1, %s1) {axis=1}\n"
        "%c: f32[tokens, 1, 4] = reshape(%c2) {shape=(tokens, 1, 4)}\n"
        "%s: f32[tokens, 1, 4] = reshape(%s2) {shape=(tokens, 1, 4)}\n" + ROTATE_HALF + SUM,
        ROPE,
    ),
    "two sums joined": (ANGLE + CONCAT_OF_SUMS, ROPE),
    "every two": (ANGLE + REPEATED + TABLES + EVERY_TWO + SUM, INTERLEAVED),
    "scaled tables": (
        "const %k: f32[] = [1.25]\n"
        + ANGLE
        + HALVES
        + "%c0: f32[tokens, 4] = cos(%t)\n%s0: f32[tokens, 4] = sin(%t)\n"
        "%c2: f32[tokens, 4] = mul(%c0, %k)\n%s2: f32[tokens, 4] = mul(%s0, %k)\n"
        "%c: f32[tokens, 1, 4] = reshape(%c2) {shape=(tokens, 1, 4)}\n"
        "%s: f32[tokens, 1, 4] = reshape(%s2) {shape=(tokens, 1, 4)}\n" + ROTATE_HALF + SUM,
        ROPE.replace("(%positions, %f)", "(%positions, %f) {scale=1.25}"),
    ),
    "angles that are no positions": (
        "%p: f32[tokens, 2] = slice(%x2) {axis=1, start=0, stop=2}\n%a: f32[tokens, 2] = exp(%p)\n"
        + HALVES + TABLES + ROTATE_HALF + SUM,
        "%p: f32[tokens, 2] = slice(%x2) {axis=1, start=0, stop=2}\n%a: f32[tokens, 2] = exp(%p)\n"
        "%c: f32[tokens, 2] = cos(%a)\n%s: f32[tokens, 2] = sin(%a)\n"
        "%y: f32[tokens, 2, 4] = rope(%x, %c, %s)\nreturn %y\n}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_rope(name: str, check: Check) -> None:
    before, after = SPELLINGS[name]
    head = H + FREQ
    if "%x2" in before:
        head = H + "%x2: f32[tokens, 8] = reshape(%x) {shape=(tokens, 8)}\n"
    check("recognise-rope", head + before, head + after)


@pytest.mark.parametrize("clean", ["", "canonicalize,"])
def test_partial_rope(clean: str, check: Check) -> None:
    """Canonicalization lets the rotated halves read past the part that they are halves of."""
    head = "graph g(%w: f32[tokens, 2, 6], %positions: i32[tokens]) {\n" + FREQ
    part = "%x: f32[tokens, 2, 4] = slice(%w) {axis=2, start=0, stop=4}\n"
    rest = (
        "%o: f32[tokens, 2, 2] = slice(%w) {axis=2, start=4, stop=6}\n"
        "%z: f32[tokens, 2, 6] = concat(%y, %o) {axis=2}\nreturn %z\n}"
    )
    before = part + ANGLE + HALVES + TABLES + ROTATE_HALF + SUM.replace("return %y\n}", rest)
    after = (
        "%c: f32[tokens, 2], %s: f32[tokens, 2] = rope_table(%positions, %f)\n"
        "%y: f32[tokens, 2, 6] = rope(%w, %c, %s)\nreturn %y\n}"
    )
    check(f"{clean}recognise-rope", head + before, head + after)


def test_equal_angles_share_a_table(captured_llama: Callable[..., Graph]) -> None:
    graph = captured_llama(layers=3)
    for step in parse_pipeline("canonicalize,eliminate-common,flat-tokens,recognise-rope"):
        step.run(graph)
    names = [n.op.name for n in graph.nodes]
    assert (names.count("rope_table"), names.count("rope")) == (1, 6)
    assert not {"cos", "sin", "neg"} & set(names)


def test_a_table_stands_where_its_positions_are_known(check: Check) -> None:
    """Before what else the graph does, since all layers read it."""
    head = "graph g(%w: f32[tokens, 2, 4], %positions: i32[tokens]) {\n" + FREQ
    other = "%x: f32[tokens, 2, 4] = neg(%w)\n"
    tables, rotation = ROPE.split("%y:", 1)
    check(
        "recognise-rope",
        head + other + ANGLE + HALVES + TABLES + ROTATE_HALF + SUM,
        head + tables + other + "%y:" + rotation,
    )


NEGATED = "%n: f32[tokens, 2, 2] = neg(%hi)\n"
GOOD = ANGLE + HALVES + TABLES + ROTATE_HALF + SUM
NOT_ROPE = {
    "turned the other way": GOOD.replace("neg(%hi)", "neg(%lo)").replace(
        "concat(%n, %lo)", "concat(%hi, %n)"
    ),
    "nothing negated": GOOD.replace("concat(%n, %lo)", "concat(%hi, %lo)").replace(NEGATED, ""),
    "halves not swapped": GOOD.replace("neg(%hi)", "neg(%lo)").replace(
        "concat(%n, %lo)", "concat(%n, %hi)"
    ),
    "two cosines": GOOD.replace("sin(%t)", "cos(%t)"),
    "cosine and sine swapped": GOOD.replace("mul(%x, %c)", "mul(%x, %s)").replace(
        "mul(%r, %s)", "mul(%r, %c)"
    ),
    "pairs of another layout": ANGLE + REPEATED + TABLES + ROTATE_HALF + SUM,
    "rotates another value": GOOD.replace("mul(%x, %c)", "mul(%z, %c)").replace(
        "%xc:", "%z: f32[tokens, 2, 4] = exp(%x)\n%xc:"
    ),
    "one table scaled": "const %k: f32[] = [2.0]\n"
    + GOOD.replace("reshape(%c2)", "reshape(%ck)").replace(
        "%c:", "%ck: f32[tokens, 4] = mul(%c2, %k)\n%c:"
    ),
}


@pytest.mark.parametrize("name", NOT_ROPE)
def test_no_rope(name: str, check: Check) -> None:
    check("recognise-rope", H + FREQ + NOT_ROPE[name])
