"""The compile side of the CUDA target: from a captured graph to kernels and calls."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from ...ir.dim import Dim, parse_dim
from ...ir.graph import Graph
from ...ir.target import Target
from ...passes.select_rows import select_rows
from ..artifact.program import Program
from ..lowering import STEP, Lowering, Operand
from .table import DENIED, TABLE

ALIGNED = 16
"""Bytes; pointers that are multiples of it are promised to the compiler, for wide loads."""
LOGITS = "logits"
DEFAULTS: dict[str, object] = {"num_warps": 4, "num_stages": 3}


class CudaLowering(Lowering):
    """Adds to every kernel which of its pointers are aligned.

    The device aligns what it allocates to more than that, and the arena's buffers are aligned.
    """

    def kernel_options(
        self, present: Mapping[str, Operand], options: Mapping[str, object]
    ) -> tuple[tuple[str, object], ...]:
        aligned = tuple(sorted(name for name, operand in present.items() if is_aligned(operand)))
        return tuple(sorted({**DEFAULTS, **options, "aligned": aligned}.items()))

    def program(self, entry: str, symbols: tuple[str, ...]) -> Program:
        """The device reads a step's one output by its name."""
        outputs = self._outputs()
        if entry == STEP and len(outputs) == 1:
            outputs[0].name = LOGITS
        return super().program(entry, symbols)


def is_aligned(operand: Operand) -> bool:
    """Whether a pointer is a multiple of `ALIGNED` bytes for every value of the symbols."""
    return operand.type.startswith("*") and _is_multiple(parse_dim(operand.arg.offset))


def _is_multiple(offset: Dim) -> bool:
    """Every term of a sum has a factor that is one: products of integers keep it."""
    terms = sympy.Add.make_args(sympy.expand(sympy.sympify(offset)))
    return all(int(term.as_coeff_Mul()[0]) % ALIGNED == 0 and _is_whole(term) for term in terms)


def _is_whole(term: sympy.Expr) -> bool:
    return term.as_coeff_Mul()[0].is_Integer and bool(term.is_integer)


def lower(graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
    """Select a row for every node; ``partial`` leaves out those that have none, for reports."""
    return CudaLowering(graph, target, select_rows(graph, target, TABLE, DENIED, partial=partial))
