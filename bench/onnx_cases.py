"""The backend tests of the installed onnx as one list: which there are, and which do not count."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper
from sglk.frontend.onnx.reader import all_nodes

NODE, EXPANDED = "node", "expanded"
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator", "real")
SUITES = (NODE, EXPANDED, *FOLDERS)
TRAINING = "training (ai.onnx.preview.training, Gradient)"
STRINGS = "strings"
RANDOM = "random numbers: only their shape is tested"
DataSets = Callable[[], Iterator[tuple[list[Any], list[Any]]]]
_DATA = Path(onnx.backend.test.__file__).parent / "data"


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    suite: str
    model: onnx.ModelProto
    data_sets: DataSets
    rtol: float
    atol: float
    excepted: str
    """Why the test does not count, or ""."""

    @property
    def op(self) -> str:
        """The op that the test is about: of several nodes the one that gives the output."""
        nodes = self.model.graph.node
        return nodes[-1].op_type if nodes else ""


def cases(suites: Sequence[str] = SUITES) -> Iterator[Case]:
    if NODE in suites or EXPANDED in suites:
        yield from (case for case in node_cases() if case.suite in suites)
    for folder in FOLDERS:
        if folder in suites:
            yield from folder_cases(folder)


def node_cases(modules: Sequence[str] = ()) -> Iterator[Case]:
    """All node tests, which are made as they are collected; or those of some of onnx's modules
    (and of any that were imported before)."""
    from onnx.backend.test.case import node

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, about numbers made to overflow
        for module in modules:
            importlib.import_module(f"{node.__name__}.{module}")
        found = node._NodeTestCases if modules else node.collect_testcases(None)
    for test in list(found):
        sets = [([*map(_array, i)], [*map(_array, o)]) for i, o in test.data_sets or ()]
        assert test.model is not None
        yield Case(
            test.name,
            EXPANDED if "_expanded" in test.name else NODE,
            test.model,
            partial(iter, sets),
            test.rtol,
            test.atol,
            excepted(test.model),
        )


def _array(value: Any) -> Any:
    """Tests of small types have protobufs in their data, as onnx's runner knows."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def arrays(values: Sequence[Any]) -> list[Any]:
    """Some tests hold their numbers as protobufs."""
    return [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in values]


def folder_cases(folder: str) -> Iterator[Case]:
    from onnx.backend.test.loader import load_model_tests

    for test in load_model_tests(kind=folder):
        home = Path(test.model_dir or _DATA / folder / test.name)
        if folder == "real":
            path = _DATA / "light" / f"light_{test.model_name}.onnx"
            sets: DataSets = partial(light_data, path)
        else:
            path = home / "model.onnx"
            sets = partial(stored_data, path)
        model = onnx.load(path)
        yield Case(test.name, folder, model, sets, test.rtol, test.atol, excepted(model))


def excepted(model: onnx.ModelProto) -> str:
    """Strings and training are none of a compiler for inference."""
    values = [*model.graph.input, *model.graph.output]
    if any(_elem_type(v.type) == onnx.TensorProto.STRING for v in values):
        return STRINGS
    nodes = list(all_nodes(model.graph))
    is_training = any(n.domain == "ai.onnx.preview.training" for n in nodes)
    return TRAINING if is_training or any(n.op_type == "Gradient" for n in nodes) else ""


def _elem_type(type: Any) -> int:
    kind = type.WhichOneof("value")
    if kind is None or kind == "tensor_type":
        return int(type.tensor_type.elem_type)
    return _elem_type(getattr(type, kind).elem_type) if kind != "map_type" else 0


def stored_data(path: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    """The numbered protobufs of each data set beside a model, read as their declared types."""
    graph = onnx.load(path).graph
    for folder in sorted(path.parent.glob("test_data_set_*")):
        inputs = [_stored(folder / f"input_{i}.pb", v.type) for i, v in enumerate(graph.input)
                  if (folder / f"input_{i}.pb").is_file()]  # fmt: skip
        outputs = [_stored(folder / f"output_{i}.pb", v.type) for i, v in enumerate(graph.output)]
        yield inputs, outputs


def _stored(path: Path, type: Any) -> Any:
    kind = type.WhichOneof("value")
    if kind == "sequence_type":
        sequence = onnx.SequenceProto.FromString(path.read_bytes())
        return list(numpy_helper.to_list(sequence))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def light_data(path: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    """Zoo models with made-up weights: the input is a ramp, as in onnx's runner."""
    from onnx.backend.test.runner import Runner

    model = onnx.load(path)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(x) for x in model.graph.input if x.name not in stored]
    output = path.with_name(f"{path.stem}_output_0.pb")
    yield inputs, [numpy_helper.to_array(onnx.TensorProto.FromString(output.read_bytes()))]
