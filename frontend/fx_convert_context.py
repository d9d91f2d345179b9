"""What the converters of ATen ops share: their table, and the `Emitter` that they write with.

A converter has the ATen op's own signature after the emitter: ``def add(e, a, b, *, alpha=1)``.
Tensor arguments arrive as `ir` values, sizes as dims, the rest as Python numbers, texts and lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import sympy
import torch
from torch import fx

from ..errors import FrontendError
from ..ir.dim import Dim
from ..ir.dtype import BOOL, F32, I8, I16, I32, U8, U16, U32, U64, DType
from ..ir.graph import Graph, Value
from ..ir.interpret import evaluate
from ..ir.op import Op
from ..ir.ops.elementwise import Cast
from ..ir.ops.reduce import Sum
from ..ir.ops.shape import Broadcast, Reshape
from ..ir.types import TensorType
from .fx_convert_dims import DimNames

Operand: TypeAlias = Value | int | float | bool | sympy.Expr
Converter: TypeAlias = Callable[..., Any]
C = TypeVar("C", bound=Converter)
CONVERTERS: dict[str, Converter] = {}
"""By ``namespace.packet``: ``aten.add`` stands for all its overloads."""

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: F32,
    torch.float64: F32,
    torch.float16: F32,
    torch.bfloat16: F32,
    torch.complex64: F32,  # the type of each part, see `fx_convert_complex`
    torch.int64: I32,
    torch.int32: I32,
    torch.int16: I16,
    torch.int8: I8,
    torch.uint8: U8,
    torch.uint16: U16,
    torch.uint32: U32,
    torch.uint64: U64,
    torch.bool: BOOL,
}
"""All float arithmetic is f32; int64 is i32, and constants that do not fit are refused. Other
integers keep their type, and wrap as it does."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NOT_MODEL = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Unsupported(FrontendError):
    """A converter cannot express this use of its op; the driver collects these for one report."""


def converts(*names: str) -> Callable[[C], C]:
    """Enter a converter under ATen names (``add``) or full ones (``sglk.attention``)."""

    def enter(converter: C) -> C:
        for name in names:
            key = name if "." in name else f"aten.{name}"
            assert key not in CONVERTERS, f"{key} has two converters"
            CONVERTERS[key] = converter
        return converter

    return enter


def source_line(node: fx.Node) -> str:
    """``file.py:line`` of the innermost frame that is neither torch's nor ours; "" if unknown."""
    for path, line in reversed(_FRAME.findall(node.meta.get("stack_trace") or "")):
        if not path.startswith(_NOT_MODEL):
            return f"{Path(path).name}:{line}"
    return ""


def numpy_array(tensor: torch.Tensor, where: str) -> tuple[np.ndarray, TensorType]:
    """A real tensor as constant data; integers that do not fit i32 are refused."""
    if tensor.dtype not in DTYPES or tensor.is_complex():
        raise FrontendError(f"{where}: expected floats, integers or bools, got {tensor.dtype}")
    dtype = DTYPES[tensor.dtype]
    wide = tensor.detach().to(torch.float32 if dtype == F32 else tensor.dtype).numpy()
    data = np.array(wide, dtype.numpy, order="C")
    if dtype.is_integer and not np.array_equal(data, wide):
        raise FrontendError(
            f"{where}: expected integers of 32 bits, got {tensor.min()} to {tensor.max()}"
        )
    return data, TensorType(dtype, data.shape)


_MANY = 64
"""Values that a constant may be computed from at capture."""


def _no_weights(name: str) -> np.ndarray:
    raise Unsupported(f"the value of the weight {name}")


class Emitter:
    """Appends ops to the graph on behalf of one fx node at a time."""

    def __init__(self, graph: Graph, dims: DimNames) -> None:
        self.graph = graph
        self.dims = dims
        self.node: fx.Node | None = None
        self._scalars: dict[tuple[type, float, DType], Value] = {}

    def emit(self, op: Op, *inputs: Value) -> Value:
        return self.graph.emit(op, *inputs, source=source_line(self.node) if self.node else "")

    def type_of(self, fake: torch.Tensor) -> TensorType:
        if fake.dtype not in DTYPES:
            raise Unsupported(f"expected floats, integers or bools, got {fake.dtype}")
        return TensorType(DTYPES[fake.dtype], self.dims.shape(fake.shape))

    @property
    def result(self) -> TensorType:
        """The type that torch gives the current node's (first) result."""
        assert self.node is not None
        value = self.node.meta["val"]
        return self.type_of(value[0] if isinstance(value, tuple | list) else value)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.result.shape

    def known(self, value: Value) -> np.ndarray | None:
        """The data of a value that depends on constants alone; None for any other."""
        pending, seen = [value], 0
        while pending:
            top = pending.pop()
            seen += 1
            producer = top.producer
            if seen > _MANY or (top.kind != "const" and (producer is None or not producer.inputs)):
                return None
            pending += producer.inputs if producer is not None else []
        array: np.ndarray = np.asarray(evaluate([value], _no_weights)[0])
        return array

    def scalar(self, number: float, dtype: DType) -> Value:
        """A constant of rank 0, one per number and dtype."""
        key = (type(number), number, dtype)
        if key not in self._scalars or number != number:
            data = np.array(number).astype(dtype.numpy)
            if dtype.is_integer and int(data) != int(number):
                raise Unsupported(f"the integer {number} does not fit {dtype}")
            self._scalars[key] = self.graph.const(data, TensorType(dtype, ()))
        return self._scalars[key]

    def operand(self, x: Operand, dtype: DType) -> Value:
        """A value or number as a value of ``dtype``."""
        if isinstance(x, Value):
            return self.cast(x, dtype)
        if isinstance(x, sympy.Expr):
            return self.cast(self._size(x), dtype)
        return self.scalar(x, dtype)

    def _size(self, size: sympy.Expr) -> Value:
        """A symbolic size as a number: as many ones, added up."""
        if not size.is_nonnegative:
            raise Unsupported(f"the size {size}, which may be negative, as a number in arithmetic")
        ones = self.emit(Broadcast((size,)), self.scalar(1, I32))
        return self.emit(Sum(0), ones)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype == dtype else self.emit(Cast(dtype), x)

    def reshape(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        return x if x.type.shape == shape else self.emit(Reshape(shape), x)

    def broadcast(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        return x if x.type.shape == shape else self.emit(Broadcast(shape), x)


def axis_of(x: Value, axis: int) -> int:
    """A torch axis as a non-negative one."""
    return axis % max(x.type.rank, 1)
