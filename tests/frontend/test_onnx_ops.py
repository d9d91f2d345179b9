"""ONNX ops beyond what onnx's own node tests ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from sglk.errors import FrontendError
from sglk.frontend.onnx.module import load_onnx
from sglk.ir.interpret import interpret
from sglk.ir.rewrite import clone
from sglk.onnx_backend import run_model

RNG = np.random.default_rng(0)
ML = "ai.onnx.ml"


def model_of(
    op: str,
    inputs: Sequence[tuple[str, Any]],
    outputs: Sequence[str],
    opset: int = 21,
    domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """One node. Inputs by name with their arrays; "" stands for one that is left out."""
    node = helper.make_node(op, [name for name, _ in inputs], outputs, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs
        if n
    ]
    bare = [helper.make_empty_tensor_value_info(name) for name in outputs]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, opset)]
    graph = helper.make_graph([node], "g", infos, bare)
    model = helper.make_model(graph, opset_imports=opsets[not domain :], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model)
    assert isinstance(inferred, onnx.ModelProto)
    for output in inferred.graph.output:
        if not output.type.WhichOneof("value"):  # inference knows little of ai.onnx.ml
            output.CopyFrom(helper.make_tensor_value_info(output.name, 1, ["rows", "columns"]))
    return inferred


def results(op: str, inputs: Sequence[tuple[str, Any]], outputs: str, **options: Any) -> Any:
    model = model_of(op, inputs, outputs.split(), **options)
    return run_model(model, [array for name, array in inputs if name], interpret=True)


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


# Recurrent layers ------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequences_of_different_lengths(op: str, gates: int, direction: str) -> None:
    """Each as if it were alone; beyond its end outputs are zeros."""
    ways, hidden, lengths = 2 if direction == "bidirectional" else 1, 5, (4, 1, 3)
    x, w = floats(4, 3, 2), floats(ways, gates * hidden, 2)
    r, bias = floats(ways, gates * hidden, hidden), floats(ways, 2 * gates * hidden)
    lens = np.array(lengths, np.int32)
    names = "Y Y_h Y_c" if op == "LSTM" else "Y Y_h"
    shared: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    weights = [("w", w), ("r", r), ("b", bias)]
    found = results(op, [("x", x), *weights, ("n", lens)], names, **shared)
    for i, length in enumerate(lengths):
        alone = [("x", x[:length, i : i + 1]), *weights]
        model = model_of(op, alone, names.split(), **shared)
        wanted: Any = ReferenceEvaluator(model).run(None, dict(alone))
        np.testing.assert_allclose(found[0][:length, :, i], wanted[0][:, :, 0], 1e-4, 1e-5)
        assert not found[0][length:, :, i].any()
        for ours, theirs in zip(found[1:], wanted[1:], strict=True):
            np.testing.assert_allclose(ours[:, i], theirs[:, 0], 1e-4, 1e-5)


def test_lstm_with_every_option() -> None:
    """Against the equations of the standard, written out."""
    x, w, r = floats(3, 2, 2), floats(1, 12, 2), floats(1, 12, 3)
    h, c, p = floats(1, 2, 3), floats(1, 2, 3), floats(1, 9)
    given = [("x", x), ("w", w), ("r", r), ("", None), ("", None), ("h", h), ("c", c), ("p", p)]
    options: dict[str, Any] = {
        "hidden_size": 3,
        "input_forget": 1,
        "clip": 0.9,
        "activations": ["HardSigmoid", "Softsign", "ScaledTanh"],
        "activation_alpha": [0.3, 1.5],
        "activation_beta": [0.4, 0.5],
    }
    y, y_h, y_c = results("LSTM", given, "Y Y_h Y_c", **options)

    def clip(v: np.ndarray) -> Any:
        return np.clip(v, -0.9, 0.9)

    def f(v: np.ndarray) -> Any:
        return np.clip(0.3 * clip(v) + 0.4, 0, 1)

    hidden, cell = h[0], c[0]
    look_i, look_o, _ = np.split(p[0], 3)
    for t in range(3):
        i, o, _, g = np.split(x[t] @ w[0].T + hidden @ r[0].T, 4, -1)
        i = f(i + look_i * cell)
        cell = (1 - i) * cell + i * (clip(g) / (1 + np.abs(clip(g))))
        hidden = f(o + look_o * cell) * 1.5 * np.tanh(0.5 * clip(cell))
        np.testing.assert_allclose(y[t, 0], hidden, 1e-4, 1e-5)
    np.testing.assert_allclose(y_h[0], hidden, 1e-4, 1e-5)
    np.testing.assert_allclose(y_c[0], cell, 1e-4, 1e-5)


# Integers and regions --------------------------------------------------------------------------


def test_integer_convolutions_are_exact_over_many_channels() -> None:
    x = RNG.integers(0, 256, (1, 300, 4, 4)).astype(np.uint8)
    w = RNG.integers(0, 256, (2, 300, 3, 3)).astype(np.uint8)
    zero = np.array(3, np.uint8)
    (found,) = results("ConvInteger", [("x", x), ("w", w), ("z", zero)], "y", opset=10)
    for i, j in ((0, 0), (1, 1)):
        window = x[0, :, i : i + 3, j : j + 3].astype(np.int64) - 3
        assert found[0, 1, i, j] == (window * w[1].astype(np.int64)).sum()


def test_largest_of_regions() -> None:
    x = floats(2, 3, 6, 8)
    rois = np.array([[0, 0, 0, 7, 5], [1, 2, 1, 5, 4], [1, 3, 3, 3, 3]], np.float32)
    (found,) = results("MaxRoiPool", [("x", x), ("r", rois)], "y", pooled_shape=[2, 2])
    np.testing.assert_array_equal(found[0, :, 0, 0], x[0, :, :3, :4].max((1, 2)))
    np.testing.assert_array_equal(found[1, :, 1, 1], x[1, :, 3:5, 4:6].max((1, 2)))
    np.testing.assert_array_equal(found[2, :, 0, 0], x[1, :, 3, 3])


def test_images_of_any_size_grow_by_whole_factors() -> None:
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 2, 3], np.float32), "s")
    x = helper.make_tensor_value_info("x", 1, [1, 2, "h", "w"])
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest")
    graph = helper.make_graph(
        [node], "g", [x], [helper.make_tensor_value_info("y", 1, [1, 2, "a", "b"])], [scales]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    captured = load_onnx(model)
    image = floats(1, 2, 4, 5)
    (found,) = interpret(clone(captured.graph, {"h": 4, "w": 5}), {"x": image})
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": image})
    np.testing.assert_array_equal(found, wanted)


# Classic models ----------------------------------------------------------------------------------

NODES = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2, 3, 4],
    "nodes_featureids": [0, 0, 0, 1, 0, 2, 0, 0],
    "nodes_values": [0.1, 0.0, 0.0, -0.2, 0.0, 0.3, 0.0, 0.0],
    "nodes_modes": [
        *("BRANCH_LEQ", "LEAF", "LEAF"),
        *("BRANCH_GT", "LEAF", "BRANCH_LT", "LEAF", "LEAF"),
    ],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 3, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 4, 0, 0],
}
LEAVES = [(0, 1), (0, 2), (1, 1), (1, 3), (1, 4)]
WEIGHTS = [1.0, -2.0, 0.5, 3.0, -0.25]


def trees(side: str, ids: list[int]) -> dict[str, Any]:
    return {
        **NODES,
        f"{side}_treeids": [tree for tree, _ in LEAVES],
        f"{side}_nodeids": [place for _, place in LEAVES],
        f"{side}_ids": ids,
        f"{side}_weights": WEIGHTS,
    }


CLASSIC: dict[str, tuple[str, dict[str, Any], str]] = {
    "trees": ("TreeEnsembleRegressor", {"n_targets": 1, **trees("target", [0] * 5)}, "y"),
    "tree-classes": (
        "TreeEnsembleClassifier",
        {"classlabels_int64s": [7, 8, 9], **trees("class", [0, 1, 2, 1, 0])},
        "l s",
    ),
    "linear": (
        "LinearRegressor",
        {"coefficients": [1.0, 2.0, -1.0, 0.5, 0.0, 3.0], "intercepts": [0.1, 0.2], "targets": 2},
        "y",
    ),
    "linear-classes": (
        "LinearClassifier",
        {
            "coefficients": [1.0, 2.0, -1.0, 0.5, 0.0, 3.0, -1.0, 1.0, 0.2],
            "intercepts": [0.1, 0.2, 0.3],
            "classlabels_ints": [4, 5, 6],
            "post_transform": "SOFTMAX",
        },
        "l s",
    ),
    "scaled": ("Scaler", {"offset": [0.5, 0.0, 1.0], "scale": [2.0, 3.0, 0.5]}, "y"),
    "normal": ("Normalizer", {"norm": "L2"}, "y"),
}


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_models(name: str) -> None:
    op, attributes, outputs = CLASSIC[name]
    x = [("x", floats(16, 3))]
    model = model_of(op, x, outputs.split(), opset=3, domain=ML, **attributes)
    wanted = ReferenceEvaluator(model).run(None, dict(x))
    found = run_model(model, [x[0][1]], interpret=True)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs).reshape(ours.shape), 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "sentence"),
    [
        ("RoiAlign", [("x", (1, 1, 4, 4)), ("r", (1, 4)), ("b", (1,))], {}, "sampling_ratio"),
        ("GridSample", [("x", (1, 1, 4, 4)), ("g", (1, 2, 2, 2))], {"mode": "magic"}, "nearest"),
        ("LSTM", [("x", (2000, 1, 1)), ("w", (1, 4, 1)), ("r", (1, 4, 1))], {}, "at most 1024"),
    ],
)
def test_uses_that_cannot_be_are_refused(
    op: str, inputs: list[tuple[str, tuple[int, ...]]], attributes: dict[str, Any], sentence: str
) -> None:
    arrays = [(n, np.ones(s, np.int64 if n == "b" else np.float32)) for n, s in inputs]
    with pytest.raises(FrontendError, match=f"{op}.*expected.*{sentence}"):
        results(op, arrays, "y", **attributes)
