"""Ops that pick rows by index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..blocks import BlockArray
from ..dtype import F32
from ..op import Array, Op, expect
from ..types import TensorType


@dataclass(frozen=True)
class Embedding(Op):
    """(table[V, H], ids[...]) -> f32[..., H]: rows by id, dequantized when the table has a block type."""

    name: ClassVar[str] = "embedding"

    def infer(self, table: TensorType, ids: TensorType) -> tuple[TensorType, ...]:
        expect(
            table.rank == 2 and table.dtype.is_float,
            f"embedding: expected a float table [V, H], got {table}",
        )
        expect(ids.dtype.is_integer, f"embedding: expected integer ids, got {ids}")
        return (TensorType(F32, (*ids.shape, table.shape[1])),)

    def reference(self, table: Array, ids: Array) -> Array:
        if isinstance(table, BlockArray):
            rows = table.take_rows(np.ravel(ids)).dequantize()
            return rows.reshape(*np.shape(ids), -1)
        return np.asarray(table[ids], np.float32)


@dataclass(frozen=True)
class GatherRows(Op):
    """(x[T, ...], rows i32[L]) -> x[rows]: the rows whose logits are wanted."""

    name: ClassVar[str] = "gather_rows"

    def infer(self, x: TensorType, rows: TensorType) -> tuple[TensorType, ...]:
        expect(
            rows.rank == 1 and rows.dtype.is_integer,
            f"gather_rows: expected i32[L] rows, got {rows}",
        )
        return (x.with_shape(*rows.shape, *x.shape[1:]),)

    def reference(self, x: Array, rows: Array) -> Array:
        return x[rows]
