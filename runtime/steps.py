"""What a step did and how long it took: for metrics, for the step-time model, for replays."""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TextIO

from ..errors import SglkError
from .batch import Plan

_END = attrgetter("end")


class StepLoad(NamedTuple):
    """The work of one step, as far as its time depends on it."""

    prefill_tokens: int
    """Tokens of prefill chunks."""
    decode_rows: int
    """Requests that decode: one token each."""
    logit_rows: int
    """Rows whose logits are computed: `decode_rows` and every prefill that ends."""
    decode_context: int
    """Tokens that the decoding requests attend to, summed."""
    prefill_pairs: int
    """Tokens that each prefill token attends to, summed over prefill tokens."""

    @property
    def mean_context(self) -> float:
        """Tokens that a decoding request attends to on average; 0 where none decodes."""
        return self.decode_context / self.decode_rows if self.decode_rows else 0.0

    @classmethod
    def of(cls, plan: Plan) -> StepLoad:
        """The load of a plan.

        >>> from .batch import Chunk
        >>> from .request import Request
        >>> StepLoad.of(Plan([Chunk(Request("r", [1, 2, 3], 4), 1, 3, True)]))
        StepLoad(prefill_tokens=2, decode_rows=0, logit_rows=1, decode_context=0, prefill_pairs=5)
        """
        rows = plan.num_decoding
        context = plan.context if plan.moved else sum(map(_END, plan.chunks[:rows]))
        tokens = pairs = ends = 0
        for _, start, end, is_last in plan.chunks[rows:]:
            tokens += end - start
            pairs += (end - start) * (start + 1 + end) // 2
            ends += is_last
        return cls(tokens, rows, rows + ends, context, pairs)


class StepRecord(NamedTuple):
    """One step as it happened."""

    started: float
    """Seconds of the engine's clock."""
    seconds: float
    """The whole step: schedule, device, sampling, text. Where steps overlap, what it took since the
    record before, so that they add up to the time that passed."""
    device_seconds: float
    """The device's part; where it runs ahead, what the host waited for it."""
    load: StepLoad
    num_running: int
    """Requests running after the step was planned."""
    num_waiting: int
    num_preempted: int
    """Requests that this step preempted."""


class StepWriter:
    """Writes step records as lines of JSON; an `Engine.on_step` hook.

    >>> import io
    >>> out = io.StringIO()
    >>> StepWriter(out)(StepRecord(1.0, 0.5, 0.25, StepLoad(8, 0, 1, 0, 36), 1, 0, 0))
    >>> list(read_steps(out.getvalue().splitlines(), "trace"))[0].load.prefill_pairs
    36
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    @classmethod
    def open(cls, path: str | Path) -> StepWriter:
        """A writer to a new file; used as a context manager it closes the file."""
        return cls(Path(path).open("w", encoding="utf-8"))

    def __call__(self, record: StepRecord) -> None:
        fields = {**record._asdict(), "load": record.load._asdict()}
        self._out.write(json.dumps(fields) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._out.close()


def read_steps(lines: Iterable[str], where: str) -> list[StepRecord]:
    """Step records from lines that a `StepWriter` wrote, or `SglkError` naming the line."""
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            load = StepLoad(**{name: int(fields["load"][name]) for name in StepLoad._fields})
            rest = {name: fields[name] for name in StepRecord._fields if name != "load"}
            records.append(StepRecord(load=load, **rest))
        except (ValueError, TypeError, KeyError) as error:
            raise SglkError(
                f"{where}: line {number}: expected a step record, got {line.strip():.80} "
                f"({error}; record one with sglk bench --record-steps)"
            ) from error
    return records
