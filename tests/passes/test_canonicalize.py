"""Canonicalization, folding, CSE and DCE."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sglk.errors import PassError
from sglk.ir.graph import Graph, Node, Value
from sglk.ir.ops.elementwise import Exp
from sglk.ir.parser import parse_graph
from sglk.passes import canonicalize
from sglk.passes.canonicalize import Canonicalize
from sglk.passes.fold_constants import FoldConstants

Check = Callable[..., Graph]
X = "graph g(%x: f32[tokens, 4]) {\n"

RULES = {
    "same cast": ("%a: f32[tokens, 4] = cast(%x) {dtype=f32}", ""),
    "same reshape": ("%a: f32[tokens, 4] = reshape(%x) {shape=(tokens, 4)}", ""),
    "whole slice": ("%a: f32[tokens, 4] = slice(%x) {axis=1, start=0, stop=4}", ""),
    "same broadcast": ("%a: f32[tokens, 4] = broadcast(%x) {shape=(tokens, 4)}", ""),
    "identity transpose": ("%a: f32[tokens, 4] = transpose(%x) {permutation=(0, 1)}", ""),
    "concat of one": ("%a: f32[tokens, 4] = concat(%x) {axis=0}", ""),
    "plus zero": ("const %c: f32[] = [0.0]\n%a: f32[tokens, 4] = add(%x, %c)", ""),
    "zero plus": ("const %c: f32[4] = [0.0, 0.0, 0.0, 0.0]\n%a: f32[tokens, 4] = add(%c, %x)", ""),
    "minus zero": ("const %c: f32[] = [0.0]\n%a: f32[tokens, 4] = sub(%x, %c)", ""),
    "times one": ("const %c: f32[1] = [1.0]\n%a: f32[tokens, 4] = mul(%c, %x)", ""),
    "over one": ("const %c: f32[] = [1.0]\n%a: f32[tokens, 4] = div(%x, %c)", ""),
    "reshape of reshape": (
        "%b: f32[2*tokens, 2] = reshape(%x) {shape=(2*tokens, 2)}\n"
        "%a: f32[tokens, 2, 2] = reshape(%b) {shape=(tokens, 2, 2)}",
        "%a: f32[tokens, 2, 2] = reshape(%x) {shape=(tokens, 2, 2)}",
    ),
    "transposes": (
        "%r: f32[tokens, 2, 2] = reshape(%x) {shape=(tokens, 2, 2)}\n"
        "%b: f32[2, tokens, 2] = transpose(%r) {permutation=(1, 0, 2)}\n"
        "%a: f32[2, 2, tokens] = transpose(%b) {permutation=(0, 2, 1)}",
        "%r: f32[tokens, 2, 2] = reshape(%x) {shape=(tokens, 2, 2)}\n"
        "%a: f32[2, 2, tokens] = transpose(%r) {permutation=(1, 2, 0)}",
    ),
    "transposed ones": (
        "%r: f32[tokens, 1, 4] = reshape(%x) {shape=(tokens, 1, 4)}\n"
        "%a: f32[1, tokens, 4] = transpose(%r) {permutation=(1, 0, 2)}",
        "%a: f32[1, tokens, 4] = reshape(%x) {shape=(1, tokens, 4)}",
    ),
    "broadcast operand": (
        "param %w: f32[4]\n%b: f32[tokens, 4] = broadcast(%w) {shape=(tokens, 4)}\n"
        "%a: f32[tokens, 4] = mul(%x, %b)",
        "param %w: f32[4]\n%a: f32[tokens, 4] = mul(%x, %w)",
    ),
    "broadcast of broadcast": (
        "%r: f32[tokens, 1, 4] = reshape(%x) {shape=(tokens, 1, 4)}\n"
        "%b: f32[tokens, 3, 4] = broadcast(%r) {shape=(tokens, 3, 4)}\n"
        "%a: f32[2, tokens, 3, 4] = broadcast(%b) {shape=(2, tokens, 3, 4)}",
        "%r: f32[tokens, 1, 4] = reshape(%x) {shape=(tokens, 1, 4)}\n"
        "%a: f32[2, tokens, 3, 4] = broadcast(%r) {shape=(2, tokens, 3, 4)}",
    ),
    "broadcast to ones": (
        "%a: f32[1, tokens, 4] = broadcast(%x) {shape=(1, tokens, 4)}",
        "%a: f32[1, tokens, 4] = reshape(%x) {shape=(1, tokens, 4)}",
    ),
    "slice of slice": (
        "%b: f32[tokens, 3] = slice(%x) {axis=1, start=1, stop=4}\n"
        "%a: f32[tokens, 1] = slice(%b) {axis=1, start=1, stop=3, step=2}",
        "%a: f32[tokens, 1] = slice(%x) {axis=1, start=2, stop=4, step=2}",
    ),
    "slice of concat": (
        "%b: f32[tokens, 8] = concat(%x, %x) {axis=1}\n"
        "%a: f32[tokens, 2] = slice(%b) {axis=1, start=5, stop=7}",
        "%a: f32[tokens, 2] = slice(%x) {axis=1, start=1, stop=3}",
    ),
    "concat of slices": (
        "%b: f32[tokens, 1] = slice(%x) {axis=1, start=0, stop=1}\n"
        "%c: f32[tokens, 3] = slice(%x) {axis=1, start=1, stop=4}\n"
        "%a: f32[tokens, 4] = concat(%b, %c) {axis=1}",
        "",
    ),
    "concat of an empty part": (
        "%b: f32[tokens, 0] = slice(%x) {axis=1, start=4, stop=4}\n"
        "%a: f32[tokens, 4] = concat(%x, %b) {axis=1}",
        "",
    ),
    "kept mean": (
        "%b: f32[tokens] = mean(%x) {axis=1}\n%a: f32[tokens, 1] = reshape(%b) {shape=(tokens, 1)}",
        "%a: f32[tokens, 1] = mean(%x) {axis=1, keepdim=True}",
    ),
    "minus constant": (
        "const %c: f32[] = [1.5]\n%a: f32[tokens, 4] = sub(%x, %c)",
        "const %c: f32[] = [-1.5]\n%a: f32[tokens, 4] = add(%x, %c)",
    ),
    "over a power of two": (
        "const %c: f32[] = [8.0]\n%a: f32[tokens, 4] = div(%x, %c)",
        "const %c: f32[] = [0.125]\n%a: f32[tokens, 4] = mul(%x, %c)",
    ),
    "square": (
        "const %c: f32[] = [2.0]\n%a: f32[tokens, 4] = pow(%x, %c)",
        "%a: f32[tokens, 4] = mul(%x, %x)",
    ),
    "over root": (
        "%e: f32[tokens, 4] = exp(%x)\n%b: f32[tokens, 4] = sqrt(%e)\n"
        "%a: f32[tokens, 4] = div(%x, %b)",
        "%e: f32[tokens, 4] = exp(%x)\n%b: f32[tokens, 4] = rsqrt(%e)\n"
        "%a: f32[tokens, 4] = mul(%x, %b)",
    ),
    "one over root": (
        "const %c: f32[] = [1.0]\n%e: f32[tokens, 4] = exp(%x)\n%b: f32[tokens, 4] = sqrt(%e)\n"
        "%a: f32[tokens, 4] = div(%c, %b)",
        "%e: f32[tokens, 4] = exp(%x)\n%a: f32[tokens, 4] = rsqrt(%e)",
    ),
    "power of minus half": (
        "const %c: f32[] = [-0.5]\n%e: f32[tokens, 4] = exp(%x)\n%a: f32[tokens, 4] = pow(%e, %c)",
        "%e: f32[tokens, 4] = exp(%x)\n%a: f32[tokens, 4] = rsqrt(%e)",
    ),
    "negated twice": ("%b: f32[tokens, 4] = neg(%x)\n%a: f32[tokens, 4] = neg(%b)", ""),
    "times minus one": (
        "const %c: f32[] = [-1.0]\n%a: f32[tokens, 4] = mul(%x, %c)",
        "%a: f32[tokens, 4] = neg(%x)",
    ),
    "plus negated": (
        "%e: f32[tokens, 4] = exp(%x)\n%b: f32[tokens, 4] = neg(%x)\n"
        "%a: f32[tokens, 4] = add(%b, %e)",
        "%e: f32[tokens, 4] = exp(%x)\n%a: f32[tokens, 4] = sub(%e, %x)",
    ),
    "cast there and back": (
        "%b: f64[tokens, 4] = cast(%x) {dtype=f64}\n%a: f32[tokens, 4] = cast(%b) {dtype=f32}",
        "",
    ),
    "known condition": (
        "const %c: bool[] = [1]\n%e: f32[tokens, 4] = exp(%x)\n"
        "%a: f32[tokens, 4] = where(%c, %x, %e)",
        "",
    ),
    "outer product": (
        "%b: f32[tokens, 4, 1] = reshape(%x) {shape=(tokens, 4, 1)}\n"
        "%c: f32[tokens, 1, 4] = reshape(%x) {shape=(tokens, 1, 4)}\n"
        "%a: f32[tokens, 4, 4] = matmul(%b, %c)",
        "%b: f32[tokens, 4, 1] = reshape(%x) {shape=(tokens, 4, 1)}\n"
        "%c: f32[tokens, 1, 4] = reshape(%x) {shape=(tokens, 1, 4)}\n"
        "%a: f32[tokens, 4, 4] = mul(%b, %c)",
    ),
    "matmul with a turned weight": (
        "param %w: f32[3, 4]\n%b: f32[4, 3] = transpose(%w) {permutation=(1, 0)}\n"
        "%a: f32[tokens, 3] = matmul(%x, %b)",
        "param %w: f32[3, 4]\n%a: f32[tokens, 3] = linear(%x, %w)",
    ),
    "matmul with a weight": (
        "param %w: f32[4, 3]\n%a: f32[tokens, 3] = matmul(%x, %w)",
        "param %w: f32[4, 3]\n%b: f32[3, 4] = transpose(%w) {permutation=(1, 0)}\n"
        "%a: f32[tokens, 3] = linear(%x, %b)",
    ),
    "product with axes of one": (
        "param %w: f32[2, 1, 3, 2]\n"
        "%b: f32[tokens, 2, 1, 2, 1] = reshape(%x) {shape=(tokens, 2, 1, 2, 1)}\n"
        "%a: f32[tokens, 2, 1, 3, 1] = matmul(%w, %b)",
        "param %w: f32[2, 1, 3, 2]\n"
        "%b: f32[2, 3, 2] = reshape(%w) {shape=(2, 3, 2)}\n"
        "%c: f32[tokens, 2, 2, 1] = reshape(%x) {shape=(tokens, 2, 2, 1)}\n"
        "%d: f32[tokens, 2, 3, 1] = matmul(%b, %c)\n"
        "%a: f32[tokens, 2, 1, 3, 1] = reshape(%d) {shape=(tokens, 2, 1, 3, 1)}",
    ),
    "linear between reshapes": (
        "param %w: f32[3, 2]\n%r: f32[tokens, 2, 2] = reshape(%x) {shape=(tokens, 2, 2)}\n"
        "%e: f32[tokens, 2, 2] = exp(%r)\n"
        "%b: f32[2*tokens, 2] = reshape(%e) {shape=(2*tokens, 2)}\n"
        "%l: f32[2*tokens, 3] = linear(%b, %w)\n"
        "%a: f32[tokens, 2, 3] = reshape(%l) {shape=(tokens, 2, 3)}",
        "param %w: f32[3, 2]\n%r: f32[tokens, 2, 2] = reshape(%x) {shape=(tokens, 2, 2)}\n"
        "%e: f32[tokens, 2, 2] = exp(%r)\n%a: f32[tokens, 2, 3] = linear(%e, %w)",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str, check: Check) -> None:
    before, after = RULES[name]
    tail = "return %a\n}" if after else "return %x\n}"
    check("canonicalize", f"{X}{before}\nreturn %a\n}}", f"{X}{after}\n{tail}")


MUST_NOT_FIRE = {
    "cast that rounds": (
        "%b: bf16[tokens, 4] = cast(%x) {dtype=bf16}\n%a: f32[tokens, 4] = cast(%b) {dtype=f32}"
    ),
    "transpose of wide axes": "%a: f32[4, tokens] = transpose(%x) {permutation=(1, 0)}",
    "zero that broadcasts": (
        "const %c: f32[2, 1, 1] = [0.0, 0.0]\n%a: f32[2, tokens, 4] = add(%x, %c)"
    ),
    "over three": "const %c: f32[] = [3.0]\n%a: f32[tokens, 4] = div(%x, %c)",
    "over infinity": "const %c: f32[] = [inf]\n%a: f32[tokens, 4] = div(%x, %c)",
    "slice across parts": (
        "%b: f32[tokens, 8] = concat(%x, %x) {axis=1}\n"
        "%a: f32[tokens, 4] = slice(%b) {axis=1, start=2, stop=6}"
    ),
    "slices in another order": (
        "%b: f32[tokens, 2] = slice(%x) {axis=1, start=0, stop=2}\n"
        "%c: f32[tokens, 2] = slice(%x) {axis=1, start=2, stop=4}\n"
        "%a: f32[tokens, 4] = concat(%c, %b) {axis=1}"
    ),
    "needed broadcast": (
        "param %w: f32[1, 4]\n%b: f32[3, 4] = broadcast(%w) {shape=(3, 4)}\n"
        "param %u: f32[4]\n%a: f32[3, 4] = mul(%b, %u)"
    ),
    "mean of another axis": (
        "%b: f32[4] = mean(%x) {axis=0}\n%a: f32[4, 1] = reshape(%b) {shape=(4, 1)}"
    ),
}


@pytest.mark.parametrize("name", MUST_NOT_FIRE)
def test_rule_must_not_fire(name: str, check: Check) -> None:
    check("canonicalize", f"{X}{MUST_NOT_FIRE[name]}\nreturn %a\n}}")


def test_rules_that_never_rest_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def restless(graph: Graph, node: Node) -> Value:
        return graph.emit(Exp(), *node.inputs, before=node)

    monkeypatch.setitem(canonicalize.RULES, Exp, (restless,))
    graph = parse_graph(f"{X}%a: f32[tokens, 4] = exp(%x)\nreturn %a\n}}")
    with pytest.raises(PassError, match="rest within 3 sweeps"):
        Canonicalize(max_sweeps=3).run(graph)


def test_folding_evaluates_constants_and_not_parameters(check: Check) -> None:
    check(
        "fold-constants",
        f"{X}param %w: f32[4]\n%i: i32[4] = iota() {{size=4}}\n"
        "%f: f32[4] = cast(%i) {dtype=f32}\n"
        "%b: f32[4] = exp(%w)\n%c: f32[4] = mul(%b, %f)\n%a: f32[tokens, 4] = mul(%x, %c)\n"
        "return %a\n}",
        f"{X}param %w: f32[4]\nconst %f: f32[4] = [0.0, 1.0, 2.0, 3.0]\n%b: f32[4] = exp(%w)\n"
        "%c: f32[4] = mul(%b, %f)\n%a: f32[tokens, 4] = mul(%x, %c)\nreturn %a\n}",
    )


def test_folding_leaves_large_results(check: Check) -> None:
    text = "graph g() {\n%a: i32[9] = iota() {size=9}\nreturn %a\n}"
    check("fold-constants{max_elements=8}", text)


def test_folding_leaves_symbolic_sizes(check: Check) -> None:
    check("fold-constants", "graph g() {\n%a: i32[tokens] = iota() {size=tokens}\nreturn %a\n}")


def test_common_values_are_computed_once(check: Check) -> None:
    check(
        "eliminate-common",
        f"{X}const %c: f32[] = [2.0]\nconst %d: f32[] = [2.0]\n%a: f32[tokens, 4] = mul(%x, %c)\n"
        "%b: f32[tokens, 4] = mul(%x, %d)\n%e: f32[tokens, 4] = add(%a, %b)\nreturn %e\n}",
        f"{X}const %c: f32[] = [2.0]\n%a: f32[tokens, 4] = mul(%x, %c)\n"
        "%e: f32[tokens, 4] = add(%a, %a)\nreturn %e\n}",
    )


def test_ops_that_differ_in_an_attribute_stay_apart(check: Check) -> None:
    check(
        "eliminate-common",
        f"{X}param %w: f32[4]\n%a: f32[tokens, 4] = rmsnorm(%x, %w) {{eps=1e-05}}\n"
        "%b: f32[tokens, 4] = rmsnorm(%x, %w) {eps=0.01}\n%c: f32[tokens, 4] = sub(%a, %b)\n"
        "return %c\n}",
    )


def test_constants_of_other_types_stay_apart(check: Check) -> None:
    check(
        "eliminate-common",
        f"{X}const %c: f32[] = [0.0]\nconst %d: f32[1] = [0.0]\n%a: f32[tokens, 4] = mul(%x, %c)\n"
        "%b: f32[tokens, 4] = mul(%a, %d)\nreturn %b\n}",
    )


def test_dead_nodes_and_parameters_go(check: Check) -> None:
    check(
        "eliminate-dead",
        f"{X}param %w: f32[4]\n%b: f32[tokens, 4] = mul(%x, %w)\n%c: f32[tokens, 4] = exp(%b)\n"
        "%a: f32[tokens, 4] = neg(%x)\nreturn %a\n}",
        f"{X}%a: f32[tokens, 4] = neg(%x)\nreturn %a\n}}",
    )


def test_live_nodes_stay(check: Check) -> None:
    check("eliminate-dead", f"{X}%a: f32[tokens, 4] = neg(%x)\nreturn %a\n}}")


def test_folded_data_is_contiguous_and_typed() -> None:
    graph = parse_graph(
        "graph g() {\nconst %c: f32[1, 2] = [1.0, 2.0]\n"
        "%a: f32[3, 2] = broadcast(%c) {shape=(3, 2)}\nreturn %a\n}"
    )
    assert FoldConstants().run(graph)
    (value,) = graph.outputs
    assert value.kind == "const" and value.data is not None
    np.testing.assert_array_equal(value.data, [[1, 2]] * 3)
