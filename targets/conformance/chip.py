"""The chip under test: both of its faces, and small artifacts compiled for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Self

from ...errors import SglkError
from ...ir.graph import Graph, Node
from ...ir.op import Array
from ...ir.target import Target
from ..artifact import Artifact, ArtifactWriter
from ..assemble import Parts, write_artifact
from ..backend import Backend
from ..device import Device, Executable
from ..lowering import entry_of, symbols_of_entry
from ..table import OperatorRow
from ..weights import typed_reader

ROUNDED = ("int8", "bf16")
"""Activations that weights may be rounded beside."""


@dataclass(frozen=True)
class KitChoices:
    """What the kit asks of a backend; fields of `backend.Choices`."""

    arches: tuple[str, ...] = ()
    activations: str = "f32"
    handwritten: bool = True
    round_weights: bool = False
    batch_invariant: bool = False
    tuning: str = ""
    candidates: int = 0


@dataclass
class Chip:
    """A target with its compiler, its device, and a folder for what is compiled."""

    backend: Backend
    device: Device
    folder: Path
    choices: KitChoices = field(default_factory=KitChoices)
    num_threads: int | None = None
    table: tuple[OperatorRow, ...] = ()
    """Its operator table, if the backend shows it: then every row is tried, not only the best."""
    _numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.backend.check(self.choices)
        denied = {(row.op, row.name) for row in getattr(self.backend, "denied", ())}
        rows = getattr(self.backend, "table", ())
        self.table = tuple(row for row in rows if (row.op, row.name) not in denied)
        self.target: Target = self.backend.target(self.choices)

    def variants(self) -> Iterator[Self]:
        """The same chip under other choices that it offers: rows that the default never picks."""
        if not self.choices.handwritten:
            return
        yield replace(self, choices=replace(self.choices, handwritten=False))
        for activations in ROUNDED:
            choices = replace(self.choices, activations=activations, round_weights=True)
            try:
                self.backend.check(choices)
            except SglkError:
                continue
            yield replace(self, choices=choices)

    def compile(
        self,
        graph: Graph,
        params: Mapping[str, Array],
        *,
        vocab_size: int = 1,
        context_length: int = 0,
        forced: Mapping[Node, OperatorRow] | None = None,
    ) -> Artifact:
        """An open artifact of a graph that has the chip's own ops; ``forced`` picks rows."""
        lowering = self.backend.lower(graph, self.target)
        lowering.selection.chosen.update(forced or {})
        entry = entry_of(graph)
        program = lowering.program(entry, symbols_of_entry(graph, entry))
        sizes = {"vocab_size": vocab_size, "context_length": context_length}
        parts = Parts(
            model={"name": "conformance", "architecture": graph.name, **sizes},
            target=self.target.name,
            page_size=self.target.page_size,
            program=program,
            lowering=lowering,
            libraries=self.backend.build(lowering, self.choices, _silent),
            graph_text=graph.as_text(),
            plans=self.backend.plans(program),
            producer="sglk conformance",
        )
        path = self.folder / f"{next(self._numbers)}.sglk"
        read = typed_reader(graph, params.__getitem__)
        with ArtifactWriter(path) as writer:
            write_artifact(writer, parts, read, self.backend.pack_weight, dict, _silent)
        return Artifact.open(path)

    def load(self, artifact: Artifact, num_pages: int = 1, max_tokens: int = 1) -> Executable:
        return self.device.load(
            artifact, num_pages=num_pages, max_tokens=max_tokens, num_threads=self.num_threads
        )

    @contextmanager
    def loaded(
        self, artifact: Artifact, num_pages: int = 1, max_tokens: int = 1
    ) -> Iterator[Executable]:
        executable = self.load(artifact, num_pages, max_tokens)
        try:
            yield executable
        finally:
            executable.close()

    def rows_for(self, node: Node) -> Sequence[OperatorRow]:
        """Every row of the table that takes a node, best first."""
        rows = [r for r in self.table if r.op == node.op.name and not r.accepts(node, self.target)]
        return sorted(rows, key=lambda row: -row.priority)


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
