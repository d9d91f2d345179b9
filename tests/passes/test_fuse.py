"""Fusion and weight types: text before and after, and every precondition that must hold it back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sglk.errors import PassError
from sglk.ir.dtype import BF16, Q4_1, Q8_0
from sglk.ir.graph import Graph
from sglk.ir.parser import parse_graph
from sglk.ir.testing import assert_same_numbers
from sglk.ir.verify import verify
from sglk.passes.fuse_rope_write_kv import FuseRopeWriteKv
from sglk.passes.set_weight_dtypes import SetWeightDtypes

Check = Callable[..., Graph]
X = "graph g(%x: f32[tokens, 4], %r: f32[tokens, 6]) {\nparam %w: f32[6, 4]\nparam %b: f32[6]\n"
LINEAR = "%l: f32[tokens, 6] = linear(%x, %w)\n"

# Linear epilogues -------------------------------------------------------------------------------

EPILOGUES = {
    "bias": ("%y: f32[tokens, 6] = add(%l, %b)", "linear(%x, %w, %b) {has_bias=True}"),
    "residual": ("%y: f32[tokens, 6] = add(%r, %l)", "linear(%x, %w, %r) {has_residual=True}"),
    "activation": ("%y: f32[tokens, 6] = silu(%l)", 'linear(%x, %w) {activation="silu"}'),
    "bias, activation and residual": (
        "%s: f32[tokens, 6] = add(%b, %l)\n%a: f32[tokens, 6] = gelu(%s)\n"
        "%y: f32[tokens, 6] = add(%a, %r)",
        'linear(%x, %w, %b, %r) {has_bias=True, has_residual=True, activation="gelu"}',
    ),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue(name: str, check: Check) -> None:
    before, after = EPILOGUES[name]
    head = X if "%b" in before else X.replace("param %b: f32[6]\n", "")
    check(
        "fuse-linear-epilogue",
        f"{head}{LINEAR}{before}\nreturn %y\n}}",
        f"{head}%y: f32[tokens, 6] = {after}\nreturn %y\n}}",
    )


def test_sum_of_two_linears_fuses_into_one(check: Check) -> None:
    head = X.replace("%b: f32[6]", "%u: f32[6, 4]")
    second = "%m: f32[tokens, 6] = linear(%x, %u)\n"
    fused = "%y: f32[tokens, 6] = linear(%x, %w, %m) {has_residual=True}\n"
    check(
        "fuse-linear-epilogue",
        f"{head}{LINEAR}{second}%y: f32[tokens, 6] = add(%l, %m)\nreturn %y\n}}",
        f"{head}{second}{fused}return %y\n}}",
    )


NO_EPILOGUE = {
    "read twice": "%s: f32[tokens, 6] = add(%l, %r)\n%y: f32[tokens, 6] = mul(%s, %l)",
    "added to itself": "%y: f32[tokens, 6] = add(%l, %l)",
    "a sum that broadcasts": (
        "%l3: f32[tokens, 6] = mul(%l, %b)\n"
        "%q: f32[1, tokens, 6] = reshape(%r) {shape=(1, tokens, 6)}\n"
        "%y: f32[1, tokens, 6] = add(%l3, %q)"
    ),
    "activation after the residual": (
        "%o: f32[tokens, 6] = linear(%x, %w, %r) {has_residual=True}\n"
        "%s: f32[tokens, 6] = silu(%o)\n%y: f32[tokens, 6] = mul(%s, %l)"
    ),
    "a bias that is a column": (
        "%c: f32[tokens, 1] = slice(%r) {axis=1, start=0, stop=1}\n%y: f32[tokens, 6] = add(%l, %c)"
    ),
}


@pytest.mark.parametrize("name", NO_EPILOGUE)
def test_no_epilogue(name: str, check: Check) -> None:
    body = NO_EPILOGUE[name]
    head = X if "%b" in body else X.replace("param %b: f32[6]\n", "")
    check("fuse-linear-epilogue", f"{head}{LINEAR}{body}\nreturn %y\n}}")


def test_epilogues_that_are_off_stay_apart(check: Check) -> None:
    body = "%s: f32[tokens, 6] = add(%l, %b)\n%a: f32[tokens, 6] = silu(%s)"
    before = f"{X}{LINEAR}{body}\n%y: f32[tokens, 6] = add(%a, %r)\nreturn %y\n}}"
    check("fuse-linear-epilogue{bias=False, activation=False, residual=False}", before)


def test_a_linear_that_is_the_output_stays(check: Check) -> None:
    head = X.replace("param %b: f32[6]\n", "")
    body = f"{LINEAR}%y: f32[tokens, 6] = add(%l, %r)\nreturn %y, %l\n}}"
    check("fuse-linear-epilogue", head + body)


# Residual sum and norm --------------------------------------------------------------------------

S = "graph g(%x: f32[tokens, 4], %r: f32[tokens, 4]) {\nparam %w: f32[4]\n"
SUM = "%s: f32[tokens, 4] = add(%x, %r)\n"
NORM = "%y: f32[tokens, 4] = rmsnorm(%s, %w) {eps=0.5}\n"
USE = "%z: f32[tokens, 4] = mul(%s, %y)\nreturn %z\n}"


def test_add_rmsnorm(check: Check) -> None:
    fused = "%s: f32[tokens, 4], %y: f32[tokens, 4] = add_rmsnorm(%x, %r, %w) {eps=0.5}\n"
    check("fuse-add-rmsnorm", S + SUM + NORM + USE, S + fused + USE)


def test_add_rmsnorm_with_a_computed_weight(check: Check) -> None:
    computed = "%v: f32[4] = exp(%w)\n"
    norm = NORM.replace("%w)", "%v)")
    fused = "%s: f32[tokens, 4], %y: f32[tokens, 4] = add_rmsnorm(%x, %r, %v) {eps=0.5}\n"
    check("fuse-add-rmsnorm", S + SUM + computed + norm + USE, S + computed + fused + USE)
    read_early = SUM + "%e: f32[tokens, 4] = exp(%s)\n" + computed + norm
    check("fuse-add-rmsnorm", S + read_early + USE.replace("mul(%s", "mul(%e"))


def test_no_add_rmsnorm_of_a_sum_that_broadcasts(check: Check) -> None:
    check("fuse-add-rmsnorm", S.replace("%r: f32[tokens, 4]", "%r: f32[4]") + SUM + NORM + USE)


def test_only_the_first_norm_takes_a_sum(check: Check) -> None:
    more = "%y2: f32[tokens, 4] = rmsnorm(%s, %w)\n"
    use = "%z: f32[tokens, 4] = mul(%y2, %y)\nreturn %z\n}"
    fused = "%s: f32[tokens, 4], %y: f32[tokens, 4] = add_rmsnorm(%x, %r, %w) {eps=0.5}\n"
    check("fuse-add-rmsnorm", S + SUM + NORM + more + use, S + fused + more + use)


# Rope and cache write ---------------------------------------------------------------------------

STEP = (
    "graph g(%l: f32[tokens, 16], %c: f32[tokens, 2], %s: f32[tokens, 2], %slots: i32[tokens], "
    "%query_start: i32[seqs + 1], %seq_lens: i32[seqs], %page_table: i32[seqs, pages]) {\n"
    "state %kv: bf16[1, 2, kv_slots, 1, 4]\n"
)
PARTS = (
    "%ql: f32[tokens, 8] = slice(%l) {axis=1, start=0, stop=8}\n"
    "%kl: f32[tokens, 4] = slice(%l) {axis=1, start=8, stop=12}\n"
    "%vl: f32[tokens, 4] = slice(%l) {axis=1, start=12, stop=16}\n"
    "%q: f32[tokens, 2, 4] = reshape(%ql) {shape=(tokens, 2, 4)}\n"
    "%k: f32[tokens, 1, 4] = reshape(%kl) {shape=(tokens, 1, 4)}\n"
    "%v: f32[tokens, 1, 4] = reshape(%vl) {shape=(tokens, 1, 4)}\n"
    "%qr: f32[tokens, 2, 4] = rope(%q, %c, %s)\n%kr: f32[tokens, 1, 4] = rope(%k, %c, %s)\n"
    "%t: bf16[1, 2, kv_slots, 1, 4] = write_kv(%kv, %kr, %v, %slots) {layer=0, kv_dtype=bf16}\n"
)
ATTEND = (
    "%a: f32[tokens, 2, 4] = paged_attention(%qr, %t, %query_start, %seq_lens, %page_table) "
    "{layer=0, scale=0.5, page_size=4}\n"
)
FUSED = (
    "%qr: f32[tokens, 2, 4], %t: bf16[1, 2, kv_slots, 1, 4] = "
    "rope_write_kv(%l, %c, %s, %kv, %slots) {heads=2, layer=0, kv_dtype=bf16}\n"
)


def test_rope_write_kv(normal: Callable[[str], str]) -> None:
    graph = parse_graph(f"{STEP}{PARTS}{ATTEND}return %a\n}}")
    assert FuseRopeWriteKv().run(graph)
    verify(graph)
    after = parse_graph(f"{STEP}{FUSED}{ATTEND}return %a\n}}")
    assert normal(graph.as_text()) == normal(after.as_text())
    assert not FuseRopeWriteKv().run(graph)


V_COLUMNS = "%vl: f32[tokens, 4] = slice(%l)"
WRITE = "%t: bf16[1, 2, kv_slots, 1, 4] = write_kv(%kv, %kr,"
NO_ROPE_WRITE = {
    "q in another layout": ("rope(%q, %c, %s)", "rope(%q, %c, %s) {interleaved=True}"),
    "other tables for k": ("rope(%k, %c, %s)", "rope(%k, %s, %c)"),
    "k and v swapped": (
        f"{{axis=1, start=8, stop=12}}\n{V_COLUMNS} {{axis=1, start=12, stop=16}}",
        f"{{axis=1, start=12, stop=16}}\n{V_COLUMNS} {{axis=1, start=8, stop=12}}",
    ),
    "q read elsewhere": ("return %a", "%e: f32[tokens, 2, 4] = add(%a, %qr)\nreturn %e"),
    "k read elsewhere": ("return %a", "%e: f32[tokens, 2, 4] = add(%a, %kr)\nreturn %e"),
    "columns left over": ("%l: f32[tokens, 16]", "%l: f32[tokens, 20]"),
    "v changed on the way": (
        f"{WRITE} %v,",
        f"%ve: f32[tokens, 1, 4] = exp(%v)\n{WRITE} %ve,",
    ),
}


@pytest.mark.parametrize("name", NO_ROPE_WRITE)
def test_no_rope_write_kv(name: str) -> None:
    old, new = NO_ROPE_WRITE[name]
    text = f"{STEP}{PARTS}{ATTEND}return %a\n}}"
    assert old in text
    graph = parse_graph(text.replace(old, new))
    assert not FuseRopeWriteKv().run(graph)
    assert graph.as_text() == parse_graph(text.replace(old, new)).as_text()


NORMED = (
    PARTS.replace("rope(%q,", "rope(%qn,")
    .replace("rope(%k,", "rope(%kn,")
    .replace("%qr:", "%qn: f32[tokens, 2, 4] = rmsnorm(%q, %wq)\n%qr:")
    .replace("%kr:", "%kn: f32[tokens, 1, 4] = rmsnorm(%k, %wk)\n%kr:")
)
NORM_STEP = STEP.replace("{\n", "{\nparam %wq: f32[4]\nparam %wk: f32[4]\n", 1)


def test_rope_write_kv_with_norms(normal: Callable[[str], str]) -> None:
    text = f"{NORM_STEP}{NORMED}{ATTEND}return %a\n}}"
    graph = parse_graph(text)
    assert not FuseRopeWriteKv().run(graph)
    assert FuseRopeWriteKv(norms=True).run(graph)
    verify(graph)
    fused = FUSED.replace("%slots)", "%slots, %wq, %wk)").replace("}\n", ", eps=1e-06}\n")
    after = parse_graph(f"{NORM_STEP}{fused}{ATTEND}return %a\n}}")
    assert normal(graph.as_text()) == normal(after.as_text())
    assert not FuseRopeWriteKv(norms=True).run(graph)
    sizes = {"tokens": 3, "seqs": 2, "pages": 2, "kv_slots": 16}
    inputs = {
        "query_start": np.array([0, 2, 3], np.int32),
        "seq_lens": np.array([2, 5], np.int32),
        "page_table": np.array([[1, 0], [2, 3]], np.int32),
        "slots": np.array([4, 5, 12], np.int32),
    }
    assert_same_numbers(parse_graph(text), graph, sizes, inputs=inputs)


NO_NORMS = {
    "other eps for k": ("rmsnorm(%k, %wk)", "rmsnorm(%k, %wk) {eps=0.1}"),
    "a norm on q alone": (
        "%kr: f32[tokens, 1, 4] = rope(%kn,",
        "%kr: f32[tokens, 1, 4] = rope(%k,",
    ),
    "a weight made after the write": (
        "rmsnorm(%q, %wq)",
        "rmsnorm(%q, %wl)",
    ),
}


@pytest.mark.parametrize("name", NO_NORMS)
def test_no_rope_write_kv_with_norms(name: str) -> None:
    old, new = NO_NORMS[name]
    text = f"{NORM_STEP}{NORMED}{ATTEND}return %a\n}}"
    assert old in text
    text = text.replace(old, new)
    if "%wl" in text:  # q is normalized only behind the write
        q = next(line for line in text.splitlines() if line.startswith("%qn:"))
        r = next(line for line in text.splitlines() if line.startswith("%qr:"))
        for line in (q, r):
            text = text.replace(f"{line}\n", "")
        late = f"%wl: f32[4] = exp(%wq)\n{q}\n{r}\n"
        text = text.replace("%a: f32", f"{late}%a: f32")
    graph = parse_graph(text)
    FuseRopeWriteKv(norms=True).run(graph)
    assert "write_kv" in [node.op.name for node in graph.nodes]


# Weight types -----------------------------------------------------------------------------------

WEIGHTS = """graph g(%ids: i32[tokens]) {
param %embed: f32[8, 32]
param %norm: f32[32]
param %wa: f32[32, 32]
param %wb: f32[32, 32]
param %bias: f32[32]
param %shared: f32[32, 32]
%x: f32[tokens, 32] = embedding(%embed, %ids)
%n: f32[tokens, 32] = rmsnorm(%x, %norm)
%a: f32[tokens, 32] = linear(%n, %wa)
%b: f32[tokens, 32] = linear(%a, %wb, %bias) {has_bias=True}
%c: f32[tokens, 32] = linear(%b, %shared)
%e: f32[32, 32] = exp(%shared)
%d: f32[tokens, 32] = matmul(%c, %e)
%y: f32[tokens, 8] = linear(%d, %embed)
return %y
}"""


def types(graph: Graph) -> dict[str, str]:
    return {v.name: str(v.type.dtype) for v in graph.params}


def test_bf16_is_for_matrix_weights_and_embeddings() -> None:
    graph = parse_graph(WEIGHTS)
    step = SetWeightDtypes(BF16)
    assert step.run(graph)
    verify(graph)
    f32 = dict.fromkeys(("norm", "bias", "shared"), "f32")
    assert types(graph) == {"embed": "bf16", "wa": "bf16", "wb": "bf16", **f32}
    assert not step.run(graph)


def test_stored_types_are_kept_whatever_the_plain_type_is() -> None:
    graph = parse_graph(WEIGHTS)
    stored = (("wa", Q4_1), ("embed", Q8_0), ("shared", Q8_0), ("no such weight", Q8_0))
    step = SetWeightDtypes(BF16, stored)
    assert step.run(graph)
    verify(graph)
    found = types(graph)
    assert (found["wa"], found["embed"], found["wb"]) == ("q4_1", "q8_0", "bf16")
    assert found["shared"] == "f32"  # another op reads it, in f32
    assert not step.run(graph)


def test_f32_changes_nothing() -> None:
    assert not SetWeightDtypes().run(parse_graph(WEIGHTS))


def test_a_computed_weight_is_rounded_after_its_computation() -> None:
    text = WEIGHTS.replace("linear(%b, %shared)", "linear(%b, %turned)").replace(
        "%x:", "%turned: f32[32, 32] = transpose(%shared) {permutation=(1, 0)}\n%x:"
    )
    graph = parse_graph(text)
    step = SetWeightDtypes(BF16)
    assert step.run(graph)
    verify(graph)
    (cast,) = [n for n in graph.nodes if n.op.name == "cast"]
    assert str(cast.outputs[0].type) == "bf16[32, 32]"
    assert not step.run(graph)


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    graph = parse_graph(
        "graph g(%x: f32[tokens, 4]) {\nparam %w: f32[6, 4]\n"
        "%y: f32[tokens, 6] = linear(%x, %w)\nreturn %y\n}"
    )
    with pytest.raises(PassError, match=r"w: expected rows of a multiple of 32 .* got f32\[6, 4\]"):
        SetWeightDtypes(stored=(("w", Q4_1),)).run(graph)
