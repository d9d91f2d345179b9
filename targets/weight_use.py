"""A weight of an artifact, as a lowering asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Value


@dataclass(frozen=True)
class WeightUse:
    """A static value in a physical layout; ``name`` is the weight's name in the artifact."""

    name: str
    value: Value
    layout: str
    stored: tuple[str, tuple[int, ...]] | None = None
    """Dtype and shape of what lies in the artifact, where that is a part of the value."""

    @property
    def dtype(self) -> str:
        """Of what lies in the artifact."""
        return self.value.type.dtype.name if self.stored is None else self.stored[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what lies in the artifact."""
        return self.value.type.concrete({}) if self.stored is None else self.stored[1]
