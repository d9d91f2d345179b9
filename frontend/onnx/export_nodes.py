"""What the exporters of ops write with: nodes, constants, and sizes computed from sizes.

An exporter is ``def op(b: Builder, node: Node, *xs: str) -> str | tuple[str, ...]``: names of
operands in, names of results out. Where an op takes more than one ONNX node, the nodes become a
local function of the model (`function`), so that the graph shows one box for it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from ...errors import FrontendError
from ...ir.dim import Dim, dim_text, symbols_of
from ...ir.dtype import DType
from ...ir.graph import Node

Exporter: TypeAlias = Callable[..., Any]
E = TypeVar("E", bound=Exporter)
INLINE: dict[str, Exporter] = {}
"""Ops that stand in the graph as they are."""
FUSED: dict[str, Exporter] = {}
"""Ops that become local functions; their exporters know operands by shape alone."""
DOMAIN = "sglk"
TYPES = {
    "f64": onnx.TensorProto.DOUBLE,
    "f32": onnx.TensorProto.FLOAT,
    "f16": onnx.TensorProto.FLOAT16,
    "i64": onnx.TensorProto.INT64,
    "i32": onnx.TensorProto.INT32,
    "i16": onnx.TensorProto.INT16,
    "i8": onnx.TensorProto.INT8,
    "u64": onnx.TensorProto.UINT64,
    "u32": onnx.TensorProto.UINT32,
    "u16": onnx.TensorProto.UINT16,
    "u8": onnx.TensorProto.UINT8,
    "bool": onnx.TensorProto.BOOL,
}
"""Any other type, bf16 or a block type, is f32 with the values that it has."""


def inline(*names: str) -> Callable[[E], E]:
    return _entered(INLINE, names)


def fused(*names: str) -> Callable[[E], E]:
    return _entered(FUSED, names)


def _entered(table: dict[str, Exporter], names: Sequence[str]) -> Callable[[E], E]:
    def enter(exporter: E) -> E:
        for name in names:
            assert name not in INLINE.keys() | FUSED.keys(), f"{name} has two exporters"
            table[name] = exporter
        return exporter

    return enter


def elem_type(dtype: DType) -> int:
    return TYPES.get(dtype.name, onnx.TensorProto.FLOAT)


class Builder:
    """A list of nodes with names of their own."""

    def __init__(
        self, prefix: str = "", sizes: Mapping[str, tuple[str, int]] | None = None
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.prefix = prefix
        self._sizes = sizes or {}
        """Where a symbol is found: an input and its axis."""
        self._known: dict[Any, str] = {}

    def fresh(self) -> str:
        return f"{self.prefix}t{len(self.nodes)}"

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        first = self.fresh()
        names = [first, *(f"{first}_{i}" for i in range(1, count))]
        self.add(onnx.helper.make_node(kind, inputs, names, **attributes))
        return names

    def add(self, node: onnx.NodeProto) -> None:
        node.name = f"{self.prefix}n{len(self.nodes)}"
        self.nodes.append(node)

    # Constants

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            tensor = onnx.numpy_helper.from_array(array)
            self._known[key] = self.op("Constant", value=tensor)
        return self._known[key]

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def like(self, value: float, x: str) -> str:
        """A number in the type of ``x``."""
        return self.op("CastLike", self.const(value), x)

    # Sizes

    def size(self, x: str, axis: int) -> str:
        """int64[1]: one size of a value."""
        key = ("size", x, axis)
        if key not in self._known:
            end = {} if axis == -1 else {"end": axis + 1}
            self._known[key] = self.op("Shape", x, start=axis, **end)
        return self._known[key]

    def dim(self, value: Dim) -> str:
        """int64[1]: a size that may depend on those of the inputs."""
        if isinstance(value, int):
            return self.ints(value)
        text = dim_text(value)
        if text not in self._known:
            self._known[text] = self._of(ast.parse(text, mode="eval").body)
        return self._known[text]

    def _of(self, tree: ast.expr) -> str:
        match tree:
            case ast.Constant(value=int(number)):
                return self.ints(number)
            case ast.UnaryOp(operand=operand):
                return self.op("Neg", self._of(operand))
            case ast.Name(id=name):
                if name not in self._sizes:
                    raise FrontendError(
                        f"size {name}: expected an input with an axis of that size, got none"
                    )
                return self.size(*self._sizes[name])
            case ast.BinOp(left=left, op=operator, right=right):
                kinds = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.FloorDiv: "Div"}
                return self.op(kinds[type(operator)], self._of(left), self._of(right))
            case ast.Call(func=ast.Name(id=name), args=args):
                kind = {"min": "Min", "max": "Max"}[name]
                return self.op(kind, *map(self._of, args))
        raise FrontendError(f"size {ast.unparse(tree)}: expected arithmetic on names")

    def shape(self, shape: Sequence[Dim]) -> str:
        """int64[rank]; one size that is not known may be left to Reshape."""
        if all(isinstance(d, int) for d in shape):
            return self.ints(*map(int, shape))
        return self.op("Concat", *map(self.dim, shape), axis=0)

    def reshape(self, x: str, *shape: int) -> str:
        """With at most one -1, and 0 for a size that stays."""
        return self.op("Reshape", x, self.ints(*shape))

    def cast(self, x: str, dtype: DType) -> str:
        return self.op("Cast", x, to=elem_type(dtype))


def symbols(node: Node) -> frozenset[str]:
    """Sizes that the attributes of an op name."""
    found: frozenset[str] = frozenset()
    for value in vars(node.op).values():
        for part in value if isinstance(value, tuple) else (value,):
            if not isinstance(part, int | float | str | DType | type(None)):
                found |= symbols_of(part)
    return found
