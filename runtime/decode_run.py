"""Steps in which the same requests decode, one after the other: noted once, not for each request.

While nobody comes or goes, a step moves every request by one token. A `DecodeRun` counts such steps
and keeps their tokens; what they change of a request is written down (`settle`) when somebody looks
at it: when it has filled a page, and when the run ends. For steps that run ahead of the host alone:
each is planned while the one before it is in flight, whose tokens are known by their places.
"""

from __future__ import annotations

from collections.abc import Sequence

from .batch import Plan
from .kv_cache import KVCache
from .request import Request, place_of
from .sampler import NO_TOKEN

MAX_STEPS = 256
"""Steps of a run, whose tokens are kept until it ends."""


class DecodeRun:
    """Begins with a plan that is in flight and in which all requests decode."""

    def __init__(self, first: Plan, page_size: int) -> None:
        self.chunks = first.chunks
        """Of the first plan; the others have the very same list, which tells them from all else."""
        self._requests = [chunk.request for chunk in first.chunks]
        self._moved = 0  # plans that were advanced after the first
        self._landed: list[Sequence[int]] = []
        self._settled = [0] * len(first.chunks)  # `_moved` when the request was written down
        self._context = sum([chunk.end for chunk in first.chunks])
        self._page_size = page_size
        self._filling: dict[int, list[int]] = {}
        """Rows whose page the plans fill that moved by so many tokens, or by whole pages more."""
        for row, chunk in enumerate(first.chunks):
            self._filling.setdefault(-chunk.end % page_size, []).append(row)
        self._last_ids = frozenset([NO_TOKEN]).union(*[r.stop_ids for r in self._requests])
        self._length = min([chunk.request.max_total - chunk.end for chunk in first.chunks])
        """Plans until one in which a request has no token left to compute."""

    def next_plan(self) -> Plan | None:
        """The plan of one more step; None where the run ends."""
        moved, count = self._moved + 1, len(self.chunks)
        is_in_flight = len(self._landed) < moved
        if not is_in_flight or moved >= min(self._length, MAX_STEPS):
            return None
        context = self._context + moved * count
        has_new_pages = self._moved % self._page_size in self._filling
        return Plan(self.chunks, count, moved=moved, context=context, has_new_pages=has_new_pages)

    def advance(self) -> bool:
        """The next plan is in flight; whether it fills a page."""
        self._moved += 1
        return self._moved % self._page_size in self._filling

    def filled(self) -> list[Request]:
        """Those whose page the newest plan fills, settled."""
        return [self._settle(row) for row in self._filling[self._moved % self._page_size]]

    def land(self, plan: Plan, tokens: Sequence[int]) -> bool:
        """Note the tokens of one of its plans; False and nothing noted where one is the last."""
        if plan.moved + 1 >= self._length or not self._last_ids.isdisjoint(tokens):
            return False
        self._landed.append(tokens)
        return True

    def settle(self) -> None:
        """Write down to every request what the run has changed of it."""
        for row in range(len(self._requests)):
            self._settle(row)

    @property
    def num_unsettled(self) -> int:
        """Tokens of all requests that are not written down yet."""
        return len(self._settled) * self._moved - sum(self._settled)

    def _settle(self, row: int) -> Request:
        request, news = self._requests[row], self._moved - self._settled[row]
        first = self._settled[row] + 1
        if request.last_token < 0:  # known by its place
            request.latest.pop()
            first -= 1
        request.latest += [tokens[row] for tokens in self._landed[first:]]
        if len(self._landed) <= self._moved:
            request.latest.append(place_of(row))
        if request.latest:
            request.last_token = request.latest[-1]
        request.num_computed += news
        request.num_tokens += news
        self._settled[row] = self._moved
        return request


class DecodeRuns:
    """The run that a scheduler is in, if any."""

    def __init__(self) -> None:
        self._run: DecodeRun | None = None
        self._last: Plan | None = None

    def may_follow(self, plan: Plan) -> None:
        """All who run decode in this plan, which was advanced: the next may begin a run."""
        self._last = plan

    def next_plan(self, kv: KVCache, num_running: int) -> Plan | None:
        """The last plan, a token further on, with pages for it; None where others are due."""
        last, self._last = self._last, None
        is_whole = last is not None and len(last.chunks) == num_running
        if last is not None and is_whole and last.chunks[0].request.num_in_flight:
            self._run = DecodeRun(last, kv.page_size)
        if self._run is None:
            return None
        plan = self._run.next_plan()
        if plan is None or not plan.has_new_pages:
            return plan
        filled = self._run.filled()
        if len(filled) > kv.num_available:
            return None
        for request in filled:
            kv.grow(request)
        return plan

    def advance(self, plan: Plan, kv: KVCache) -> bool:
        """Whether a plan that is in flight now belongs to the run; its full pages are shared."""
        if self._run is None or plan.chunks is not self._run.chunks:
            return False
        if self._run.advance():
            for request in self._run.filled():
                kv.publish(request)
        return True

    def land(self, plan: Plan, tokens: Sequence[int]) -> bool:
        """Whether the run has noted the tokens of a plan; else it ends."""
        run = self._run
        if run is not None and plan.chunks is run.chunks and run.land(plan, tokens):
            return True
        self.end()
        return False

    def settle(self) -> None:
        """Bring every request up to date."""
        if self._run is not None:
            self._run.settle()

    def end(self) -> None:
        """Somebody came or went, or is about to."""
        self.settle()
        self._run = self._last = None

    @property
    def num_unsettled(self) -> int:
        """Tokens that requests have computed and do not know of."""
        return 0 if self._run is None else self._run.num_unsettled
