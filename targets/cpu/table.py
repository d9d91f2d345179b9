"""The CPU's operator table: every op it runs, and how; then what must not be used, and why."""

from __future__ import annotations

from ...ir.target import Denied
from ..table import OperatorRow
from . import (
    rows_attention,
    rows_exact,
    rows_generic,
    rows_int8,
    rows_linear,
    rows_native,
    rows_tiles,
    rows_token,
)

TABLE: tuple[OperatorRow, ...] = (
    *rows_native.ROWS,
    *rows_int8.ROWS,
    *rows_exact.ROWS,
    *rows_tiles.ROWS,
    *rows_linear.ROWS,
    *rows_token.ROWS,
    *rows_attention.ROWS,
    *rows_generic.ROWS,
)
DENIED: tuple[Denied, ...] = ()
