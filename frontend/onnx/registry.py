"""The table of ONNX ops: each is a Python function that computes its outputs with torch ops.

    @op("Gemm")
    def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Value: ...

Inputs arrive in ONNX order, an omitted optional one as None, a sequence as a list; attributes are
in `node.attrs`. The result is one value, or a tuple with one per output. What runs is the trace of
`torch.export`, so the function must not read a tensor's numbers: `node.ints` and `node.known` give
them where they are known at compile time, and raise `NeedsValue` where they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import _disable_current_modes as outside_trace

from ...errors import FrontendError

__all__ = [
    "OPS",
    "TORCH_TYPES",
    "Known",
    "NeedsValue",
    "Node",
    "OpFunction",
    "Refused",
    "Size",
    "Slot",
    "Subgraph",
    "Tensor",
    "Value",
    "op",
    "outside_trace",
]
Tensor: TypeAlias = torch.Tensor
Value: TypeAlias = Any
"""A tensor, a list of values (a sequence), or None (an optional without one)."""
Size: TypeAlias = Any
"""An int or a `torch.SymInt`; torch declares most of its arguments as ints alone."""
OpFunction: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=OpFunction)
OPS: dict[tuple[str, str], OpFunction] = {}
"""By domain ("" is ONNX's own) and op type."""

TORCH_TYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    16: torch.bfloat16,
    **dict.fromkeys((17, 18, 19, 20, 23, 24), torch.float32),  # float8, float4
    **dict.fromkeys((21, 25), torch.uint8),  # uint4, uint2
    **dict.fromkeys((22, 26), torch.int8),  # int4, int2
}
"""What holds the values of each `onnx.TensorProto.DataType`, here and at a program's boundary.

Types that torch does not compute with live in a wider one, as the values that they stand for:
`Node.input_types` tells them apart, and `small_types` rounds to them.
"""


class NeedsValue(FrontendError):
    """A shape depends on the numbers of graph inputs: ``inputs`` names them."""

    def __init__(self, inputs: frozenset[str], where: str) -> None:
        names = ", ".join(sorted(inputs))
        options = " ".join(f"--const {name}=..." for name in sorted(inputs))
        super().__init__(
            f"{where}: expected a shape that follows from the shapes of the inputs, got one that "
            f"depends on the numbers in {names} (compile for given numbers: {options})"
        )
        self.inputs = inputs


class Refused(FrontendError):
    """This use of an op cannot be expressed."""


def op(*names: str, domain: str = "") -> Callable[[F], F]:
    """Enter a function under the op types ``names``."""

    def enter(function: F) -> F:
        for name in names:
            assert (domain, name) not in OPS, f"{domain}:{name} has two functions"
            OPS[domain, name] = function
        return function

    return enter


@dataclass(frozen=True, eq=False)
class Known:
    """Integers (or truths) known at compile time, some of them symbolic sizes.

    An op function may return one in place of a tensor: the tensor is made where one is needed.
    """

    array: NDArray[np.object_]
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph attribute: the body of If, Loop, Scan, SequenceMap. Run it with `Node.run`."""

    name: str
    graph: Any
    """The `onnx.GraphProto`."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(eq=False)
class Slot:
    """What is known of one ONNX value.

    ``tensor`` is what ops compute with; ``fixed`` has the same numbers as a real tensor, where
    they are known; ``sizes`` where some are symbolic. ``needs`` names the graph inputs whose
    numbers (not whose shapes) the value depends on. ``elem_type`` is an
    `onnx.TensorProto.DataType`, 0 if unknown.
    """

    tensor: Value = None
    fixed: Tensor | None = None
    sizes: Known | None = None
    needs: frozenset[str] = frozenset()
    elem_type: int = 0


@dataclass(eq=False)
class Node:
    """One node while its function runs."""

    name: str
    op_type: str
    domain: str
    opset: int
    attrs: Mapping[str, Any]
    """Python numbers, texts and lists; tensors as torch tensors, graphs as `Subgraph`."""
    outputs: tuple[str, ...]
    """Names; "" for an output that nobody wants."""
    input_types: tuple[int, ...] = ()
    """`onnx.TensorProto.DataType` per input, 0 where shape inference does not tell."""
    output_types: tuple[int, ...] = ()
    slots: Sequence[tuple[Value, Slot]] = ()
    """The inputs as the function got them, and what is known of each."""
    evaluate: Callable[[Subgraph, Sequence[Value]], list[Slot]] | None = field(
        default=None, repr=False
    )

    @property
    def num_outputs(self) -> int:
        """Outputs up to the last one wanted."""
        return len(self.outputs)

    @property
    def where(self) -> str:
        return f"{self.op_type} {self.name}".strip()

    def refuse(self, reason: str) -> NoReturn:
        """This use of the op is not supported; ``reason`` reads ``expected X, got Y (...)``."""
        raise Refused(f"{self.where}: {reason}")

    def slot(self, value: Value) -> Slot:
        """What is known of an input; of a value that is no input, nothing."""
        return next((slot for given, slot in self.slots if given is value), Slot(value))

    def is_known(self, value: Value) -> bool:
        """Whether `known` gives the numbers of this input."""
        return self.slot(value).fixed is not None

    def known(self, value: Value) -> Tensor:
        """The numbers of an input, as a real tensor; read it within `outside_trace`."""
        slot = self.slot(value)
        if slot.fixed is None and slot.needs:
            raise NeedsValue(slot.needs, self.where)
        if slot.fixed is None:
            self.refuse("expected numbers known at compile time, got ones that depend on sizes")
        return slot.fixed

    def ints(self, value: Value) -> list[Any]:
        """The integers of an input in order, ints or symbolic sizes."""
        slot = self.slot(value)
        if slot.fixed is None and slot.sizes is not None:
            return list(slot.sizes.array.reshape(-1))
        return [int(number) for number in self.numbers(value)]

    def numbers(self, value: Value) -> list[Any]:
        """The numbers of an input in order: ints, floats or bools."""
        with outside_trace():
            return list(self.known(value).reshape(-1).tolist())

    def run(self, body: Subgraph, values: Sequence[Value]) -> list[Slot]:
        """The outputs of a subgraph for these inputs (tensors, lists, `Known` or `Slot`).

        A function may return slots: what is known of them is then kept.
        """
        assert self.evaluate is not None
        return self.evaluate(body, values)
