"""The text form: random graphs read back exactly, and bad text is refused with its line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk.errors import VerifyError
from sglk.ir.dim import dim
from sglk.ir.dtype import BF16, BOOL, DTYPES, F32, I64, DType
from sglk.ir.graph import Graph, Value
from sglk.ir.interpret import interpret
from sglk.ir.op import Op
from sglk.ir.ops.elementwise import Add, Cast, Exp, Mul, Neg, Where
from sglk.ir.ops.linear import Linear
from sglk.ir.ops.norm import RmsNorm
from sglk.ir.ops.reduce import Softmax
from sglk.ir.ops.shape import Broadcast, Concat, Iota, Reshape, Transpose
from sglk.ir.parser import make_op, parse_attributes, parse_graph
from sglk.ir.printer import attribute_text
from sglk.ir.rewrite import clone
from sglk.ir.testing import assert_same_numbers, random_inputs
from sglk.ir.types import TensorType
from sglk.ir.verify import verify

T = dim("tokens")
names = st.from_regex(r"[a-zA-Z_0-9./:-]{1,12}", fullmatch=True)


def data_for(dtype: DType, draw: st.DrawFn) -> np.ndarray:
    """Any bits: NaN, infinities and denormals included."""
    count = draw(st.sampled_from([0, 1, 3, 40]))
    raw = draw(st.binary(min_size=8 * count, max_size=8 * count))
    data = np.frombuffer(raw, np.uint8)[: count * dtype.numpy.itemsize]
    return data % 2 == 1 if dtype == BOOL else data.view(dtype.numpy)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs on f32 values [tokens, 8], with leaves of every kind."""
    graph = Graph(draw(names))
    shape = TensorType(F32, (T, 8))
    leaves = draw(st.lists(names, min_size=4, max_size=6, unique=True))
    values = [graph.input(leaves[0], shape), graph.param(leaves[1], shape)]
    weight = graph.param(leaves[2], TensorType(F32, (8,)))
    square = graph.param(leaves[3], TensorType(BF16, (8, 8)))
    for name in leaves[4:]:
        dtype = draw(st.sampled_from([d for d in DTYPES.values() if not d.is_block]))
        data = data_for(dtype, draw)
        graph.const(data, TensorType(dtype, data.shape), name)
    sources = st.sampled_from(["", "model.py:3 forward", 'a {b} "c" # (d)  # e', "x = y"])
    for _ in range(draw(st.integers(0, 8))):
        a, b = (draw(st.sampled_from(values)) for _ in range(2))
        choices: list[tuple[Op, list[Value]]] = [
            (Add(), [a, b]),
            (Mul(), [a, a]),
            (Neg(), [a]),
            (Exp(), [a]),
            (Softmax(), [a]),
            (RmsNorm(draw(st.floats(1e-12, 1))), [a, weight]),
            (Linear(activation="silu"), [a, square]),
            (Linear(has_residual=True), [a, square, b]),
        ]
        op, operands = draw(st.sampled_from(choices))
        wanted = [draw(names)] if draw(st.booleans()) else []
        values += graph.append(op, *operands, source=draw(sources), names=wanted)
    graph.outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return graph


@settings(max_examples=60)
@given(graphs())
def test_random_graphs_read_back(graph: Graph) -> None:
    verify(graph)
    again = parse_graph(graph.as_text())
    verify(again)
    assert again.as_text() == graph.as_text()
    assert [n.op for n in again.nodes] == [n.op for n in graph.nodes]
    assert [n.source for n in again.nodes] == [" ".join(n.source.split()) for n in graph.nodes]
    for a, b in zip(again.consts, graph.consts, strict=True):
        assert a.data is not None and b.data is not None
        np.testing.assert_array_equal(a.data, b.data)


@settings(max_examples=25)
@given(graphs())
def test_random_graphs_compute_the_same_after_reading_back(graph: Graph) -> None:
    """To the bit, overflow of towers of exponentials included."""
    again, sizes = parse_graph(graph.as_text()), {"tokens": 3}
    arrays = random_inputs(graph, np.random.default_rng(0), sizes)
    with np.errstate(all="ignore"):
        runs = [interpret(clone(g, sizes), arrays, arrays) for g in (graph, again)]
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)


@given(st.text(max_size=30))
def test_any_string_attribute_reads_back(text: str) -> None:
    assert parse_attributes(f"a={attribute_text(text)}") == {"a": text}


PLAIN = [1, -1, 1.5, -1e-12, 1e300, float("inf"), float("-inf"), True, None, "", 'a"b\\', ()]


@pytest.mark.parametrize("value", [*PLAIN, (1,), (1, (2, 3)), T * 2 + 1, (T, 8), *DTYPES.values()])
def test_attribute_values_read_back(value: object) -> None:
    assert parse_attributes(f"a={attribute_text(value)}") == {"a": value}


def test_a_numpy_float_prints_as_a_float() -> None:
    assert attribute_text(np.float64(0.25)) == "0.25"


def test_an_attribute_without_a_text_is_refused() -> None:
    with pytest.raises(VerifyError, match="expected plain data, got int64"):
        attribute_text(np.int64(4))


def test_symbolic_attributes_and_states_read_back() -> None:
    graph = Graph("g")
    x = graph.input("x", TensorType(F32, (T, 8)))
    graph.state("kv", TensorType(BF16, (1, 2, dim("kv_slots"), 1, 4)))
    wide = graph.emit(Broadcast((T, 8)), graph.emit(Cast(F32), x))
    folded = graph.emit(Reshape((T * 2, 4)), wide)
    joined = graph.emit(Concat(0), folded, graph.emit(Transpose((0, 1)), folded))
    mask = graph.const(np.array([True, False, True, False]), TensorType(BOOL, (4,)))
    graph.outputs = [graph.emit(Where(), mask, joined, joined), graph.emit(Iota(T * 2, I64))]
    again = parse_graph(graph.as_text())
    assert again.as_text() == graph.as_text()
    assert [n.op for n in again.nodes] == [n.op for n in graph.nodes]
    assert_same_numbers(graph, again, {"tokens": 3, "kv_slots": 4})


HEAD = "graph g(%x: f32[4, 8]) {\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a line 'return"),
        (HEAD, "expected a line 'return"),
        ("return %x", "line 1: expected a header"),
        ("graph g(%x f32[4]) {", "line 1: expected '%name: type'"),
        ("graph g(%x: f32[4], oops) {", "line 1: expected '%name: type'"),
        (HEAD + HEAD, "line 2: expected one graph"),
        (HEAD + "nonsense", "line 2: expected a param, state"),
        (HEAD + "%y: f32[4, 8] = exq(%x)", "line 2: unknown op 'exq'"),
        (HEAD + "%y: f32[4, 8] = exp(%z)", "line 2: %z is read before"),
        (HEAD + "%y: f32[4, 8] = exp()", "line 2: exp: expected 1 operands, got 0"),
        (HEAD + "%y: f32[4, 9] = exp(%x)", r"expected results of f32\[4, 8\], got f32\[4, 9\]"),
        (HEAD + "%y: f32[4, 8], %z: f32[4] = exp(%x)", "expected results of"),
        (HEAD + "%y: f32[4, 8] junk = exp(%x)", "expected '%name: type'"),
        (HEAD + "%x: f32[4, 8] = exp(%x)", "%x is defined twice"),
        (HEAD + "param %x: f32[4]", "%x is defined twice"),
        (HEAD + "param %w: f33[4]", "dtype: expected one of"),
        (HEAD + "param %w: f32[4] = [1]", "expected data for a const"),
        (HEAD + "const %c: f32[2]", "expected data for a const"),
        (HEAD + "const %c: f32[2] = [1.0]", "constant data"),
        (HEAD + "const %c: f32[2] = [1.0, x]", "constant data"),
        (HEAD + "const %c: u8[1] = [300]", "constant data"),
        (HEAD + "const %c: f32[n] = [300]", "expected sizes for every symbol"),
        (HEAD + 'const %c: f32[2] = "@@"', "constant data"),
        (HEAD + 'const %c: f32[2] = "AAAA"', "constant data"),
        (HEAD + "%y: f32[4, 8] = softmax(%x) {axes=1}", r"among \['axis'\], got \['axes'\]"),
        (HEAD + '%y: f32[4, 8] = softmax(%x) {axis="a"}', "expected axis to be .*int"),
        (HEAD + "%y: f32[4, 8] = softmax(%x) {axis=True}", "expected axis to be .*int"),
        (HEAD + "%y: f32[4, 8] = softmax(%x) {1}", "expected name=value pairs"),
        (HEAD + "%y: f32[4, 8] = softmax(%x) {**a}", "expected name=value pairs"),
        (HEAD + "%y: f32[4, 8] = softmax(%x) {axis=}", "expected an expression"),
        (HEAD + "%y: f32[4, 8] = reshape(%x)", "op reshape: .*shape"),
        (HEAD + "return %x\n%y: f32[4, 8] = exp(%x)", "expected the end of the graph"),
    ],
)
def test_bad_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        parse_graph(text)


def test_comments_blank_lines_and_windows_line_ends_are_skipped() -> None:
    text = "# a note\r\n\r\ngraph g(%x: f32[4]) {\r\n  return %x\r\n}\r\n"
    assert parse_graph(text).as_text() == "graph g(%x: f32[4]) {\n  return %x\n}\n"


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("reshape", {"shape": 3}),
        ("reshape", {"shape": (3, "a")}),
        ("cast", {"dtype": "f32"}),
        ("linear", {"activation": 3}),
        ("linear", {"has_bias": 1}),
        ("attention", {"scale": None}),
    ],
)
def test_attributes_of_a_wrong_type_are_refused(name: str, attributes: dict[str, object]) -> None:
    with pytest.raises(VerifyError, match=f"op {name}: expected"):
        make_op(name, attributes)
