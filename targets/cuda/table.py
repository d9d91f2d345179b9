"""The operator table of CUDA: every op it runs, and how; then what must not be used, and why."""

from __future__ import annotations

from ...ir.target import Denied
from ..rows import generic
from ..table import OperatorRow
from . import rows_attention, rows_experts, rows_invariant, rows_linear, rows_token

TABLE: tuple[OperatorRow, ...] = (
    *rows_invariant.ROWS,
    *rows_linear.ROWS,
    *rows_experts.ROWS,
    *rows_token.ROWS,
    *rows_attention.ROWS,
    *generic.ROWS,
)
DENIED: tuple[Denied, ...] = ()
