"""sglk as a backend of `onnx.backend`: models compile for the CPU and run from the artifact.

    import sglk.onnx_backend as backend
    outputs = backend.run_model(onnx.load("model.onnx"), [x])

Sizes are those of the arrays of the first run; other sizes compile once more. Inputs whose numbers
decide a shape are compiled in (`Prepared.specialised` names them), and other numbers compile again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from .errors import RequestError

if TYPE_CHECKING:
    from .frontend import Captured
    from .frontend.onnx.module import Input, Signature
    from .frontend.onnx.reader import Model

Arrays = list[np.ndarray]
Run = Callable[[Sequence[np.ndarray]], Arrays]


@dataclass(eq=False)
class Compiled:
    """One artifact (or graph) for given sizes and numbers."""

    run: Run
    signature: Signature
    specialised: frozenset[str]


class Prepared(BackendRep):
    """A model that compiles when it sees its first inputs."""

    def __init__(self, model: Model, interpret: bool = False) -> None:
        self.model, self.interpret = model, interpret
        self.specialised: frozenset[str] = frozenset()
        """Inputs of the last run that were compiled in as numbers."""
        self._cache: dict[Any, Compiled] = {}
        stored = {tensor.name for tensor in model.proto.graph.initializer}
        self.input_names = [i.name for i in model.proto.graph.input if i.name not in stored]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs in the model's order, in the types that it declares."""
        given = self._by_name(inputs)
        compiled = self._compiled(given)
        self.specialised = compiled.specialised
        flat = [x for n, v in given.items() if n not in compiled.specialised for x in _elements(v)]
        return self._outputs(compiled, compiled.run(flat))

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            given = dict(inputs)
        else:
            several = isinstance(inputs, list | tuple)
            given = dict(zip(self.input_names, inputs if several else [inputs], strict=False))
        if strange := set(given) - set(self.input_names):
            raise RequestError(
                f"inputs: expected {', '.join(self.input_names)}, got {', '.join(sorted(strange))}"
            )
        return given

    def _compiled(self, given: Mapping[str, Any]) -> Compiled:
        from .frontend.onnx.registry import NeedsValue

        fixed = self.specialised | {n for n, v in given.items() if not _elements(v)}
        while True:
            key = _key(given, fixed)
            if key in self._cache:
                return self._cache[key]
            try:
                self._cache[key] = self._compile(given, fixed)
            except NeedsValue as needed:
                if not needed.inputs - fixed:
                    raise
                fixed |= needed.inputs

    def _compile(self, given: Mapping[str, Any], fixed: frozenset[str]) -> Compiled:
        from .frontend.onnx.module import capture_onnx, constant

        known = {n: constant(self.model, n, given[n]) for n in fixed if given[n] is not None}
        inputs = [i for n, v in given.items() if n not in fixed for i in _inputs(n, v)]
        captured, signature = capture_onnx(self.model, inputs, known)
        asked = frozenset(n for n in fixed if given[n] is not None and len(_elements(given[n])))
        run = _interpreter(captured) if self.interpret else _artifact(captured)
        return Compiled(run, signature, asked)

    def _outputs(self, compiled: Compiled, flat: Arrays) -> tuple[Any, ...]:
        """Sequences put together again."""
        left = iter(flat)
        results: list[Any] = []
        declared = self.model.proto.graph.output
        for value, form in zip(declared, compiled.signature.structure, strict=True):
            dtype = _declared(value.type)
            if isinstance(form, int):
                results.append([next(left).astype(dtype) for _ in range(form)])
            else:
                results.append(next(left).astype(dtype) if form is None else None)
        return tuple(results)


def _elements(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def _key(given: Mapping[str, Any], fixed: frozenset[str]) -> Any:
    def form(name: str, x: Any) -> Any:
        array = np.asarray(x)
        return array.dtype.str, array.shape, array.tobytes() if name in fixed else b""

    return tuple((n, tuple(form(n, x) for x in _elements(v))) for n, v in given.items())


def _inputs(name: str, value: Any) -> list[Input]:
    from .frontend.onnx.module import Input, input_dtype

    def make(label: str, x: Any) -> Input:
        array = np.asarray(x)
        elem_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return Input(label, input_dtype(name, elem_type), array.shape, name)

    if not isinstance(value, list):
        return [make(name, value)]
    return [make(f"{name}_{i}", x) for i, x in enumerate(value)]


def _declared(type: Any) -> np.dtype[Any]:
    """The NumPy type of a tensor, or of the elements of a sequence."""
    kind = type.WhichOneof("value")
    if kind == "tensor_type":
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(type.tensor_type.elem_type))
    return _declared(getattr(type, kind).elem_type)


def _interpreter(captured: Captured) -> Run:
    from .ir.interpret import interpret
    from .runtime.forward import fitting

    graph = captured.graph

    def run(arrays: Sequence[np.ndarray]) -> Arrays:
        pairs = zip(graph.inputs, arrays, strict=True)
        inputs = {v.name: fitting(a, v.type.dtype.numpy, v.name) for v, a in pairs}
        return [np.asarray(x) for x in interpret(graph, inputs, captured.weights.read)]

    return run


def _artifact(captured: Captured) -> Run:
    """Compiled, loaded into memory, and the file removed."""
    from .driver import compile
    from .runtime.forward import load_forward

    if not captured.graph.nodes and not captured.graph.inputs:
        return _interpreter(captured)  # constants: there is nothing to compile
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.sglk"
        compile(captured, output=path, dtype="fp32", selftest=False)
        model = load_forward(path, num_threads=1)  # mapped: the file may go

    def run(arrays: Sequence[np.ndarray]) -> Arrays:
        found = model(*arrays)
        return [np.array(x) for x in (found if isinstance(found, tuple) else (found,))]

    return run


class SglkBackend(Backend):
    """The interface of `onnx.backend.base`. ``interpret`` runs the same graph op by op on its
    reference, without kernels."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
        from .frontend.onnx.reader import read_model

        if not cls.supports_device(device):
            raise RequestError(f"device: expected CPU, got {device}")
        return Prepared(read_model(model), bool(kwargs.get("interpret", False)))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """One node. Types of outputs come from ``outputs_info``, else from onnx's inference."""
        model = _model_of(node, inputs, outputs_info, kwargs.pop("opset_version", None))
        return cls.run_model(model, inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == "CPU"


def _model_of(
    node: onnx.NodeProto, inputs: Any, outputs: Any, opset: int | None
) -> onnx.ModelProto:
    helper = onnx.helper
    arrays = [np.asarray(x) for x in (inputs if isinstance(inputs, list | tuple) else [inputs])]
    names = [name for name in node.input if name]

    def info(name: str, dtype: Any, shape: Any) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)

    takes = [info(n, a.dtype, a.shape) for n, a in zip(names, arrays, strict=True)]
    opsets = [helper.make_opsetid(node.domain, opset or onnx.defs.onnx_opset_version())]
    if outputs is not None:
        pairs = zip(node.output, outputs, strict=True)
        gives = [info(n, np.dtype(dtype), shape) for n, (dtype, shape) in pairs]
        return helper.make_model(
            helper.make_graph([node], "node", takes, gives), opset_imports=opsets
        )
    bare = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    model = helper.make_model(helper.make_graph([node], "node", takes, bare), opset_imports=opsets)
    inferred = onnx.shape_inference.infer_shapes(model)
    assert isinstance(inferred, onnx.ModelProto)
    return inferred


prepare = SglkBackend.prepare
run_model = SglkBackend.run_model
run_node = SglkBackend.run_node
supports_device = SglkBackend.supports_device
