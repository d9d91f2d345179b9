"""What an op is: attributes, a shape rule, a NumPy reference and a cost.

A subclass is a frozen dataclass; its fields are the attributes, so equal ops compare equal.
Defining the class registers it under ``name``; a second op of the same name is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import VerifyError
from .dim import Dim, as_dim
from .types import TensorType

OPS: dict[str, type[Op]] = {}
Array = Any
"""A NumPy array, or a `Quantized` matrix for a block type or a group form."""


@dataclass(frozen=True)
class Cost:
    """Work of one op: floating-point operations and bytes moved, both symbolic."""

    flops: Dim
    bytes: Dim


@dataclass(frozen=True)
class Op:
    """Base of all ops. ``infer`` gives the result types, ``reference`` the result arrays."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("name"):
            return
        other = OPS.get(cls.name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise VerifyError(
                f"op {cls.name}: defined twice, in {other.__module__} and {cls.__module__}"
            )
        OPS[cls.name] = cls

    def infer(self, *types: Any, **_: Any) -> tuple[TensorType, ...]:
        """Result types; an input that does not fit raises `VerifyError`."""
        raise VerifyError(f"op {self.name}: has no shape rule")

    def reference(self, *arrays: Any, **_: Any) -> Any:
        """Result arrays in plain NumPy: the oracle of every kernel and pass."""
        raise VerifyError(f"op {self.name}: has no reference")

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """By default one operation per output element, every operand moved once."""
        moved = sum((t.bytes for t in (*inputs, *outputs)), start=0)
        return Cost(as_dim(sum((t.size for t in outputs), start=0)), as_dim(moved))


def result_types(op: Op, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """`Op.infer` after a count of the operands, which a wrong program may well get wrong."""
    least, most = _ARITY[type(op)] if type(op) in _ARITY else _arity(type(op))
    if not least <= len(types) <= most:
        wanted = (
            f"{least}" if least == most else f"{least} to {most}" if most < _MANY else f"{least}+"
        )
        raise VerifyError(f"{op.name}: expected {wanted} operands, got {len(types)}")
    return op.infer(*types)


_MANY = 1 << 30


_ARITY: dict[type[Op], tuple[int, int]] = {}


def _arity(op: type[Op]) -> tuple[int, int]:
    """Least and largest operand count that the shape rule's signature takes."""
    parameters = list(inspect.signature(op.infer).parameters.values())[1:]
    plain = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    least = sum(p.default is p.empty for p in plain)
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    _ARITY[op] = (least, _MANY if open_ended else len(plain))
    return _ARITY[op]


def expect(condition: bool, message: str) -> None:
    """Raise `VerifyError` with ``message`` when a shape rule does not hold."""
    if not condition:
        raise VerifyError(message)
