"""Loads on several servers in turns: what becomes of the machine meanwhile meets all of them alike.

All servers are stopped but the one whose turn it is, so each has the machine to itself and only its
own turns count. The next turn is for the load that had fewest for its work: the turns of each lie
evenly in time and all end about together. A machine that is slower for some minutes is so for the
same share of every load. (Not for the load with the fewest answers: those come late, so a load of
short answers would have its turns at the end.)
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sglk.bench.edges import Edges
from sglk.bench.load_client import Result, request
from sglk.bench.server_process import Served

TURN_S = 1.0
"""Short beside the minutes in which a machine changes, long beside what a change of turns costs."""
WINDOW_S = 50.0
"""Seconds that others are asked to keep quiet at a time."""


class Load:
    """Prompts for one server, all at once, answered in its turns; ``work`` in tokens to compute."""

    def __init__(
        self,
        name: str,
        served: Served,
        prompts: Sequence[list[int]],
        new: int,
        body: dict[str, Any],
        work: int,
    ) -> None:
        self.name = name
        self.work = work
        self.seconds = 0.0
        """That its turns have taken."""
        self.num_turns = 0
        self.results = [Result() for _ in prompts]
        self._served = served
        self._bodies = [{"prompt": prompt, "max_tokens": new, **body} for prompt in prompts]
        self._sent: asyncio.Future[list[Result]] | None = None

    @property
    def had(self) -> float:
        """Turns for each token of its work."""
        return self.num_turns / self.work

    @property
    def is_done(self) -> bool:
        return self._sent is not None and self._sent.done()

    def stop(self) -> None:
        """Nothing of the server runs from here on."""
        self._served.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It runs again."""
        self._served.process.send_signal(signal.SIGCONT)

    async def turn(self, seconds: float) -> None:
        """Let the server run for so long, or until all is answered; the first turn also asks."""
        began = time.perf_counter()
        self.resume()
        if self._sent is None:
            self._sent = asyncio.gather(*map(self._ask, self._bodies, self.results))
        await asyncio.wait([self._sent], timeout=seconds)
        self.stop()
        self.seconds += time.perf_counter() - began
        self.num_turns += 1
        if self.is_done:
            self._sent.result()  # raises what went wrong

    def cancel(self) -> None:
        """Nobody waits for what is left."""
        if self._sent is not None:
            self._sent.cancel()

    async def _ask(self, body: dict[str, Any], result: Result) -> Result:
        return await request(self._served.target, body, keeps_text=True, result=result)


def in_turns(
    loads: Sequence[Load], edges: Edges, turn_s: float = TURN_S, window_s: float = WINDOW_S
) -> None:
    """Answer all of them; each window of some turns is announced."""
    with _stopped(loads):
        asyncio.run(_in_turns(loads, edges, turn_s, window_s))


@contextlib.contextmanager
def _stopped(loads: Sequence[Load]) -> Iterator[None]:
    """A server that is stopped would not hear that it shall end."""
    for load in loads:
        load.stop()
    try:
        yield
    finally:
        for load in loads:
            load.resume()


async def _in_turns(loads: Sequence[Load], edges: Edges, turn_s: float, window_s: float) -> None:
    number = 0
    try:
        while left := [load for load in loads if not load.is_done]:
            number += 1
            with edges.window(f"window {number}"):
                until = time.perf_counter() + window_s
                while left and time.perf_counter() < until:
                    for load in loads:
                        load.stop()  # who stops and continues others may have continued it
                    await min(left, key=lambda load: load.had).turn(turn_s)
                    left = [load for load in left if not load.is_done]
    finally:
        for load in loads:
            load.cancel()
