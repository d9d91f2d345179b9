"""Kunlun's operator table: every op it runs, and how; then what must not be used, and why."""

from __future__ import annotations

from ...ir.target import Denied
from ..table import OperatorRow
from . import rows_cluster, rows_experts, rows_sdnn, vendor, vendor_rows

TABLE: tuple[OperatorRow, ...] = (
    *vendor_rows.ROWS,
    *rows_sdnn.ROWS,
    *rows_cluster.ROWS,
    *rows_experts.ROWS,
)
DENIED: tuple[Denied, ...] = vendor.NOT_TO_USE
