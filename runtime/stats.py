"""Numbers about a scheduler and its engine, for logs and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges (now) and counters (since the start) of one scheduler, or engine."""

    num_waiting: int
    num_running: int
    pages_total: int
    pages_free: int
    pages_cached: int
    pages_held: int
    """Owned by one running request."""
    pages_evictable: int
    """Cached, and in use by no request."""
    slots_allocated: int
    """Token slots in the pages that running requests use, shared pages once per request."""
    slots_filled: int
    """Those that hold a computed token."""
    num_preemptions: int
    prompt_tokens: int
    """Prompt tokens of requests that started."""
    cached_tokens: int
    """Of those, reused from the prefix cache."""
    matched_tokens: int
    """Of those, known to the cache: also those that were computed again, as a page that matches
    in part has to be, and the last token of a prompt."""
    generated_tokens: int = 0
    num_steps: int = 0
    """Steps, and the seconds they took; an engine fills these."""
    step_seconds: float = 0.0
    device_seconds: float = 0.0
    finished: Mapping[str, int] = field(default_factory=dict)
    """Requests that ended, by reason."""
    host_ops: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Calls and seconds of ops that the host did for the device, which has no kernel for them."""
    num_audits: int = 0
    """Prefix-cache hits that were computed again without the cache."""
    num_audit_mismatches: int = 0
    """Those of them that gave other logits."""

    @property
    def utilisation(self) -> float:
        """Share of the pages that running requests use."""
        return 1 - (self.pages_free + self.pages_evictable) / self.pages_total

    @property
    def fragmentation(self) -> float:
        """Share of the slots in used pages that hold no token yet."""
        return 1 - self.slots_filled / self.slots_allocated if self.slots_allocated else 0.0
