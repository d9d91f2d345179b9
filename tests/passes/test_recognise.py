"""Recognition: every spelling of a known op is raised, near misses are left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sglk.ir.graph import Graph
from sglk.ir.parser import parse_graph
from sglk.passes.opt import parse_pipeline

Check = Callable[..., Graph]
X = "graph g(%x: f32[tokens, 4]) {\n"
CLEAN = "canonicalize,fold-constants,eliminate-common"

# Norms ------------------------------------------------------------------------------------------

SQUARES = (
    "const %eps: f32[] = [9.999999974752427e-07]\n%s: f32[tokens, 4] = mul(%x, %x)\n"
    "%m: f32[tokens, 1] = mean(%s) {axis=1, keepdim=True}\n%e: f32[tokens, 1] = add(%m, %eps)\n"
    "%r: f32[tokens, 1] = rsqrt(%e)\n"
)
NORMED = f"{SQUARES}%n: f32[tokens, 4] = mul(%x, %r)\n"
W = "param %w: f32[4]\n"
RMSNORMS = {
    "weight on the right": (
        f"{W}{NORMED}%y: f32[tokens, 4] = mul(%n, %w)",
        f"{W}%y: f32[tokens, 4] = rmsnorm(%x, %w)",
    ),
    "weight on the left, root first": (
        f"{W}{SQUARES}%n: f32[tokens, 4] = mul(%r, %x)\n%y: f32[tokens, 4] = mul(%w, %n)",
        f"{W}%y: f32[tokens, 4] = rmsnorm(%x, %w)",
    ),
    "weight before the root": (
        f"{W}{SQUARES}%n: f32[tokens, 4] = mul(%w, %x)\n%y: f32[tokens, 4] = mul(%n, %r)",
        f"{W}%y: f32[tokens, 4] = rmsnorm(%x, %w)",
    ),
    "one plus weight": (
        f"{W}const %one: f32[] = [1.0]\n%v: f32[4] = add(%w, %one)\n"
        f"{NORMED}%y: f32[tokens, 4] = mul(%n, %v)",
        f"{W}const %one: f32[] = [1.0]\n%v: f32[4] = add(%w, %one)\n"
        "%y: f32[tokens, 4] = rmsnorm(%x, %v)",
    ),
    "weight with leading ones": (
        f"param %w: f32[1, 4]\n{NORMED}%y: f32[tokens, 4] = mul(%n, %w)",
        "param %w: f32[1, 4]\n%v: f32[4] = reshape(%w) {shape=(4,)}\n"
        "%y: f32[tokens, 4] = rmsnorm(%x, %v)",
    ),
    "no weight": (
        f"{NORMED}%y: f32[tokens, 4] = exp(%n)",
        "const %o: f32[4] = [1.0, 1.0, 1.0, 1.0]\n%n: f32[tokens, 4] = rmsnorm(%x, %o)\n"
        "%y: f32[tokens, 4] = exp(%n)",
    ),
    "a weight that another op reads past": (
        f"{W}{NORMED}%p: f32[tokens, 4] = mul(%n, %w)\n%y: f32[tokens, 4] = add(%p, %n)",
        f"{W}const %o: f32[4] = [1.0, 1.0, 1.0, 1.0]\n%n: f32[tokens, 4] = rmsnorm(%x, %o)\n"
        "%p: f32[tokens, 4] = mul(%n, %w)\n%y: f32[tokens, 4] = add(%p, %n)",
    ),
    "another epsilon": (
        NORMED.replace("9.999999974752427e-07", "0.5") + "%y: f32[tokens, 4] = exp(%n)",
        "const %o: f32[4] = [1.0, 1.0, 1.0, 1.0]\n%n: f32[tokens, 4] = rmsnorm(%x, %o) {eps=0.5}\n"
        "%y: f32[tokens, 4] = exp(%n)",
    ),
}


@pytest.mark.parametrize("name", RMSNORMS)
def test_rmsnorm(name: str, check: Check) -> None:
    before, after = RMSNORMS[name]
    check("recognise-rmsnorm", f"{X}{before}\nreturn %y\n}}", f"{X}{after}\nreturn %y\n}}")


def test_rmsnorm_written_with_power_sum_and_root(check: Check) -> None:
    before = (
        f"{W}const %two: f32[] = [2.0]\nconst %n4: f32[] = [4.0]\nconst %eps: f32[] = [0.5]\n"
        "const %one: f32[] = [1.0]\n%d: f64[tokens, 4] = cast(%x) {dtype=f64}\n"
        "%f: f32[tokens, 4] = cast(%d) {dtype=f32}\n%s: f32[tokens, 4] = pow(%f, %two)\n"
        "%t: f32[tokens] = sum(%s) {axis=1}\n%u: f32[tokens, 1] = reshape(%t) {shape=(tokens, 1)}\n"
        "%m: f32[tokens, 1] = div(%u, %n4)\n%e: f32[tokens, 1] = add(%eps, %m)\n"
        "%q: f32[tokens, 1] = sqrt(%e)\n%n: f32[tokens, 4] = div(%f, %q)\n"
        "%y: f32[tokens, 4] = mul(%w, %n)\nreturn %y\n}"
    )
    after = f"{W}%y: f32[tokens, 4] = rmsnorm(%x, %w) {{eps=0.5}}\nreturn %y\n}}"
    check(f"{CLEAN},recognise-rmsnorm", X + before, X + after)


NO_RMSNORM = {
    "mean over the rows": NORMED.replace("f32[tokens, 1] = mean", "f32[1, 4] = mean")
    .replace("axis=1", "axis=0")
    .replace("%e: f32[tokens, 1]", "%e: f32[1, 4]")
    .replace("%r: f32[tokens, 1]", "%r: f32[1, 4]"),
    "root of another value": NORMED.replace("mul(%x, %r)", "mul(%s, %r)"),
    "product of two values": NORMED.replace("mul(%x, %x)", "mul(%x, %z)").replace(
        "%s:", "%z: f32[tokens, 4] = exp(%x)\n%s:", 1
    ),
    "epsilon that varies": NORMED.replace(
        "const %eps: f32[] = [9.999999974752427e-07]",
        "param %k: f32[1]\n%eps: f32[1] = exp(%k)",
    ),
}


@pytest.mark.parametrize("name", NO_RMSNORM)
def test_no_rmsnorm(name: str, check: Check) -> None:
    check("recognise-rmsnorm", f"{X}{NO_RMSNORM[name]}return %n\n}}", tokens=4)


CENTRED = (
    "const %eps: f32[] = [9.999999747378752e-06]\n"
    "%a: f32[tokens, 1] = mean(%x) {axis=1, keepdim=True}\n%c: f32[tokens, 4] = sub(%x, %a)\n"
    "%s: f32[tokens, 4] = mul(%c, %c)\n%m: f32[tokens, 1] = mean(%s) {axis=1, keepdim=True}\n"
    "%e: f32[tokens, 1] = add(%m, %eps)\n%r: f32[tokens, 1] = rsqrt(%e)\n"
    "%n: f32[tokens, 4] = mul(%c, %r)\n"
)
LAYERNORMS = {
    "weight and bias": (
        f"{W}param %b: f32[4]\n{CENTRED}%p: f32[tokens, 4] = mul(%n, %w)\n"
        "%y: f32[tokens, 4] = add(%p, %b)",
        f"{W}param %b: f32[4]\n%y: f32[tokens, 4] = layernorm(%x, %w, %b)",
    ),
    "weight alone": (
        f"{W}{CENTRED}%y: f32[tokens, 4] = mul(%w, %n)",
        f"{W}const %z: f32[4] = [0.0, 0.0, 0.0, 0.0]\n%y: f32[tokens, 4] = layernorm(%x, %w, %z)",
    ),
    "neither": (
        f"{CENTRED}%y: f32[tokens, 4] = exp(%n)",
        "const %o: f32[4] = [1.0, 1.0, 1.0, 1.0]\nconst %z: f32[4] = [0.0, 0.0, 0.0, 0.0]\n"
        "%n: f32[tokens, 4] = layernorm(%x, %o, %z)\n%y: f32[tokens, 4] = exp(%n)",
    ),
}


@pytest.mark.parametrize("name", LAYERNORMS)
def test_layernorm(name: str, check: Check) -> None:
    before, after = LAYERNORMS[name]
    check("recognise-layernorm", f"{X}{before}\nreturn %y\n}}", f"{X}{after}\nreturn %y\n}}")


def test_no_layernorm_of_a_value_centred_by_another_mean(check: Check) -> None:
    body = CENTRED.replace("mean(%x) {axis=1", "mean(%z) {axis=1").replace(
        "%a:", "%z: f32[tokens, 4] = exp(%x)\n%a:"
    )
    check("recognise-layernorm", f"{X}{body}return %n\n}}")


# Activations ------------------------------------------------------------------------------------

ACTIVATIONS = {
    "silu": ("silu", "%s: f32[tokens, 4] = sigmoid(%x)\n%y: f32[tokens, 4] = mul(%s, %x)"),
    "silu by exp": (
        "silu",
        "const %one: f32[] = [1.0]\n%n: f32[tokens, 4] = neg(%x)\n%e: f32[tokens, 4] = exp(%n)\n"
        "%d: f32[tokens, 4] = add(%e, %one)\n%y: f32[tokens, 4] = div(%x, %d)",
    ),
    "gelu": (
        "gelu",
        "const %half: f32[] = [0.5]\nconst %one: f32[] = [1.0]\nconst %c: f32[] = [0.70710678]\n"
        "%s: f32[tokens, 4] = mul(%x, %c)\n%e: f32[tokens, 4] = erf(%s)\n"
        "%p: f32[tokens, 4] = add(%e, %one)\n%h: f32[tokens, 4] = mul(%x, %half)\n"
        "%y: f32[tokens, 4] = mul(%h, %p)",
    ),
    "gelu, halved last": (
        "gelu",
        "const %half: f32[] = [0.5]\nconst %one: f32[] = [1.0]\nconst %c: f32[] = [1.41421354]\n"
        "%s: f32[tokens, 4] = div(%x, %c)\n%e: f32[tokens, 4] = erf(%s)\n"
        "%p: f32[tokens, 4] = add(%e, %one)\n%h: f32[tokens, 4] = mul(%x, %p)\n"
        "%y: f32[tokens, 4] = mul(%h, %half)",
    ),
    "gelu by tanh": (
        "gelu_tanh",
        "const %half: f32[] = [0.5]\nconst %one: f32[] = [1.0]\nconst %c: f32[] = [0.79788458]\n"
        "const %k: f32[] = [0.044715]\nconst %three: f32[] = [3.0]\n"
        "%p3: f32[tokens, 4] = pow(%x, %three)\n%k3: f32[tokens, 4] = mul(%p3, %k)\n"
        "%i: f32[tokens, 4] = add(%x, %k3)\n%s: f32[tokens, 4] = mul(%i, %c)\n"
        "%t: f32[tokens, 4] = tanh(%s)\n%p: f32[tokens, 4] = add(%t, %one)\n"
        "%h: f32[tokens, 4] = mul(%x, %half)\n%y: f32[tokens, 4] = mul(%h, %p)",
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str, check: Check) -> None:
    op, before = ACTIVATIONS[name]
    after = f"{X}%y: f32[tokens, 4] = {op}(%x)\nreturn %y\n}}"
    check("recognise-activations", f"{X}{before}\nreturn %y\n}}", after)


def test_activation_of_a_computed_value(check: Check) -> None:
    linear = f"{X}param %w: f32[4, 4]\n%l: f32[tokens, 4] = linear(%x, %w)\n"
    silu = "%s: f32[tokens, 4] = sigmoid(%l)\n%y: f32[tokens, 4] = mul(%l, %s)"
    check(
        "recognise-activations",
        f"{linear}{silu}\nreturn %y\n}}",
        f"{linear}%y: f32[tokens, 4] = silu(%l)\nreturn %y\n}}",
    )


NO_ACTIVATION = {
    "sigmoid of another value": (
        "%e: f32[tokens, 4] = exp(%x)\n%s: f32[tokens, 4] = sigmoid(%e)\n"
        "%y: f32[tokens, 4] = mul(%s, %x)"
    ),
    "steeper sigmoid": (
        "const %c: f32[] = [1.702]\n%k: f32[tokens, 4] = mul(%x, %c)\n"
        "%s: f32[tokens, 4] = sigmoid(%k)\n%y: f32[tokens, 4] = mul(%s, %x)"
    ),
    "square": "%y: f32[tokens, 4] = mul(%x, %x)",
}


@pytest.mark.parametrize("name", NO_ACTIVATION)
def test_no_activation(name: str, check: Check) -> None:
    check("recognise-activations", f"{X}{NO_ACTIVATION[name]}\nreturn %y\n}}")


# Gated MLP --------------------------------------------------------------------------------------

GATE_UP = (
    "param %g: f32[6, 4]\nparam %u: f32[6, 4]\n%a: f32[tokens, 6] = linear(%x, %g)\n"
    "%s: f32[tokens, 6] = silu(%a)\n%b: f32[tokens, 6] = linear(%x, %u)\n"
)
GATED = (
    "param %g: f32[6, 4]\nparam %u: f32[6, 4]\n%w: f32[12, 4] = concat(%g, %u) {axis=0}\n"
    '%y: f32[tokens, 6] = gated_linear(%x, %w) {activation="silu"}'
)


@pytest.mark.parametrize("product", ["mul(%s, %b)", "mul(%b, %s)"])
def test_gated_mlp(product: str, check: Check) -> None:
    before = f"{X}{GATE_UP}%y: f32[tokens, 6] = {product}\nreturn %y\n}}"
    check("recognise-gated-mlp", before, f"{X}{GATED}\nreturn %y\n}}")


def test_gated_mlp_of_one_linear(check: Check) -> None:
    halves = (
        "param %w: f32[12, 4]\n%l: f32[tokens, 12] = linear(%x, %w)\n"
        "%a: f32[tokens, 6] = slice(%l) {axis=1, start=0, stop=6}\n"
        "%b: f32[tokens, 6] = slice(%l) {axis=1, start=6, stop=12}\n"
        "%s: f32[tokens, 6] = gelu(%a)\n%y: f32[tokens, 6] = mul(%b, %s)"
    )
    after = 'param %w: f32[12, 4]\n%y: f32[tokens, 6] = gated_linear(%x, %w) {activation="gelu"}'
    check("recognise-gated-mlp", f"{X}{halves}\nreturn %y\n}}", f"{X}{after}\nreturn %y\n}}")


def test_halves_that_the_target_cannot_pack_stay_apart(check: Check) -> None:
    before = f"{X}{GATE_UP}%y: f32[tokens, 6] = mul(%s, %b)\nreturn %y\n}}"
    check("recognise-gated-mlp{rows=4}", before)
    check("recognise-gated-mlp{rows=3}", before, f"{X}{GATED}\nreturn %y\n}}")


NO_GATE = {
    "weights of two types": GATE_UP.replace("param %u: f32", "param %u: bf16"),
    "weights of two widths": GATE_UP.replace("param %g: f32[6", "param %g: f32[1").replace(
        "%a: f32[tokens, 6]", "%a: f32[tokens, 1]"
    ).replace("%s: f32[tokens, 6]", "%s: f32[tokens, 1]"),
    "operands of two values": GATE_UP.replace("linear(%x, %u)", "linear(%z, %u)").replace(
        "%b:", "%z: f32[tokens, 4] = exp(%x)\n%b:"
    ),
    "a product that is read again": GATE_UP.replace("linear(%x, %u)", "linear(%z, %u)").replace(
        "%b:", "%z: f32[tokens, 4] = slice(%a) {axis=1, start=0, stop=4}\n%b:"
    ),
    "a bias": "param %k: f32[6]\n"
    + GATE_UP.replace("linear(%x, %g)", "linear(%x, %g, %k) {has_bias=True}"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_GATE)
def test_no_gated_mlp(name: str, check: Check) -> None:
    body = f"{NO_GATE[name]}%y: f32[tokens, 6] = mul(%s, %b)"
    check("recognise-gated-mlp", f"{X}{body}\nreturn %y\n}}")


# QKV and rope -----------------------------------------------------------------------------------

STEP = (
    "graph g(%token_ids: i32[tokens], %positions: i32[tokens], %slots: i32[tokens], "
    "%query_start: i32[seqs + 1], %seq_lens: i32[seqs], %page_table: i32[seqs, pages], "
    "%logit_rows: i32[rows], %x: f32[tokens, 4]) {\n"
)
ATTEND = (
    "%t: f32[1, 2, kv_slots, 1, 4] = write_kv(%kv, %k, %v, %slots) {layer=0}\n"
    "%a: f32[tokens, 2, 4] = paged_attention(%q, %t, %query_start, %seq_lens, %page_table) "
    "{layer=0, scale=0.5, page_size=4}\nreturn %a\n}"
)
STATE = "state %kv: f32[1, 2, kv_slots, 1, 4]\n"
HEADS = (
    "%q: f32[tokens, 2, 4] = reshape(%ql) {shape=(tokens, 2, 4)}\n"
    "%k: f32[tokens, 1, 4] = reshape(%kl) {shape=(tokens, 1, 4)}\n"
    "%v: f32[tokens, 1, 4] = reshape(%vl) {shape=(tokens, 1, 4)}\n"
)
WEIGHTS = "param %wq: f32[8, 4]\nparam %wk: f32[4, 4]\nparam %wv: f32[4, 4]\n"
LINEARS = (
    "%ql: f32[tokens, 8] = linear(%x, %wq)\n%kl: f32[tokens, 4] = linear(%x, %wk)\n"
    "%vl: f32[tokens, 4] = linear(%x, %wv)\n"
)
SLICES = (
    "%ql: f32[tokens, 8] = slice(%l) {axis=1, start=0, stop=8}\n"
    "%kl: f32[tokens, 4] = slice(%l) {axis=1, start=8, stop=12}\n"
    "%vl: f32[tokens, 4] = slice(%l) {axis=1, start=12, stop=16}\n"
)


def changed(pipeline: str, text: str) -> Graph:
    graph = parse_graph(text)
    for step in parse_pipeline(pipeline):
        step.run(graph)
    return graph


def test_qkv(normal: Callable[[str], str]) -> None:
    joined = (
        "%w: f32[16, 4] = concat(%wq, %wk, %wv) {axis=0}\n%l: f32[tokens, 16] = linear(%x, %w)\n"
    )
    graph = changed("recognise-qkv", STEP + WEIGHTS + STATE + LINEARS + HEADS + ATTEND)
    after = parse_graph(STEP + WEIGHTS + STATE + joined + SLICES + HEADS + ATTEND)
    assert normal(graph.as_text()) == normal(after.as_text())
    assert not any(p.run(graph) for p in parse_pipeline("recognise-qkv"))


def test_qkv_of_block_types() -> None:
    text = (STEP + WEIGHTS + STATE + LINEARS + HEADS + ATTEND).replace("4]) {", "32]) {")
    for name, rows in (("wq", 8), ("wk", 4), ("wv", 4)):
        text = text.replace(f"%{name}: f32[{rows}, 4]", f"%{name}: q4_1[{rows}, 32]")
    graph = changed("recognise-qkv", text)
    assert sum(n.op.name == "linear" for n in graph.nodes) == 1
    mixed = text.replace("%wv: q4_1", "%wv: q8_0")
    assert changed("recognise-qkv", mixed).as_text() == parse_graph(mixed).as_text()


V = "f32[tokens, 4]"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"%vl: {V} = linear(%x, %wv)", f"%l: {V} = linear(%x, %wv)\n%vl: {V} = exp(%l)"),
        ("linear(%x, %wv)", "linear(%x, %wv, %x) {has_residual=True}"),
        (f"%kl: {V} = linear(%x", f"%z: {V} = exp(%x)\n%kl: {V} = linear(%z"),
    ],
)
def test_no_qkv(old: str, new: str) -> None:
    text = (STEP + WEIGHTS + STATE + LINEARS + HEADS + ATTEND).replace(old, new)
    assert changed("recognise-qkv", text).as_text() == parse_graph(text).as_text()
