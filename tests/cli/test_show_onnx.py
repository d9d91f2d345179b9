"""``sglk show --onnx``: an artifact's graph as an ONNX model, with weights and without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
from onnx.reference import ReferenceEvaluator
from sglk.frontend.model_files import open_model
from sglk.ir.interpret import interpret
from sglk.ir.parser import parse_graph
from sglk.targets.artifact import Artifact

Cli = Callable[..., tuple[int, str, str]]


def step_arrays(graph: object, pages: int = 4) -> dict[str, np.ndarray]:
    """Three tokens that go on after two, and two new ones, on pages 1 and 2."""
    state = parse_state(graph)
    numbers = {
        "token_ids": [3, 4, 5, 6, 7],
        "positions": [2, 3, 4, 0, 1],
        "slots": [34, 35, 36, 64, 65],
        "query_start": [0, 3, 5],
        "seq_lens": [5, 2],
        "page_table": [[1, 0], [2, 0]],
        "logit_rows": [2, 4],
    }
    arrays = {name: np.array(value, np.int32) for name, value in numbers.items()}
    return arrays | {state[0]: np.random.default_rng(0).normal(0, 0.3, state[1]).astype("f4")}


def parse_state(graph: object, slots: int = 128) -> tuple[str, tuple[int, ...]]:
    (state,) = graph.states  # type: ignore[attr-defined]
    return state.name, tuple(d if isinstance(d, int) else slots for d in state.type.shape)


def test_the_step_of_a_decoder_runs_as_onnx(
    run_cli: Cli, tiny_artifact: Path, tiny_llama_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.onnx"
    status, out, err = run_cli(
        "show", tiny_artifact, "--onnx", path, "--weights", tiny_llama_folder
    )
    assert status == 0, err
    assert "local functions" in out and (tmp_path / "tiny.onnx.data").is_file()
    with Artifact.open(tiny_artifact) as artifact:
        graph = parse_graph(artifact.read("graph.txt").decode())
    arrays = step_arrays(graph)
    wanted = interpret(graph, arrays, open_model(tiny_llama_folder).source.read)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx's own sigmoid overflows
        found: Any = ReferenceEvaluator(str(path)).run(None, arrays)
    scale = np.abs(wanted[0]).max()
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-4 * scale)
    name, shape = parse_state(graph)
    assert found[-1].shape == shape and not np.array_equal(found[-1], arrays[name])


def test_without_weights_there_is_one_file(
    run_cli: Cli, tiny_artifact: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.onnx"
    status, _, err = run_cli("show", tiny_artifact, "--onnx", path)
    assert status == 0, err
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    inputs = {value.name for value in model.graph.input}
    assert {"token_ids", "page_table", "model.norm.weight"} <= inputs
    assert "paged_attention" in {function.name for function in model.functions}
