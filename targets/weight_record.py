"""What a report says of weights: their types, which of them became others, what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ..ir.dtype import dtype
from .assemble import Parts
from .expanded import stacked
from .weights import Stored, source_bytes


class Source(Protocol):
    """Stored tensors by name."""

    def names(self) -> Sequence[str]: ...

    def info(self, name: str) -> Stored: ...


@runtime_checkable
class HasNotes(Protocol):
    """A source that leaves something of its checkpoint aside."""

    @property
    def notes(self) -> Sequence[str]: ...


def source_record(parts: Parts, source: Source, rounding: Mapping[str, float]) -> dict[str, Any]:
    """``source_bytes``; and ``weights``: ``forms``, matrices and bytes by type; ``expanded``, how
    many became another type, by both; ``rounding``, by form the largest relative L2 error of a
    matrix that was rounded to it; ``notes`` of the source."""
    names = source.names()
    record: dict[str, Any] = {"source_bytes": source_bytes(map(source.info, names))}
    if names:
        notes = source.notes if isinstance(source, HasNotes) else ()
        expanded = dict(sorted(_expanded(parts, source).items()))
        record["weights"] = {"forms": _forms(parts), "expanded": expanded, "notes": list(notes)}
        record["weights"]["rounding"] = dict(sorted(rounding.items()))
    return record


def _forms(parts: Parts) -> dict[str, dict[str, int]]:
    values = dict.fromkeys(use.value for use in parts.lowering.weights.values())  # some in parts
    types = [value.type for value in values if value.type.rank > 1]
    forms: dict[str, dict[str, int]] = {}
    for kind in sorted(types, key=lambda type: type.dtype.name):
        form = forms.setdefault(kind.dtype.name, {"count": 0, "bytes": 0})
        form["count"] += 1
        form["bytes"] += int(kind.bytes)
    return forms


def _expanded(parts: Parts, source: Source) -> Counter[str]:
    """Stored in few bits, but not kept so in the artifact."""
    kept: set[str] = set()
    if parts.type_of is not None:
        for use in parts.lowering.weights.values():
            kept.update(stacked(use, parts.type_of))
    found: Counter[str] = Counter()
    for param in parts.lowering.graph.params:
        stored = source.info(param.name).dtype
        if dtype(stored).is_block and not param.type.dtype.is_block and param.name not in kept:
            found[f"{stored} to {param.type.dtype}"] += 1
    return found
