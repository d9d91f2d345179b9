"""How an exported module is called, and what it gives back: trees of arguments as flat tensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from ..errors import RequestError


@dataclass(frozen=True, eq=False)
class CallSignature:
    """``leaves`` and ``results`` are tensors by name, or constants that the example fixed."""

    leaves: Sequence[Any]
    arguments: pytree.TreeSpec
    """Of ``(args, kwargs)``."""
    results: Sequence[torch.dtype | ConstantArgument]
    structure: pytree.TreeSpec
    parameters: inspect.Signature | None
    """What Python binds arguments by; a program that was read from a file has none."""

    @classmethod
    def of(cls, program: ExportedProgram, forward: Any = None) -> CallSignature:
        """Of a program, and of the method that it was exported from."""
        inputs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
        outputs = [
            s for s in program.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT
        ]
        types = {node.name: node.meta.get("val") for node in program.graph.nodes}
        spec = program.call_spec
        return cls(
            [s.arg if isinstance(s.arg, ConstantArgument) else s.arg.name for s in inputs],
            spec.in_spec,
            [
                s.arg if isinstance(s.arg, ConstantArgument) else _dtype(types[s.arg.name])
                for s in outputs
            ],
            spec.out_spec,
            inspect.signature(forward) if forward else None,
        )

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a call by name. Another structure or constant raises `RequestError`."""
        leaves, spec = pytree.tree_flatten(self._as_in_the_example(args, kwargs))
        if spec != self.arguments:
            raise RequestError(
                f"arguments: expected the structure of the example, {_shown(self.arguments)}, "
                f"got {_shown(spec)}"
            )
        given: dict[str, Any] = {}
        for leaf, form in zip(leaves, self.leaves, strict=True):
            if isinstance(form, str):
                given[form] = leaf
            elif leaf != form.value or type(leaf) is not type(form.value):
                raise RequestError(
                    f"argument {form.name}: expected {form.value!r}, which the compile fixed, "
                    f"got {leaf!r} (compile again with this value)"
                )
        return given

    def restore(self, arrays: Sequence[Any], as_tensors: bool) -> Any:
        """The module's result, of arrays or of tensors in the module's own dtypes."""
        left = iter(arrays)
        leaves = [
            form.value
            if isinstance(form, ConstantArgument)
            else torch.from_numpy(next(left)).to(form)
            if as_tensors
            else next(left)
            for form in self.results
        ]
        return pytree.tree_unflatten(leaves, self.structure)

    def _as_in_the_example(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """By position what the example gave by position, the rest by name and in its order."""
        by_position, by_name = self.arguments.children()
        names: list[str] = list(by_name.context or ())
        if self.parameters is not None:
            try:
                bound = self.parameters.bind(*args, **kwargs)
            except TypeError as error:
                raise RequestError(f"arguments: {error}") from error
            kinds = {p.kind for p in self.parameters.parameters.values()}
            if inspect.Parameter.VAR_POSITIONAL not in kinds:
                flat = {**bound.arguments, **bound.arguments.pop(_rest_of(self.parameters), {})}
                count = by_position.num_children
                values = list(flat.items())
                args, kwargs = [v for _, v in values[:count]], dict(values[count:])
        ordered = {n: kwargs[n] for n in names if n in kwargs}
        return tuple(args), {**ordered, **kwargs}


def _dtype(value: Any) -> torch.dtype:
    """Of a result on fake tensors; a size comes back as an integer of no dims."""
    return value.dtype if isinstance(value, torch.Tensor) else torch.int64


def _rest_of(parameters: inspect.Signature) -> str:
    """The name of ``**kwargs``, or a name that no parameter has."""
    kind = inspect.Parameter.VAR_KEYWORD
    return next((n for n, p in parameters.parameters.items() if p.kind is kind), "")


def _shown(spec: pytree.TreeSpec) -> str:
    """``(args, kwargs)`` with a star for each value."""
    return repr(pytree.tree_unflatten(["*"] * spec.num_leaves, spec)).replace("'*'", "*")
