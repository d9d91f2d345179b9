"""An ONNX model as a torch module, and from there as a graph: the same door as any module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import torch
from torch.export import Dim, ExportedProgram

from ...errors import FrontendError, SglkError
from ...ir.graph import Graph
from ..capture import quiet
from ..captured import Captured, Progress, describe
from ..fx_convert import convert_program, symbol_names
from ..fx_convert_context import numpy_array
from ..torch_module import ModuleSource
from .evaluate import Evaluator, Scope
from .free_sizes import assumptions
from .reader import Model, dense, from_numpy, read_model
from .registry import TORCH_TYPES, NeedsValue, Refused, Slot, Value
from .sizes import fixed_slot, tensor_in

__all__ = ["OnnxModule", "capture_onnx", "load_onnx"]

SMALL = 64
"""Elements of a tensor that is a constant of the graph, so that bounds and axes are seen; larger
ones are weights."""
EXAMPLE_SIZES = ((3, 5, 7, 11, 13, 17, 19, 23), (32, 64, 96, 128, 160, 192, 224, 256))
"""Sizes that free dims have in the trace, tried in order: all different, as none may be special."""


@dataclass(frozen=True, eq=False)
class Input:
    """A tensor that the artifact takes. A sequence has one for each element."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    """Texts are names of free sizes."""
    source: str = ""
    """The graph input that it is, or is an element of."""


@dataclass
class Signature:
    """What goes in and out, as flat tensors in order."""

    inputs: list[Input] = field(default_factory=list)
    structure: list[Any] = field(default_factory=list)
    """Per graph output: None for a tensor, the number of elements of a sequence, "absent"."""


class OnnxModule(torch.nn.Module):
    """``forward`` evaluates the graph. Weights are buffers under `safe_name`s of their own."""

    def __init__(self, model: Model, inputs: Sequence[Input], fixed: Mapping[str, Value]) -> None:
        super().__init__()
        self.model, self.signature = model, Signature(list(inputs))
        self.fixed = dict(fixed)
        self.weights: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        """The model's own name of each weight -> its buffer's."""
        self._real: dict[str, torch.Tensor] = {}
        for proto in model.proto.graph.initializer:
            if proto.name not in self.fixed:
                self._add(proto.name, model.tensor(proto))
        for sparse in model.proto.graph.sparse_initializer:
            self._add(sparse.values.name, dense(sparse))

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self._real[name] = tensor
        if tensor.numel() > SMALL:
            key = self._keys[name] = f"w{len(self.weights)}"
            safe, taken = safe_name(name), set(self.weights.values())
            self.weights[key] = safe if safe not in taken else f"{safe}.{key}"
            self.register_buffer(key, tensor)

    def forward(self, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = Evaluator(self.model).run(self.model.proto.graph, self._scope(xs))
        flat: list[torch.Tensor] = []
        self.signature.structure = []
        for output, slot in zip(self.model.proto.graph.output, results, strict=True):
            self._put(output.name, tensor_in(slot), flat)
        return tuple(flat)

    def _put(self, name: str, value: Value, flat: list[torch.Tensor]) -> None:
        several = isinstance(value, list)
        elements = value if several else [] if value is None else [value]
        if any(not isinstance(x, torch.Tensor) for x in elements):
            raise FrontendError(f"output {name}: expected tensors, got a sequence of other things")
        absent = "absent" if value is None else None
        self.signature.structure.append(len(elements) if several else absent)
        flat += elements

    def _scope(self, xs: Sequence[torch.Tensor]) -> Scope:
        scope: Scope = {}
        for name, real in self._real.items():
            key = self._keys.get(name)
            scope[name] = Slot(getattr(self, key) if key else real, fixed=real)
        for name, value in self.fixed.items():
            scope[name] = fixed_slot(value)
        elements: dict[str, list[torch.Tensor]] = {}
        for given, x in zip(self.signature.inputs, xs, strict=True):
            elements.setdefault(given.source, []).append(x)
            is_element = given.source != given.name
            value = elements[given.source] if is_element else x
            scope[given.source] = Slot(value, needs=frozenset({given.source}))
        for declared in self.model.proto.graph.input:
            slot = scope.setdefault(declared.name, Slot())
            slot.elem_type = declared_type(declared.type)
        for tensor in self.model.proto.graph.initializer:
            scope[tensor.name].elem_type = tensor.data_type
        return scope


def declared_type(type: Any) -> int:
    """The element type of a tensor, or of the tensors in a sequence or optional."""
    kind = type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return declared_type(getattr(type, kind).elem_type)
    return int(type.tensor_type.elem_type)


def safe_name(name: str) -> str:
    """The name with what the text form of graphs cannot hold replaced."""
    return re.sub(r"[^\w./:-]", "_", name) or "_"


# Inputs -------------------------------------------------------------------------------------


def declared_inputs(
    model: Model, constants: Mapping[str, Any], sizes: Mapping[str, int]
) -> list[Input]:
    """Inputs by the model's own declaration: names of sizes stay free unless ``sizes`` has them."""
    stored = {tensor.name for tensor in model.proto.graph.initializer}
    found: list[Input] = []
    for declared in model.proto.graph.input:
        if declared.name in stored or declared.name in constants:
            continue
        kind = declared.type.WhichOneof("value")
        if kind != "tensor_type" or not declared.type.tensor_type.HasField("shape"):
            raise FrontendError(
                f"input {declared.name}: expected a tensor whose shape is declared, got "
                f"{kind if kind != 'tensor_type' else 'one of any shape'} "
                "(run onnx.shape_inference, or give an example input)"
            )
        tensor = declared.type.tensor_type
        shape = tuple(
            _size(d, f"{declared.name}_{i}", sizes) for i, d in enumerate(tensor.shape.dim)
        )
        dtype = input_dtype(declared.name, tensor.elem_type)
        found.append(Input(declared.name, dtype, shape, declared.name))
    return found


def _size(proto: Any, default: str, sizes: Mapping[str, int]) -> int | str:
    if proto.HasField("dim_value"):
        return int(proto.dim_value)
    name = re.sub(r"\W", "_", proto.dim_param or default)
    name = name if name[:1].isalpha() else f"d_{name}"
    return sizes.get(proto.dim_param, sizes.get(name, name))


def input_dtype(name: str, elem_type: int) -> torch.dtype:
    if elem_type not in TORCH_TYPES:
        kind = onnx.TensorProto.DataType.Name(elem_type)
        raise FrontendError(f"input {name}: expected numbers or bools, got {kind}")
    return TORCH_TYPES[elem_type]


# Capture ------------------------------------------------------------------------------------


def load_onnx(
    source: Any,
    *,
    constants: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Captured:
    """Capture an ``.onnx`` file, bytes or a `ModelProto`.

    ``constants`` fixes inputs to numbers (they are then no inputs), ``sizes`` named sizes; other
    named sizes stay free.
    """
    model = read_model(source)
    known = set_of_names(model)
    if strange := sorted(set(constants or {}) - known):
        raise FrontendError(
            f"--const: expected inputs of {model.name} ({', '.join(sorted(known))}), "
            f"got {', '.join(strange)}"
        )
    fixed = {name: constant(model, name, value) for name, value in (constants or {}).items()}
    inputs = declared_inputs(model, fixed, sizes or {})
    captured, _ = capture_onnx(model, inputs, fixed, progress)
    return captured


def set_of_names(model: Model) -> set[str]:
    return {declared.name for declared in model.proto.graph.input}


def constant(model: Model, name: str, value: Any) -> Value:
    """Numbers in the type that the model declares for this input."""
    declared = next(d for d in model.proto.graph.input if d.name == name)
    if isinstance(value, list) and declared.type.WhichOneof("value") != "tensor_type":
        return [from_numpy(np.asarray(x)) for x in value]
    tensor = declared.type.tensor_type
    result = from_numpy(np.asarray(value)).to(input_dtype(name, tensor.elem_type))
    rank = len(tensor.shape.dim) if tensor.HasField("shape") else result.dim()
    return result.reshape(-1) if rank == 1 and result.dim() == 0 else result


def capture_onnx(
    model: Model,
    inputs: Sequence[Input],
    fixed: Mapping[str, Value],
    progress: Progress | None = None,
) -> tuple[Captured, Signature]:
    """The graph for these inputs, and what its flat inputs and outputs stand for."""
    module = OnnxModule(model, inputs, fixed)
    if not inputs:
        graph = _constants(module)
        info = describe(graph, safe_name(model.name), "onnx")
        return Captured(graph, ModuleSource(model.name, {}), None, info), module.signature
    program = _export(module)
    graph, limits = _graph(module, program, progress)
    weights = {new: dict(program.state_dict)[key] for key, new in module.weights.items()}
    info = replace(describe(graph, safe_name(model.name), "onnx"), limits=limits)
    return Captured(graph, ModuleSource(model.name, weights), None, info), module.signature


def _constants(module: OnnxModule) -> Graph:
    """A graph of results alone: without inputs there is nothing to trace."""
    graph = Graph(safe_name(module.model.name))
    with torch.no_grad():
        results = module()
    for i, result in enumerate(results):
        graph.outputs.append(graph.const(*numpy_array(result, f"output {i}")))
    return graph


def _export(module: OnnxModule) -> ExportedProgram:
    """Trace with example sizes; larger ones if the model cannot be as small as the first."""
    inputs = module.signature.inputs
    names = list(dict.fromkeys(d for i in inputs for d in i.shape if isinstance(d, str)))
    tries = EXAMPLE_SIZES if names else EXAMPLE_SIZES[:1]
    for place, sizes in enumerate(tries):
        chosen = {name: sizes[i % len(sizes)] for i, name in enumerate(names)}
        try:
            return _exported(module, chosen)
        except (NeedsValue, Refused):
            raise
        except FrontendError:
            if place == len(tries) - 1:
                raise
    raise AssertionError("no example sizes")


@contextmanager
def _tracing(name: str) -> Iterator[None]:
    """Nodes name themselves (see `evaluate`); what remains are torch's own complaints."""
    try:
        yield
    except SglkError:
        raise
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        text = " ".join(str(error).split())[:400]
        raise FrontendError(
            f"{name}: expected a model that torch.export can trace, got {type(error).__name__}: "
            f"{text}"
        ) from error


def _exported(module: OnnxModule, chosen: Mapping[str, int]) -> ExportedProgram:
    inputs = module.signature.inputs
    examples = tuple(
        torch.zeros([chosen[d] if isinstance(d, str) else d for d in i.shape]).to(i.dtype)
        for i in inputs
    )
    free = [{a: Dim.AUTO for a, d in enumerate(i.shape) if isinstance(d, str)} for i in inputs]
    shapes = (tuple(f or None for f in free),) if any(free) else None
    with _tracing(module.model.name), torch.no_grad(), quiet():
        return torch.export.export(module, examples, dynamic_shapes=shapes, strict=False)


def _graph(
    module: OnnxModule, program: ExportedProgram, progress: Progress | None
) -> tuple[Graph, dict[str, int]]:
    """The graph, and the limits of its free sizes."""
    inputs = module.signature.inputs
    named = {
        f"xs_{i}": {a: d for a, d in enumerate(given.shape) if isinstance(d, str)}
        for i, given in enumerate(inputs)
    }
    symbols = symbol_names(program, named)
    limits = _refuse_fixed(module, program, symbols)
    graph = convert_program(
        program,
        name=safe_name(module.model.name),
        symbols=symbols,
        rename=lambda key: module.weights.get(key, key),
        progress=progress,
    )
    for value, given in zip(graph.inputs, inputs, strict=True):
        graph.rename(value, safe_name(given.name))
    return graph, limits


def _refuse_fixed(
    module: OnnxModule, program: ExportedProgram, symbols: Mapping[str, str]
) -> dict[str, int]:
    """A free size that the trace fixed, or took for small, would be a wrong answer for others.
    Gives the limits of those that have one."""
    fakes = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    for i, given in enumerate(module.signature.inputs):
        fake = fakes.get(f"xs_{i}")
        for axis, name in enumerate(given.shape):
            if isinstance(name, str) and fake is not None and isinstance(fake.shape[axis], int):
                raise FrontendError(
                    f"input {given.name}: expected size {name} of axis {axis} to stay free, got a "
                    f"model that needs {fake.shape[axis]} in its trace (compile for one size: "
                    f"--dim {name}=...)"
                )
    limits, conditions = assumptions(program, symbols)
    if conditions:
        raise FrontendError(
            f"{module.model.name}: expected a model that computes alike for all sizes, got one "
            f"that does where {', '.join(conditions)} (fix a size with --dim NAME=SIZE)"
        )
    return limits
