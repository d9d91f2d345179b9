"""Converter of the scans that `recurrence` puts in place of a model's own."""

from __future__ import annotations

from ..ir.graph import Value
from ..ir.ops.recurrence import LinearRecurrence
from .fx_convert_context import Emitter, converts


@converts("sglk.linear_recurrence")
def linear_recurrence(
    e: Emitter,
    q: Value,
    k: Value,
    v: Value,
    decay: Value,
    rate: Value | None,
    beta: Value | None,
) -> Value:
    op = LinearRecurrence(has_rate=rate is not None, has_beta=beta is not None)
    return e.emit(op, q, k, v, decay, *(x for x in (rate, beta) if x is not None))
