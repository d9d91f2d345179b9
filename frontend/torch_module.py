"""Torch modules, fx graph modules and exported programs: the same door as a Hugging Face model."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch.export import Dim, ExportedProgram

from ..errors import FrontendError
from .call_signature import CallSignature
from .capture import capture_causal_lm, model_errors, quiet
from .captured import Captured, Progress, describe
from .fx_convert import convert_program, symbol_names
from .fx_convert_context import DTYPES
from .hf import check_is_causal, context_length
from .weights import WeightInfo

Dims = Mapping[str, Mapping[int, str]]
"""Names of symbolic sizes by argument and axis: ``{"x": {1: "tokens"}}``."""

_STORED = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, eq=False)
class ModuleSource:
    """The tensors of a state dict; floats are read as float32, integers as graphs hold them."""

    where: str
    tensors: Mapping[str, torch.Tensor]

    def names(self) -> Sequence[str]:
        return list(self.tensors)

    def info(self, name: str) -> WeightInfo:
        tensor = self._tensor(name)
        kind = DTYPES[tensor.dtype].name
        first = next(n for n, t in self.tensors.items() if t is tensor)
        alias = None if first == name else first
        return WeightInfo(name, _STORED.get(tensor.dtype, kind), tuple(tensor.shape), alias)

    def read(self, name: str) -> NDArray[Any]:
        tensor = self._tensor(name).detach().cpu()
        plain = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
        array: NDArray[Any] = plain.numpy().astype(DTYPES[tensor.dtype].numpy, copy=False)
        return array

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise FrontendError(f"{self.where}: expected a tensor {name}, got none of that name")
        return self.tensors[name]


def load_module(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dims: Dims | None = None,
    progress: Progress | None = None,
) -> Captured:
    """Capture a module on example inputs; sizes named in ``dims`` stay symbolic.

    A transformers causal LM needs no example: it is captured as `hf.load_hf` does, in f32. A
    `torch.fx.GraphModule` is a module like any other.
    """
    if not args and not kwargs and hasattr(module, "config"):
        return _load_transformers(module, progress)
    name = type(module).__name__
    if not args and not kwargs:
        raise FrontendError(
            f"{name}: expected example inputs, got none (give them as second argument, and "
            "dims={...} for sizes that must stay symbolic)"
        )
    program = export_module(module, args, kwargs, dims)
    signature = CallSignature.of(program, module.forward)
    source = ModuleSource(name, module.state_dict(keep_vars=True))
    graph = convert_program(
        program, name=name, symbols=symbol_names(program, dims), progress=progress
    )
    return Captured(graph, source, None, describe(graph, name, name), signature)


def load_program(program: ExportedProgram, progress: Progress | None = None) -> Captured:
    """A program of `torch.export`; a lone symbolic size is called ``tokens``."""
    signature = CallSignature.of(program)  # before the conversion rewrites the program
    graph = convert_program(program, name="program", progress=progress)
    source = ModuleSource("program", dict(program.state_dict))
    return Captured(graph, source, None, describe(graph, "program", "program"), signature)


def export_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dims: Dims | None = None,
) -> ExportedProgram:
    """Export without gradients; a size named in ``dims`` that the module fixes is refused."""
    shapes = _dynamic_shapes(module, args, kwargs or {}, dims or {})
    context = contextlib.ExitStack()
    with context:
        context.enter_context(model_errors(type(module).__name__, "exporting it"))
        context.enter_context(torch.no_grad())
        context.enter_context(quiet())
        return torch.export.export(
            module, tuple(args), dict(kwargs or {}), dynamic_shapes=shapes, strict=False
        )


def _dynamic_shapes(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dims: Dims
) -> dict[str, Any] | None:
    """Torch's form of ``dims``, with one `Dim` per name."""
    if not dims:
        return None
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    spread = {
        name: [f"{name}_{i}" for i in range(len(value))]
        for name, value in bound.arguments.items()
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
    }  # ``forward(self, *xs)``: torch calls the arguments xs_0, xs_1, ...
    plain = [name for name in bound.arguments if name not in spread]
    known = [*plain, *(name for names in spread.values() for name in names)]
    if unknown := sorted(set(dims) - set(known)):
        raise FrontendError(
            f"{type(module).__name__}: expected dims of {', '.join(known)}, "
            f"got {', '.join(unknown)}"
        )
    sizes = {name: Dim(name, min=2) for axes in dims.values() for name in axes.values()}
    axes = {n: {a: sizes[d] for a, d in dims.get(n, {}).items()} or None for n in known}
    return {n: axes[n] for n in plain} | {n: tuple(axes[m] for m in ms) for n, ms in spread.items()}


def _load_transformers(module: torch.nn.Module, progress: Progress | None) -> Captured:
    config: Any = module.config
    name = type(module).__name__
    check_is_causal(config, name)
    graph = capture_causal_lm(config, progress)
    text = config.get_text_config(decoder=True)
    info = describe(graph, name, config.model_type, context_length(text), text.hidden_size)
    return Captured(graph, ModuleSource(name, module.state_dict(keep_vars=True)), None, info)


def read_program(path: Path) -> ExportedProgram:
    """A ``.pt2`` file of `torch.export.save`."""
    if not path.is_file():
        raise FrontendError(f"{path}: expected a .pt2 file, got no such file")
    with model_errors(str(path), "reading it"), quiet():
        return torch.export.load(path)
