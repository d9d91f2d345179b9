"""The CPU's operator table: every op it runs, and how; then what must not be used, and why."""

from __future__ import annotations

from ...ir.target import Denied
from ..rows import (
    cache,
    generic,
    high_rank,
    indexing,
    integers,
    linear,
    math,
    order,
    spatial,
    token,
)
from ..table import OperatorRow
from . import (
    rows_attention,
    rows_exact,
    rows_int8,
    rows_native,
    rows_recurrence,
    rows_rounded,
    rows_spatial,
    rows_tiles,
)

TABLE: tuple[OperatorRow, ...] = (
    *rows_native.ROWS,
    *rows_rounded.ROWS,
    *rows_int8.ROWS,
    *rows_exact.ROWS,
    *rows_tiles.ROWS,
    *linear.ROWS,
    *token.ROWS,
    *rows_attention.ROWS,
    *cache.ROWS,
    *generic.ROWS,
    *order.ROWS,
    *math.ROWS,
    *indexing.ROWS,
    *indexing.IN_ORDER,
    *spatial.ROWS,
    *high_rank.ROWS,
    *integers.ROWS,
    *rows_spatial.ROWS,
    *rows_recurrence.ROWS,
)
DENIED: tuple[Denied, ...] = ()
