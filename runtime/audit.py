"""Is the prefix cache invisible? A sample of its hits is computed again without it and compared.

The raw logits behind the first token of a chosen request are kept, and its prompt is queued once
more, least urgent, reusing nothing and publishing nothing. When that copy reaches the same place,
the two rows of logits must agree: bit for bit on a device that is batch-invariant, within a
tolerance elsewhere. A difference is logged and counted; the answer is not touched.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import SglkError
from .request import MAX_PRIORITY, Request

Floats = NDArray[np.float32]
MAX_PENDING = 4
"""Rows of logits kept at a time; further hits are not audited meanwhile."""
_PREFIX = "\0audit/"  # ids of callers may be anything, but hardly this
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Expected:
    """What the request with the cache had."""

    logits: Floats
    num_cached: int


class CacheAudit:
    """Chooses hits, keeps their logits, compares.

    >>> audit = CacheAudit(1.0)
    >>> request = Request("r", [1, 2, 3], 5)
    >>> request.num_cached = 2
    >>> audit.wants(request)
    True
    >>> copy = audit.remember(request, np.array([0.0, 1.0], np.float32))
    >>> audit.compare(copy, np.array([0.0, 1.5], np.float32))
    False
    >>> audit.num_audits, audit.num_mismatches
    (1, 1)
    """

    def __init__(self, fraction: float, tolerance: float = 0.0) -> None:
        """``tolerance`` is relative to the largest logit."""
        if not 0 < fraction <= 1 or tolerance < 0:
            raise SglkError(
                "audit_cache: expected a fraction in (0, 1] and a tolerance >= 0, "
                f"got {fraction} and {tolerance}"
            )
        self._fraction, self._tolerance = fraction, tolerance
        self._credit = 0.0
        self._count = 0
        self._pending: dict[str, _Expected] = {}
        self.num_audits = self.num_mismatches = 0
        self.largest_difference = 0.0
        """The largest so far, relative to the largest logit."""

    def wants(self, request: Request) -> bool:
        """Whether to audit this request, whose first token is due: an even share of all hits."""
        is_first = request.num_tokens == request.num_prompt and not request.num_preemptions
        if not is_first or not request.num_cached or not request.uses_cache:
            return False
        self._credit = min(1.0 + self._fraction, self._credit + self._fraction)
        if self._credit < 1 - 1e-9 or len(self._pending) == MAX_PENDING:
            return False
        self._credit -= 1
        return True

    def remember(self, request: Request, logits: Floats) -> Request:
        """Keep a row of logits [V]; returns the copy that is to reach them without the cache."""
        self._count += 1
        copy = Request(
            f"{_PREFIX}{self._count}/{request.id}",
            request.tokens,
            1,
            priority=MAX_PRIORITY,
            uses_cache=False,
        )
        self._pending[copy.id] = _Expected(logits.copy(), request.num_cached)
        return copy

    def is_copy(self, request: Request) -> bool:
        """Whether this is a request that `remember` made."""
        return request.id in self._pending

    def compare(self, copy: Request, logits: Floats) -> bool:
        """Whether the logits [V] without the cache are those with it."""
        expected = self._pending.pop(copy.id)
        scale = float(np.abs(logits).max()) or 1.0
        difference = float(np.abs(logits - expected.logits).max()) / scale
        agrees = difference <= self._tolerance
        self.num_audits += 1
        self.largest_difference = max(self.largest_difference, difference)
        if not agrees:
            self.num_mismatches += 1
            _log.error(
                "prefix cache: request %s: expected the logits that its %d cached tokens gave, "
                "got a difference of %g of the largest (id %d without the cache, %d with it; "
                "flush the cache, verify the artifact, and report this)",
                copy.id.split("/", 2)[2],
                expected.num_cached,
                difference,
                int(logits.argmax()),
                int(expected.logits.argmax()),
            )
        return agrees
