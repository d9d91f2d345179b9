"""Memory of a program whose blocks stay inside, and calls of the vendor's operators.

Block transfers fault outside an allocation, masked lanes included, so every buffer of rows has
memory for `PADDED_ROWS` of them from each row on, and some more after its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import sympy

from ...ir.dim import Dim, as_dim, prod
from ...ir.graph import Value
from ...ir.types import TensorType
from ..artifact.program import Buffer, Call
from ..lowering import Lowering, Operand
from ..rows.token import next_power_of_two
from .device.vendor import PREFIX
from .facts import PADDED_ROWS

SLACK = 256
"""Bytes after a buffer: what the last block of an elementwise kernel reads on."""


@cache
def padded_bytes(type: TensorType) -> Dim:
    """What a tensor takes in memory: room for `PADDED_ROWS` rows from any of its own, and slack.

    Sums, not maxima: the planner compares sizes as polynomials.
    """
    if type.rank == 0:
        return as_dim(type.bytes + SLACK)
    first, *rest = type.shape
    rows = sympy.sympify(first) + PADDED_ROWS - 1
    return as_dim(rows * prod(rest) * int(type.dtype.bits) / 8 + SLACK)


class KunlunLowering(Lowering):
    """Buffers padded for whole tiles."""

    def bytes_of(self, value: Value) -> Dim:
        return padded_bytes(value.type)

    def _state(self, value: Value) -> Buffer:
        """Heads of no power of two are read with what follows them; the last one too."""
        state = super()._state(value)
        wide = int(value.type.shape[-1])
        more = (next_power_of_two(wide) - wide) * int(value.type.dtype.bits) // 8
        return replace(state, bytes=f"{state.bytes} + {more}") if more else state

    def call_vendor(self, name: str, operands: Sequence[Operand]) -> None:
        """A call of the vendor's adapter (`emulator/native/vendor_adapter.h`)."""
        assert self._node is not None
        arguments = tuple(operand.arg for operand in operands)
        self._calls.append(Call(PREFIX + name, ("1", "1", "1"), arguments, self._node.op.name))
