"""Ops that pick rows by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...errors import VerifyError
from ..dim import as_dim
from ..dtype import BF16, F32, DType
from ..op import Array, Cost, Op, expect
from ..quantized import Quantized
from ..types import TensorType


def _check_index(where: str, index: np.ndarray, rows: int) -> None:
    """NumPy would count negative indices from the end."""
    if index.size and (index.min() < 0 or index.max() >= rows):
        raise VerifyError(
            f"{where}: expected indices in 0..{rows - 1}, got {index.min()}..{index.max()}"
        )


@dataclass(frozen=True)
class Embedding(Op):
    """(table[V, H], ids[...]) -> [..., H] of ``dtype``, f32 or bf16: rows by id, dequantized when
    the table has a block type."""

    dtype: DType = F32
    name: ClassVar[str] = "embedding"

    def infer(self, table: TensorType, ids: TensorType) -> tuple[TensorType, ...]:
        expect(
            table.rank == 2 and table.dtype.is_float,
            f"embedding: expected a float table [V, H], got {table}",
        )
        expect(ids.dtype.is_integer, f"embedding: expected integer ids, got {ids}")
        expect(self.dtype in (F32, BF16), f"embedding: expected f32 or bf16, got {self.dtype}")
        return (TensorType(self.dtype, (*ids.shape, table.shape[1])),)

    def reference(self, table: Array, ids: Array) -> Array:
        if isinstance(table, Quantized):
            rows = table.take_rows(np.ravel(ids)).dequantize()
            return rows.reshape(*np.shape(ids), table.shape[1])
        _check_index("embedding", ids, len(table))
        return np.asarray(table[ids], np.float32)

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """Only the rows that are asked for are read."""
        table, ids = inputs
        rows = table.with_shape(ids.size, table.shape[1])
        return Cost(outputs[0].size, as_dim(rows.bytes + ids.bytes + outputs[0].bytes))


@dataclass(frozen=True)
class GatherRows(Op):
    """(x[T, ...], rows i32[L]) -> x[rows]: the rows whose logits are wanted."""

    name: ClassVar[str] = "gather_rows"

    def infer(self, x: TensorType, rows: TensorType) -> tuple[TensorType, ...]:
        good = x.rank > 0 and not x.dtype.is_block and rows.rank == 1 and rows.dtype.is_integer
        expect(good, f"gather_rows: expected x [T, ...] and rows i32[L], got {x} and {rows}")
        return (x.with_shape(*rows.shape, *x.shape[1:]),)

    def reference(self, x: Array, rows: Array) -> Array:
        _check_index("gather_rows", rows, len(x))
        return x[rows]

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """Only the rows that are asked for are read."""
        return Cost(0, as_dim(2 * outputs[0].bytes + inputs[1].bytes))
