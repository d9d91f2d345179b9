"""ONNX models as graphs: free sizes, fixed numbers, control flow, files, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import sglk
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sglk.errors import FrontendError, RequestError
from sglk.frontend import Captured, load_model
from sglk.frontend.onnx.registry import NeedsValue
from sglk.ir.interpret import interpret
from sglk.ir.rewrite import clone
from sglk.onnx_backend import run_model, run_node

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
node = helper.make_node


def value(name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def array(name: str, data: Any, dtype: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.array(data, dtype), name)


def model_of(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    stored: Sequence[Any] = (),
    opset: int = 18,
    **kwargs: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(stored))
    imports = [helper.make_opsetid("", opset), *kwargs.pop("imports", ())]
    return helper.make_model(graph, opset_imports=imports, **kwargs)


def run(captured: Captured, *arrays: np.ndarray) -> list[np.ndarray]:
    """On the reference, for the sizes of these arrays."""
    graph = captured.graph
    sizes = {
        str(dim): size
        for v, a in zip(graph.inputs, arrays, strict=True)
        for dim, size in zip(v.type.shape, a.shape, strict=True)
    }
    fixed = clone(graph, {name: size for name, size in sizes.items() if not name.isdecimal()})
    given = {v.name: a for v, a in zip(fixed.inputs, arrays, strict=True)}
    return [np.asarray(a) for a in interpret(fixed, given, captured.weights.read)]


def heads_model() -> onnx.ModelProto:
    """Sizes asked for, computed with, used as a shape and as a number; heads are an input."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Split", ["shape", "ones"], ["batch", "seq", "width"]),
        node("Unsqueeze", ["heads", "zero"], ["h"]),
        node("Div", ["width", "h"], ["d"]),
        node("Concat", ["batch", "seq", "h", "d"], ["wanted"], axis=0),
        node("Add", ["x", "layer.0/weight matrix"], ["moved"]),
        node("Reshape", ["moved", "wanted"], ["parts"]),
        node("ReduceMax", ["parts", "three"], ["top"]),
        node("Cast", ["seq"], ["number"], to=TensorProto.FLOAT),
        node("Div", ["top", "number"], ["y"]),
    ]
    stored = [
        array("ones", [1, 1, 1]),
        array("zero", [0]),
        array("three", [3]),
        array("layer.0/weight matrix", np.arange(96).reshape(1, 96), np.float32),
    ]
    inputs = [value("x", ["batch", "seq", 96]), value("heads", [], TensorProto.INT64)]
    return model_of(nodes, inputs, [value("y", ["batch", "seq", "h", 1])], stored)


def test_named_sizes_stay_free_and_numbers_that_decide_shapes_are_given() -> None:
    model = heads_model()
    captured = load_model(model, const={"heads": 4})
    assert [v.name for v in captured.graph.inputs] == ["x"]
    assert [str(d) for d in captured.graph.inputs[0].type.shape] == ["batch", "seq", "96"]
    assert [v.name for v in captured.graph.params] == ["layer.0/weight_matrix"]
    reference = ReferenceEvaluator(model)
    for shape in ((2, 5, 96), (1, 1, 96), (3, 2, 96)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        (wanted,) = reference.run(None, {"x": x, "heads": np.array(4)})
        np.testing.assert_allclose(run(captured, x)[0], np.asarray(wanted), rtol=1e-5)


def test_sizes_can_be_fixed() -> None:
    captured = load_model(heads_model(), const={"heads": 2}, sizes={"batch": 3})
    assert [str(d) for d in captured.graph.inputs[0].type.shape] == ["3", "seq", "96"]


def test_a_needed_number_is_asked_for_by_name() -> None:
    with pytest.raises(NeedsValue, match=r"Reshape parts: .* numbers in heads .*--const heads="):
        load_model(heads_model())
    with pytest.raises(FrontendError, match=r"--const: expected inputs of g \(heads, x\), got k"):
        load_model(heads_model(), const={"k": 1})


def test_unknown_ops_are_listed_together() -> None:
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("StringNormalizer", ["s"], ["t"], name="clean"),
        node("Nope", ["a"], ["b"], domain="their.own"),
        node("Nope", ["b"], ["y"], domain="their.own"),
    ]
    inputs = [value("x", [2]), value("s", [1], TensorProto.STRING)]
    imports = [helper.make_opsetid("their.own", 1)]
    model = model_of(nodes, inputs, [value("y", [2])], imports=imports)
    listed = r"got 2 kinds without: StringNormalizer x1 \(clean\); their.own.Nope x2 \(b, y\)"
    with pytest.raises(FrontendError, match=listed):
        load_model(model)


def test_slices_of_free_sizes_are_cut_where_the_axis_ends() -> None:
    nodes = [node("Slice", ["x", "start", "end", "axis"], ["y"])]
    stored = [array("start", [1]), array("end", [4]), array("axis", [1])]
    model = model_of(nodes, [value("x", ["b", "s"])], [value("y", ["b", "t"])], stored)
    captured = load_model(model)
    for width in (2, 3, 9):
        x = np.arange(2.0 * width, dtype=np.float32).reshape(2, width)
        np.testing.assert_array_equal(run(captured, x)[0], x[:, 1:4])


def test_what_holds_for_some_sizes_only_is_refused() -> None:
    model = model_of(
        [node("Reshape", ["x", "to"], ["y"])],
        [value("x", ["b"])],
        [value("y", ["n", 4])],
        [array("to", [-1, 4])],
    )
    with pytest.raises(FrontendError, match=r"for all sizes, got .* where Eq\(Mod\(b, 4\), 0\)"):
        load_model(model)
    assert load_model(model, sizes={"b": 8}).graph.outputs[0].type.shape == (2, 4)


def positions_model() -> onnx.ModelProto:
    """Adds the first rows of a table of 48 positions."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "one", "two"], ["length"]),
        node("Slice", ["table", "zero", "length"], ["rows"]),
        node("Add", ["x", "rows"], ["y"]),
    ]
    table = np.random.default_rng(0).normal(size=(48, 8)).astype(np.float32)
    stored = [
        *(array(name, [i]) for i, name in enumerate(("zero", "one", "two"))),
        array("table", table, np.float32),
    ]
    shape = ["batch", "seq", 8]
    return model_of(nodes, [value("x", shape)], [value("y", shape)], stored)


def test_a_table_gives_a_size_its_limit(tmp_path: Path) -> None:
    assert dict(load_model(positions_model()).info.limits) == {"seq": 48}
    output = tmp_path / "m.sglk"
    sglk.compile(positions_model(), output=output, dtype="fp32", selftest=False)
    reference = ReferenceEvaluator(positions_model())
    with sglk.load_forward(output) as model:
        for seq in (1, 48):
            x = np.random.default_rng(seq).normal(size=(2, seq, 8)).astype(np.float32)
            (wanted,) = reference.run(None, {"x": x})
            np.testing.assert_allclose(model(x), np.asarray(wanted), rtol=1e-6)
        with pytest.raises(RequestError, match="input x: expected seq of at most 48, got 49"):
            model(np.zeros((2, 49, 8), np.float32))


def branches(shape: Sequence[int]) -> onnx.ModelProto:
    """One branch gives x + x, the other one a constant of ``shape``."""
    then = helper.make_graph([node("Add", ["x", "x"], ["a"])], "then", [], [value("a", [2])])
    other = helper.make_graph(
        [node("Constant", [], ["b"], value=array("", np.full(shape, 7), np.float32))],
        "else",
        [],
        [value("b", shape)],
    )
    return model_of(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [value("x", [2]), value("c", [], TensorProto.BOOL)],
        [value("y", ["n"])],
    )


def test_a_condition_found_at_run_time_chooses_results() -> None:
    captured = load_model(branches([2]))
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(run(captured, x, np.array(True))[0], [2, 4])
    np.testing.assert_array_equal(run(captured, x, np.array(False))[0], [7, 7])


def test_a_condition_that_decides_a_shape_must_be_known() -> None:
    with pytest.raises(NeedsValue, match=r"If y: .*--const c="):
        load_model(branches([3]))
    assert load_model(branches([3]), const={"c": False}).graph.outputs[0].type.shape == (3,)


def doubling(limit: float) -> Any:
    """The body of a loop that doubles until the value passes ``limit``."""
    nodes = [
        node("Add", ["v", "v"], ["w"]),
        node("Less", ["w", "limit"], ["again"]),
    ]
    inputs = [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("v", [])]
    outputs = [value("again", [], TensorProto.BOOL), value("w", [])]
    return helper.make_graph(nodes, "body", inputs, outputs, [array("limit", limit, np.float32)])


def test_a_loop_with_a_condition_keeps_its_values_after_the_end() -> None:
    model = model_of(
        [node("Loop", ["trips", "yes", "x"], ["y"], body=doubling(10))],
        [value("x", [])],
        [value("y", [])],
        [array("trips", 6), array("yes", True, bool)],
    )
    captured, reference = load_model(model), ReferenceEvaluator(model)
    for x in np.array([0.001, 1, 3, 100], np.float32):
        (wanted,) = reference.run(None, {"x": np.array(x)})
        np.testing.assert_allclose(run(captured, np.array(x))[0], np.asarray(wanted))


def test_a_loop_without_a_bound_is_refused() -> None:
    model = model_of(
        [node("Loop", ["", "yes", "x"], ["y"], body=doubling(10))],
        [value("x", [])],
        [value("y", [])],
        [array("yes", True, bool)],
    )
    with pytest.raises(NeedsValue, match="Loop y"):
        load_model(model)


def test_functions_of_the_model_are_written_out() -> None:
    twice = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    model = model_of(
        [node("Twice", ["x"], ["t"], domain="mine"), node("Twice", ["t"], ["y"], domain="mine")],
        [value("x", [3])],
        [value("y", [3])],
        imports=[helper.make_opsetid("mine", 1)],
        functions=[twice],
    )
    (y,) = run_model(model, [np.array([1, 2, 3], np.float32)], interpret=True)
    np.testing.assert_array_equal(y, [4, 8, 12])


def test_earlier_opsets_are_converted() -> None:
    model = model_of(
        [node("Squeeze", ["x"], ["y"], axes=[0])],
        [value("x", [1, 3])],
        [value("y", [3])],
        opset=11,
    )
    (y,) = run_model(model, [np.ones((1, 3), np.float32)], interpret=True)
    assert y.shape == (3,)


def external(folder: Path, location: str, length: int = 4096) -> Path:
    """A model whose weight lies in a file beside it."""
    weight = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 256])
    weight.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("length", str(length))):
        weight.external_data.add(key=key, value=text)
    model = model_of(
        [node("Mul", ["x", "w"], ["y"])],
        [value("x", ["n", 4, 256])],
        [value("y", ["n", 4, 256])],
        [weight],
    )
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_data_in_other_files_are_read_from_the_models_folder_only(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    (tmp_path / "w.bin").write_bytes(data.tobytes())
    captured = load_model(external(tmp_path, "w.bin"))
    assert captured.info.name == "m"
    np.testing.assert_array_equal(captured.weights.read("w"), data)
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(FrontendError, match=r"m\.onnx: expected a valid ONNX model, got"):
        load_model(external(inner, "../w.bin"))
    (tmp_path / "w.bin").write_bytes(data.tobytes()[:100])
    with pytest.raises(FrontendError, match="expected 4096 bytes at 0, got a file of 100"):
        load_model(external(tmp_path, "w.bin"))


def test_files_that_are_no_models_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(FrontendError, match=r"expected an \.onnx file, got no such file"):
        load_model(path)
    path.write_bytes(b"\x07nothing")
    with pytest.raises(FrontendError, match=r"m\.onnx: expected an ONNX model"):
        load_model(path)
    with pytest.raises(FrontendError, match="expected an ONNX model with them"):
        load_model("model.gguf", sizes={"batch": 1})


def test_a_fault_in_a_function_names_the_node() -> None:
    model = model_of(
        [node("Concat", ["x", "x"], ["y"], axis=5, name="join")],
        [value("x", [2])],
        [value("y", [4])],
    )
    with pytest.raises(FrontendError, match="Concat join: expected inputs that its function"):
        load_model(model)


def test_integers_that_do_not_fit_are_refused_when_they_arrive() -> None:
    add = node("Add", ["a", "b"], ["c"])
    big = np.array([2**40], np.int64)
    with pytest.raises(RequestError, match="input a: expected numbers that fit int32"):
        run_node(add, [big, big], interpret=True)
    (c,) = run_node(add, [np.array([2], np.int64), np.array([3], np.int64)], interpret=True)
    assert c.dtype == np.int64
    np.testing.assert_array_equal(c, [5])


def test_weights_whose_names_differ_in_odd_characters_stay_apart() -> None:
    weights = [
        array("a b", np.zeros((9, 9)), np.float32),
        array("a_b", np.ones((9, 9)), np.float32),
    ]
    nodes = [node("Add", ["x", "a b"], ["s"]), node("Sub", ["s", "a_b"], ["y"])]
    captured = load_model(model_of(nodes, [value("x", [9, 9])], [value("y", [9, 9])], weights))
    assert len({v.name for v in captured.graph.params}) == 2
    (y,) = run(captured, np.ones((9, 9), np.float32))
    np.testing.assert_array_equal(y, np.zeros((9, 9)))
