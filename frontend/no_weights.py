"""A source without tensors, for models that are compiled from their config alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ..errors import FrontendError
from ..ir.quantized import Quantized
from .weights import WeightInfo


@dataclass(frozen=True)
class NoWeights:
    """Implements `WeightSource`; whoever reads a tensor has forgotten that there are none."""

    where: str

    def names(self) -> Sequence[str]:
        return ()

    def info(self, name: str) -> WeightInfo:
        raise self._error(name)

    def read(self, name: str) -> NDArray[Any] | Quantized:
        raise self._error(name)

    def _error(self, name: str) -> FrontendError:
        return FrontendError(f"{self.where}: {name}: there are no weights (--weights dummy)")
