"""A trace on an engine whose clock goes on in its turns only.

Two engines in turns see the same machine, however it changes, and neither sees the other. Where
nothing is to be done until the next arrival, the clock goes there at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sglk.runtime import SamplingParams
from sglk.runtime.engine import Engine
from sglk.runtime.simulate import SimResult
from sglk.runtime.steps import StepRecord
from sglk.runtime.trace import TraceRequest

CLOCK_ERROR_S = 1e-9
"""What a sum of seconds may lack of the moment that it was moved to."""


class TurnClock:
    """Seconds that its turns have taken, and those that were passed over.

    >>> seconds = iter([100.0, 102.0, 102.0, 500.0])
    >>> clock = TurnClock(lambda: next(seconds))
    >>> with clock.turn():
    ...     clock.skip_to(7.0)
    >>> clock()
    7.0
    """

    def __init__(self, wall: Callable[[], float] = time.perf_counter) -> None:
        self.wall = wall
        """The machine's clock."""
        self._offset = 0.0
        self._shown: float | None = 0.0  # between turns

    def __call__(self) -> float:
        return self.wall() + self._offset if self._shown is None else self._shown

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """It goes on until the block ends."""
        self._offset = self() - self.wall()
        self._shown = None
        try:
            yield
        finally:
            self._shown = self()

    def skip_to(self, then: float) -> None:
        """Nothing happens before."""
        self._offset += max(0.0, then - self())


class Step(NamedTuple):
    """A step that was served."""

    wall: float
    """When it began, in the machine's time."""
    now: float
    """The same, from the start of the trace."""
    record: StepRecord

    @property
    def is_mixed(self) -> bool:
        """Whether it had prefill; such steps run other kernels."""
        return self.record.load.prefill_tokens > 0


class Replay:
    """One trace; times count from each request's arrival, as in the simulation."""

    def __init__(self, engine: Engine, clock: TurnClock, trace: Sequence[TraceRequest]) -> None:
        engine.clock = clock
        engine.flush_cache()
        engine.on_step = self._note
        self.trace = trace
        self.result, self.steps = SimResult(), list[Step]()
        self._engine, self._clock, self._origin = engine, clock, clock()
        self._prompts = [prompt_of(each, engine.vocab_size) for each in trace]
        self._last: dict[str, float] = {}
        self._begun: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Whether everybody has come and gone."""
        return len(self._last) == len(self.trace) and not self._engine.has_work

    def turn(self, seconds: float) -> None:
        """Go on for so long, with a step at least, or to the end."""
        until = self._clock.wall() + seconds
        with self._clock.turn():
            while not self.is_done:
                self._take_arrivals()
                if self._engine.has_work:
                    self._step()
                    if self._clock.wall() >= until:
                        return
                else:
                    self._clock.skip_to(self._origin + self.trace[len(self._last)].arrival_s)

    def _now(self) -> float:
        return self._clock() - self._origin

    def _take_arrivals(self) -> None:
        now = self._now() + CLOCK_ERROR_S
        while (at := len(self._last)) < len(self.trace) and self.trace[at].arrival_s <= now:
            each = self.trace[at]
            params = SamplingParams(max_tokens=each.num_output, ignore_eos=True)
            self._engine.add_request(f"t{each.number}", self._prompts[at], params)
            self._last[f"t{each.number}"] = each.arrival_s

    def _step(self) -> None:
        outputs = self._engine.step()
        now = self._now()
        for output in outputs:
            name = output.request_id
            gaps = self.result.itl if name in self._begun else self.result.ttft
            gaps.append(now - self._last[name])
            self._begun.add(name)
            self._last[name] = now
        self.result.seconds = now

    def _note(self, record: StepRecord) -> None:
        began = self._clock.wall() - record.seconds
        self.steps.append(Step(began, record.started - self._origin, record))


def prompt_of(each: TraceRequest, vocab: int) -> NDArray[np.int32]:
    """Token ids of the model that are equal where those of the trace are."""
    parts = [
        np.random.default_rng(block).integers(0, vocab, each.block_tokens, dtype=np.int32)
        for block in each.hash_ids or ()
    ]
    return np.concatenate(parts)[: each.num_prompt]
