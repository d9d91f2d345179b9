"""Sizes of torch's symbolic shapes as `ir` dims: one torch symbol becomes one named symbol."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import CeilToInt, FloorDiv, FloorToInt, IntTrueDiv
from torch.utils._sympy.functions import Max as TorchMax
from torch.utils._sympy.functions import Min as TorchMin

from ..errors import FrontendError
from ..ir.dim import Dim, as_dim, cdiv, dim, dim_max, floordiv


class DimNames:
    """Translates SymInts; ``names`` gives the dim's name for each torch symbol."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)

    def __call__(self, size: int | torch.SymInt) -> Dim:
        return size if isinstance(size, int) else self._dim(size.node.expr)

    def shape(self, sizes: Any) -> tuple[Dim, ...]:
        return tuple(self(size) for size in sizes)

    def _dim(self, e: sympy.Basic) -> Dim:
        if isinstance(e, sympy.Integer):
            return int(e)
        if isinstance(e, sympy.Symbol) and re.fullmatch(r"u\d+", e.name):
            raise FrontendError(
                f"size {e}: expected sizes that follow from those of the inputs, got one that "
                "depends on their values (tokens sorted or chosen by what they hold)"
            )
        if isinstance(e, sympy.Symbol):
            return dim(self.names.setdefault(e.name, e.name))
        if isinstance(e, FloorDiv):
            return floordiv(self._dim(e.args[0]), self._dim(e.args[1]))
        if isinstance(e, FloorToInt | CeilToInt) and isinstance(e.args[0], IntTrueDiv):
            top, bottom = (self._dim(a) for a in e.args[0].args)
            return floordiv(top, bottom) if isinstance(e, FloorToInt) else cdiv(top, bottom)
        if isinstance(e, sympy.Max | TorchMax):
            return dim_max(*(self._dim(a) for a in e.args))
        if isinstance(e, sympy.Min | TorchMin):
            return as_dim(sympy.Min(*(self._dim(a) for a in e.args)))
        if isinstance(e, sympy.Add | sympy.Mul | sympy.Pow):
            return as_dim(e.func(*(self._dim(a) for a in e.args)))
        raise FrontendError(
            f"size {e}: expected + - * // min max over symbols, got {type(e).__name__} "
            "(the model computes a shape in a way that has no symbolic form)"
        )
