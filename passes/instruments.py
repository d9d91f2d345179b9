"""What watches the passes from between them: time, dumped text, verification, early stop.

A pass neither prints, verifies nor times itself. `run_pipeline` calls each instrument before and
after every pass; `default_instruments` reads the switches of `knobs`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import knobs
from ..errors import PassError, VerifyError
from ..ir.graph import Graph
from ..ir.interpret import interpret
from ..ir.op import Array
from ..ir.testing import assert_close, substituted
from ..ir.verify import verify
from .base import Pass
from .sample import read_random_param, sample_inputs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PassRecord:
    """One pass that ran."""

    number: int
    name: str
    seconds: float
    changed: bool
    nodes: int


class Instrument:
    """Base: does nothing. ``number`` counts the passes of one pipeline from 1."""

    def before(self, number: int, step: Pass, graph: Graph) -> None:
        """Called with the graph that the pass will get."""

    def after(self, number: int, step: Pass, graph: Graph, changed: bool) -> None:
        """Called with the graph that the pass left."""

    def wants_stop(self, step: Pass) -> bool:
        """True ends the pipeline after this pass."""
        return False


@dataclass
class Timing(Instrument):
    """Seconds and node counts of each pass, also to the log."""

    records: list[PassRecord] = field(default_factory=list)
    _started: float = 0.0

    def before(self, number: int, step: Pass, graph: Graph) -> None:
        self._started = time.perf_counter()

    def after(self, number: int, step: Pass, graph: Graph, changed: bool) -> None:
        seconds = time.perf_counter() - self._started
        self.records.append(PassRecord(number, step.name, seconds, changed, len(graph.nodes)))
        what = f"{len(graph.nodes)} nodes" if changed else "no change"
        log.debug("pass %02d %s: %s, %.3f s", number, step.as_text(), what, seconds)


@dataclass
class Dump(Instrument):
    """``00-given.txt``, then ``07-fuse-add-rmsnorm.txt`` after each pass that changed something."""

    folder: Path

    def before(self, number: int, step: Pass, graph: Graph) -> None:
        if number == 1:
            self._write("00-given.txt", graph)

    def after(self, number: int, step: Pass, graph: Graph, changed: bool) -> None:
        if changed:
            self._write(f"{number:02d}-{step.name}.txt", graph)

    def _write(self, name: str, graph: Graph) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(graph.as_text())
        except OSError as error:
            raise PassError(f"SGLK_DUMP: cannot write {self.folder / name}: {error}") from error


class Verify(Instrument):
    """The graph's own rules after each pass, and equal numbers on small random inputs.

    Raises `VerifyError`: a pass that breaks either is our bug, and the graph must not go further.
    """

    def __init__(self, rtol: float = 1e-4) -> None:
        self.rtol = rtol
        self._numbers: list[Array] | None = None

    def before(self, number: int, step: Pass, graph: Graph) -> None:
        if self._numbers is None:
            verify(graph)
            self._numbers = _run(graph)

    def after(self, number: int, step: Pass, graph: Graph, changed: bool) -> None:
        if not changed:
            return
        verify(graph)
        old, self._numbers = self._numbers, _run(graph)
        if step.keeps_numbers and old is not None:
            self._compare(step, old, self._numbers)

    def _compare(self, step: Pass, old: Sequence[Array], new: Sequence[Array]) -> None:
        try:
            for i, (a, b) in enumerate(zip(old, new, strict=True)):
                assert_close(b, a, self.rtol, f"output {i}")
        except (AssertionError, ValueError) as error:
            raise VerifyError(f"pass {step.as_text()}: changed the numbers: {error}") from error


def _run(graph: Graph) -> list[Array]:
    sizes, inputs = sample_inputs(graph)
    small = substituted(graph, sizes)
    types = {v.name: v.type for v in small.params}
    return interpret(small, inputs, lambda name: read_random_param(name, types[name]))


@dataclass
class StopAfter(Instrument):
    """Ends the pipeline after the pass of that name."""

    name: str

    def wants_stop(self, step: Pass) -> bool:
        return step.name == self.name


def default_instruments() -> tuple[Instrument, ...]:
    """Those that the switches in force ask for, but for timing, which always runs."""
    switches = knobs.get()
    wanted: list[Instrument] = []
    if switches.dump:
        wanted.append(Dump(Path(switches.dump)))
    if switches.verify:
        wanted.append(Verify())
    if switches.stop_after:
        wanted.append(StopAfter(switches.stop_after))
    return tuple(wanted)
