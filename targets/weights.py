"""From stored tensors to the values of a graph: every parameter in the dtype the graph gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np

from ..errors import LoweringError
from ..ir.dtype import BF16, DType, dtype, round_bf16
from ..ir.graph import Graph
from ..ir.op import Array
from ..ir.quantize import quantize
from ..ir.quantized import Quantized
from ..ir.types import TensorType

Read = Callable[[str], Array]
"""A tensor by Hugging Face name: f32 values, or a `Quantized` matrix."""


class TypedReader:
    """Reads parameters as a graph types them: blocks as stored, floats rounded to their dtype."""

    def __init__(self, graph: Graph, read: Read) -> None:
        self._dtypes = {v.name: v.type.dtype for v in graph.params}
        self._read = read
        self.rounding: dict[str, float] = {}
        """By group form: the largest relative L2 error of a matrix that was rounded to it."""

    def __call__(self, name: str) -> Array:
        dtype, array = self._dtypes[name], self._read(name)
        made = as_dtype(name, array, dtype)
        if isinstance(made, Quantized) and not isinstance(array, Quantized):
            error = _relative_error(made, np.asarray(array))
            self.rounding[dtype.name] = max(error, self.rounding.get(dtype.name, 0.0))
        return made


def typed_reader(graph: Graph, read: Read) -> TypedReader:
    """Reads the parameters of a graph."""
    return TypedReader(graph, read)


def _relative_error(made: Quantized, plain: np.ndarray) -> float:
    size = float(np.linalg.norm(plain))
    return float(np.linalg.norm(made.dequantize() - plain)) / size if size else 0.0


def as_dtype(name: str, array: Array, dtype: DType) -> Array:
    """One tensor as ``dtype``: plain values are rounded to a group form, never to ggml's blocks."""
    if dtype.form is not None and not isinstance(array, Quantized):
        return quantize(np.asarray(array), dtype.name)
    if dtype.is_block:
        if not isinstance(array, Quantized) or array.dtype != dtype.name:
            raise LoweringError(f"weight {name}: expected blocks of {dtype}, got another type")
        return array
    plain = array.dequantize() if isinstance(array, Quantized) else np.asarray(array)
    if dtype == BF16:
        return round_bf16(plain)
    return plain.astype(dtype.numpy, copy=False)


def dense_reader(dtypes: Mapping[str, DType], read: Read) -> Read:
    """The values of parameters as f32, after the rounding that ``dtypes`` (by name) implies."""

    def dense(name: str) -> Array:
        array = as_dtype(name, read(name), dtypes[name])
        return array.dequantize() if isinstance(array, Quantized) else array

    return dense


class Stored(Protocol):
    """What is known of a stored tensor without reading it."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def alias_of(self) -> str | None: ...


def source_bytes(tensors: Iterable[Stored]) -> int:
    """Bytes of stored tensors, aliases counted once."""
    types = [TensorType(dtype(t.dtype), t.shape) for t in tensors if t.alias_of is None]
    return sum(int(type.bytes) for type in types)
