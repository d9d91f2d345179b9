"""Activations are stored in bf16; logits, rope tables, norm weights and biases stay f32."""

from __future__ import annotations

import numpy as np
import pytest
from sglk.ir.dtype import BF16, F32
from sglk.ir.graph import Graph
from sglk.ir.parser import parse_graph
from sglk.ir.rewrite import clone
from sglk.ir.testing import assert_same_numbers
from sglk.ir.verify import verify
from sglk.passes.store_activations import StoreActivations

HEAD = """graph g(%ids: i32[tokens], %p: i32[tokens], %rows: i32[rows]) {
param %embed: bf16[16, 8]
param %norm: f32[8]
param %w: bf16[8, 8]
param %b: f32[8]
const %f: f32[2] = [1.0, 0.5]
const %cap: f32[] = [30.0]
"""

BEFORE = (
    HEAD
    + """%c: f32[tokens, 2], %s: f32[tokens, 2] = rope_table(%p, %f)
%h: f32[tokens, 8] = embedding(%embed, %ids)
%k: f32[tokens, 8] = mul(%h, %cap)
%n: f32[tokens, 8] = rmsnorm(%k, %norm)
%l: f32[tokens, 8] = linear(%n, %w, %b) {has_bias=True}
%q: f32[tokens, 2, 4] = reshape(%l) {shape=(tokens, 2, 4)}
%t: f32[tokens, 2, 4] = rope(%q, %c, %s)
%u: f32[tokens, 8] = reshape(%t) {shape=(tokens, 8)}
%o: f32[tokens, 8] = linear(%u, %w, %k) {has_residual=True}
%g: f32[rows, 8] = gather_rows(%o, %rows)
%y: f32[rows, 16] = linear(%g, %embed)
%z: f32[rows, 16] = div(%y, %cap)
%a: f32[rows, 16] = tanh(%z)
return %a
}"""
)
AFTER = (
    HEAD
    + """%c: f32[tokens, 2], %s: f32[tokens, 2] = rope_table(%p, %f)
%h: bf16[tokens, 8] = embedding(%embed, %ids) {dtype=bf16}
%cb: bf16[] = cast(%cap) {dtype=bf16}
%k: bf16[tokens, 8] = mul(%h, %cb)
%n: bf16[tokens, 8] = rmsnorm(%k, %norm)
%l: bf16[tokens, 8] = linear(%n, %w, %b) {has_bias=True, dtype=bf16}
%q: bf16[tokens, 2, 4] = reshape(%l) {shape=(tokens, 2, 4)}
%t: bf16[tokens, 2, 4] = rope(%q, %c, %s)
%u: bf16[tokens, 8] = reshape(%t) {shape=(tokens, 8)}
%o: bf16[tokens, 8] = linear(%u, %w, %k) {has_residual=True, dtype=bf16}
%g: bf16[rows, 8] = gather_rows(%o, %rows)
%y: f32[rows, 16] = linear(%g, %embed)
%z: f32[rows, 16] = div(%y, %cap)
%a: f32[rows, 16] = tanh(%z)
return %a
}"""
)


def check(before: str, after: str | None, normal: object) -> Graph:
    """Text before and after; equal numbers within bf16; nothing the second time."""
    graph = parse_graph(before)
    assert StoreActivations().run(graph) == (after is not None)
    verify(graph)
    assert callable(normal)
    assert normal(graph.as_text()) == normal(parse_graph(after or before).as_text())
    assert not StoreActivations().run(graph)
    return graph


def test_a_step_keeps_f32_for_logits_and_tables(normal: object) -> None:
    graph = check(BEFORE, AFTER, normal)
    sizes = {"tokens": 4, "rows": 2}
    rows = {"rows": np.array([0, 3], np.int32)}
    assert_same_numbers(clone(parse_graph(BEFORE)), graph, sizes, inputs=rows, rtol=5e-2)


def test_float_inputs_are_rounded_and_outputs_stay_f32(normal: object) -> None:
    head = "graph g(%x: f32[n, 8]) {\nparam %w: f32[8]\n"
    graph = check(
        f"{head}%y: f32[n, 8] = rmsnorm(%x, %w)\nreturn %y\n}}",
        f"{head}%b: bf16[n, 8] = cast(%x) {{dtype=bf16}}\n%y: bf16[n, 8] = rmsnorm(%b, %w)\n"
        "%z: f32[n, 8] = cast(%y) {dtype=f32}\nreturn %z\n}",
        normal,
    )
    assert graph.outputs[0].type.dtype == F32


def test_values_of_positions_alone_stay(normal: object) -> None:
    text = (
        "graph g(%p: i32[n]) {\nconst %f: f32[2] = [1.0, 0.5]\n"
        "%c: f32[n, 2], %s: f32[n, 2] = rope_table(%p, %f)\n"
        "%y: f32[n, 2] = mul(%c, %s)\nreturn %y\n}"
    )
    check(text, None, normal)


@pytest.mark.parametrize(
    ("op", "operands"),
    [("add", "%h, %v"), ("concat", "%h, %v"), ("add_rmsnorm", "%h, %v, %w")],
)
def test_operands_of_one_type_become_one(op: str, operands: str) -> None:
    """A value of positions alone joins an activation: it is rounded for that."""
    attributes = " {axis=1}" if op == "concat" else ""
    width = 4 if op == "concat" else 2
    outputs = f"%y: f32[n, {width}]" + (f", %z: f32[n, {width}]" if "norm" in op else "")
    graph = parse_graph(
        "graph g(%p: i32[n]) {\nparam %e: bf16[8, 2]\nparam %w: f32[2]\n"
        "const %f: f32[2] = [1.0, 0.5]\n"
        "%v: f32[n, 2], %s: f32[n, 2] = rope_table(%p, %f)\n%h: f32[n, 2] = embedding(%e, %p)\n"
        f"{outputs} = {op}({operands}){attributes}\n"
        f"%i: i32[n] = argmax({'%z' if 'norm' in op else '%y'})\nreturn %i\n}}"
    )
    assert StoreActivations().run(graph)
    verify(graph)
    node = next(n for n in graph.nodes if n.op.name == op)
    assert {v.type.dtype for v in node.inputs[:2]} == {BF16}
    assert graph.nodes[0].outputs[0].type.dtype == F32


def test_layers_with_a_state_read_and_give_f32() -> None:
    graph = parse_graph(
        "graph g(%ids: i32[tokens], %start: i32[seqs + 1], %lens: i32[seqs], %slots: i32[seqs]) {\n"
        "param %embed: bf16[16, 8]\nparam %taps: f32[8, 3]\nstate %s: f32[1, num_slots, 2, 8]\n"
        "%h: f32[tokens, 8] = embedding(%embed, %ids)\n%g: f32[tokens, 8] = silu(%h)\n"
        "%c: f32[tokens, 8], %t: f32[1, num_slots, 2, 8] = "
        "slot_conv(%s, %start, %lens, %slots, %g, %taps) {layer=0}\n"
        "%y: f32[tokens, 16] = linear(%c, %embed)\nreturn %y\n}"
    )
    assert StoreActivations().run(graph)
    verify(graph)
    (conv,) = [node for node in graph.nodes if node.op.name == "slot_conv"]
    assert conv.inputs[4].producer is not None and conv.inputs[4].producer.op.name == "cast"
    assert [v.type.dtype for v in conv.outputs] == [F32, F32]
    assert graph.outputs[0].producer is not None
    assert graph.outputs[0].producer.inputs[0].type.dtype == BF16
