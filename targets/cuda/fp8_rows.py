"""Rows as fp8 with a scale each, for products of e4m3: where they lie, and what makes them.

A norm whose readers all multiply fp8 writes them itself, into the memory of its result: elements
from its start, scales after them. Other rows are made by a launch of their own, into scratch.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from ...ir.dim import Dim, as_dim, dim_text
from ...ir.graph import Value
from ..kernel import POINTERS
from ..lowering import Lowering, Operand
from ..rows.linear import row_count
from ..rows.token import next_power_of_two, width
from .dependent import launch_options

MAX_ROW = 32768
"""Elements of a row that one program holds."""


def warps_for(block: int) -> int:
    """Warps for a row of so many elements of 2 bytes: 16 bytes for each thread and load."""
    return max(1, min(16, block // 256))


def fp8_parts(x: Value, memory: Operand) -> dict[str, Operand]:
    """``x`` and ``x_scale`` of rows that lie from the start of some memory on."""
    elements = as_dim(sympy.sympify(row_count(x)) * width(x))
    scales = replace(memory.arg, offset=dim_text(elements))
    return {
        "x": Operand(memory.arg, POINTERS["e4m3"]),
        "x_scale": Operand(scales, POINTERS["f32"]),
    }


def fp8_operands(ctx: Lowering, x: Value, is_made: bool, guard: Dim) -> dict[str, Operand]:
    """Rows of x for a product; ``is_made``: by the norm before it. ``guard``: 0 in other steps."""
    if is_made:
        return fp8_parts(x, ctx.memory(x))
    rows, columns = row_count(x), width(x)
    floats = as_dim(sympy.sympify(rows) * (columns // 4 + 1))
    made = fp8_parts(x, ctx.scratch(floats, "fp8"))
    block = next_power_of_two(columns)
    pdl, options = launch_options(ctx.target)
    options["num_warps"] = warps_for(block)
    arguments = {"x": ctx.memory(x), "y": made["x"], "scales": made["x_scale"]}
    constants = {"HIDDEN": columns, "GROUP": 0, "BLOCK": block, **pdl}
    grid = (as_dim(sympy.sympify(rows) * guard), 1, 1)
    ctx.launch("row_norm.quantize_rows", grid, arguments, constants, None, options)
    return made
