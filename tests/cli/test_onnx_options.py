"""``sglk-compile model.onnx``: sizes stay free, ``--const`` and ``--dim`` fix what they name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import sglk
from onnx import TensorProto, helper
from sglk.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """``y = reshape(x, to) * 2``; x has free sizes, ``to`` is an input."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("Reshape", ["twice", "to"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])
    to = helper.make_tensor_value_info("to", TensorProto.INT64, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "a", "b"])
    graph = helper.make_graph(nodes, "twice", [x, to], [y])
    path = tmp_path / "twice.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_an_artifact_takes_any_size(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = model.with_suffix(".sglk")
    command = ["compile", str(model), "-o", str(output), "--dtype", "fp32"]
    assert main([*command, "--const", "to=0,2,3"]) == 0
    assert "forward: error" not in capsys.readouterr().err
    with sglk.load_forward(output) as forward:
        assert forward.input_names == ("x",)
        for batch in (1, 4):
            x = np.arange(6.0 * batch, dtype=np.float32).reshape(batch, 6)
            np.testing.assert_array_equal(forward(x), 2 * x.reshape(batch, 2, 3))
    assert main(["verify", str(output)]) == 0
    assert main(["show", str(output)]) == 0
    assert "forward" in capsys.readouterr().out


def test_numbers_come_from_files_too(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "to.npy", np.array([2, -1, 2]))
    output = tmp_path / "out.sglk"
    const = f"to={tmp_path / 'to.npy'}"
    command = ["compile", str(model), "-q", "-o", str(output), "--const", const, "--dim", "batch=2"]
    assert main([*command, "--no-selftest"]) == 0
    with sglk.load_forward(output) as forward:
        assert forward(np.ones((2, 6), np.float32)).shape == (2, 3, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Reshape y: expected a shape that follows .* --const to=..."),
        (["--const", "to"], "--const: expected NAME=VALUE, got 'to'"),
        (["--const", "to=a,b"], "--const to: expected numbers like 3,4, got 'a,b'"),
        (["--const", "to=none.npy"], r"--const to: expected a \.npy file, got no none.npy"),
        (["--const", "up=1"], r"--const: expected inputs of twice \(to, x\), got up"),
        (["--dim", "batch=many"], "--dim batch: expected a size like 4, got 'many'"),
    ],
)
def test_mistakes_are_sentences(
    model: Path,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compile", str(model), "-o", str(model) + ".sglk", *arguments]) == 1
    assert re.search(sentence, capsys.readouterr().err)
