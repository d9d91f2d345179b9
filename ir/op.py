"""What an op is: attributes, a shape rule, a NumPy reference and a cost.

A subclass is a frozen dataclass; its fields are the attributes, so equal ops compare equal. Defining the
class registers it under ``name``; a second op of the same name is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import VerifyError
from .dim import Dim, as_dim
from .types import TensorType

OPS: dict[str, type[Op]] = {}
Array = Any
"""A NumPy array, or `ir.blocks.BlockArray` for a block type."""


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
        if cls.name in OPS and OPS[cls.name].__qualname__ != cls.__qualname__:
            raise VerifyError(f"op {cls.name}: defined twice")
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


def expect(condition: bool, message: str) -> None:
    """Raise `VerifyError` with ``message`` when a shape rule does not hold."""
    if not condition:
        raise VerifyError(message)
