"""Every number that the server publishes, and the collector that Prometheus reads.

Numbers are plain Python values that the event loop alone changes; nothing is locked per token.
docs/operations.md lists them for people; a test compares the two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..answer import Timing
from ..stats import Stats
from ..steps import StepRecord
from .histogram import Histogram
from .startup import Phases

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_MEMORY = re.compile(r"^(RssAnon|VmSwap|VmRSS):\s+(\d+) kB", re.MULTILINE)


class Metrics:
    """Counters and histograms of one server."""

    def __init__(self) -> None:
        self.ttft = Histogram(
            "sglk_ttft_seconds",
            "From the request's arrival at the engine to its first token.",
            _SECONDS,
        )
        self.itl = Histogram("sglk_itl_seconds", "Between two tokens of an answer.", _SHORT)
        self.e2e = Histogram(
            "sglk_e2e_seconds", "From arrival to the answer's last token.", _SECONDS
        )
        self.queue = Histogram("sglk_queue_seconds", "From arrival to the first step.", _SECONDS)
        self.step = Histogram("sglk_step_seconds", "One step of the engine.", _SHORT)
        self.step_tokens = Histogram("sglk_step_tokens", "Tokens computed by a step.", _TOKENS)
        self.prompt = Histogram("sglk_prompt_length_tokens", "Tokens of a prompt.", _TOKENS)
        self.answer = Histogram("sglk_answer_length_tokens", "Tokens of an answer.", _TOKENS)
        self.requests: Counter[tuple[str, str]] = Counter()
        self.refusals: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.timeouts: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.disconnects = 0
        self._step_seconds = self._device_seconds = 0.0

    @property
    def histograms(self) -> tuple[Histogram, ...]:
        """All of them."""
        return (
            self.ttft, self.itl, self.e2e, self.queue, self.step, self.step_tokens, self.prompt,
            self.answer,
        )  # fmt: skip

    def on_step(self, record: StepRecord) -> None:
        """A step has ended."""
        self.step.observe(record.seconds)
        self.step_tokens.observe(record.load.prefill_tokens + record.load.decode_rows)
        self._step_seconds += record.seconds
        self._device_seconds += record.device_seconds

    def on_first_token(self, timing: Timing) -> None:
        """An answer has its first token."""
        if timing.first_token is not None:
            self.ttft.observe(timing.first_token - timing.arrived)
        if timing.started is not None:
            self.queue.observe(timing.started - timing.arrived)

    def on_end(self, reason: str, seconds: float, num_tokens: int) -> None:
        """An answer has ended."""
        self.answers[reason] += 1
        if reason in ("stop", "length"):
            self.e2e.observe(seconds)
            self.answer.observe(num_tokens)

    @property
    def busy(self) -> tuple[float, float]:
        """Seconds spent in steps, and of these on the device."""
        return self._step_seconds, self._device_seconds


class State:
    """What the collector needs to know besides `Metrics`; the server fills it."""

    def __init__(self) -> None:
        self.stats: Stats | None = None
        self.page_bytes = 0
        self.page_size = 0
        self.weight_bytes = 0
        self.info: dict[str, str] = {}
        self.phases: Phases | None = None
        self.is_ready = False
        self.degraded: dict[str, str] = {}
        self.num_connections = 0
        self.num_waiting_to_send = 0
        self.num_in_flight = 0
        self.limits: dict[str, int] = {}


class ServerCollector(Collector):
    """`Metrics` and `State` as metric families."""

    def __init__(self, metrics: Metrics, state: State) -> None:
        self._metrics, self._state = metrics, state

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        yield from (histogram.family() for histogram in self._metrics.histograms)
        yield from self._counters()
        yield from self._gauges()
        if self._state.stats is not None:
            yield from self._engine(self._state.stats)

    def _counters(self) -> Iterator[Metric]:
        metrics = self._metrics
        requests = CounterMetricFamily(
            "sglk_requests", "HTTP requests by route and status.", labels=["route", "status"]
        )
        for (route, status), count in sorted(metrics.requests.items()):
            requests.add_metric([route, status], count)
        yield requests
        for name, text, label, values in (
            ("sglk_refusals", "Requests refused, by reason.", "reason", metrics.refusals),
            ("sglk_errors", "Faults of the server, by kind.", "kind", metrics.errors),
            ("sglk_timeouts", "Time limits that were hit.", "limit", metrics.timeouts),
            ("sglk_answers", "Answers that ended, by reason.", "reason", metrics.answers),
        ):
            family = CounterMetricFamily(name, text, labels=[label])
            for value, count in sorted({**_ZEROS.get(name, {}), **values}.items()):
                family.add_metric([value], count)
            yield family
        busy, device = metrics.busy
        yield CounterMetricFamily(
            "sglk_busy_seconds", "Time in steps: its rate is utilisation.", busy
        )
        yield CounterMetricFamily("sglk_device_seconds", "Of these, time on the device.", device)
        yield CounterMetricFamily(
            "sglk_disconnects", "Clients that left before their answer ended.", metrics.disconnects
        )

    def _gauges(self) -> Iterator[Metric]:
        state = self._state
        for name, text, value in (
            ("sglk_ready", "1 while /health/ready says so.", float(state.is_ready)),
            ("sglk_connections", "Open connections.", state.num_connections),
            ("sglk_in_flight", "Answers queued or running, not yet ended.", state.num_in_flight),
            (
                "sglk_blocked_streams",
                "Streams whose client is not reading.",
                state.num_waiting_to_send,
            ),
            ("sglk_weight_bytes", "Bytes of the artifact's weights.", state.weight_bytes),
        ):
            yield GaugeMetricFamily(name, text, value)
        degraded = GaugeMetricFamily("sglk_degraded", "1 for each reason.", labels=["reason"])
        for reason in sorted({*DEGRADED, *state.degraded}):
            degraded.add_metric([reason], float(reason in state.degraded))
        yield degraded
        limits = GaugeMetricFamily("sglk_limit", "Configured limits.", labels=["limit"])
        for limit, bound in sorted(state.limits.items()):
            limits.add_metric([limit], bound)
        yield limits
        memory = GaugeMetricFamily("sglk_memory_bytes", "Of the process.", labels=["kind"])
        for kind, kilobytes in _MEMORY.findall(Path("/proc/self/status").read_text()):
            memory.add_metric([_MEMORY_KINDS[kind]], int(kilobytes) * 1024)
        yield memory
        yield from self._constants()

    def _constants(self) -> Iterator[Metric]:
        state = self._state
        info = GaugeMetricFamily("sglk_info", "What is loaded.", labels=sorted(state.info))
        info.add_metric([state.info[name] for name in sorted(state.info)], 1)
        yield info
        if state.phases is not None:
            phases = GaugeMetricFamily(
                "sglk_startup_phase_seconds", "Phases of the start; their sum is the wall time.",
                labels=["phase"],
            )  # fmt: skip
            for name, seconds in state.phases.seconds.items():
                phases.add_metric([name], seconds)
            yield phases
            yield GaugeMetricFamily(
                "sglk_startup_seconds", "Start of the process to ready.", state.phases.total
            )

    def _engine(self, stats: Stats) -> Iterator[Metric]:
        hit_rate = stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0
        gauges: tuple[tuple[str, str, float], ...] = (
            ("sglk_running", "Answers being computed.", stats.num_running),
            ("sglk_queued", "Answers waiting for a place.", stats.num_waiting),
            ("sglk_page_utilisation_ratio", "Share of pages in use.", stats.utilisation),
            ("sglk_page_fragmentation_ratio", "Share of slots in used pages that hold no token.",
             stats.fragmentation),
            ("sglk_cache_hit_ratio", "Prompt tokens taken from the prefix cache.", hit_rate),
        )  # fmt: skip
        yield from (GaugeMetricFamily(*gauge) for gauge in gauges)
        pages = GaugeMetricFamily("sglk_pages", "Pages of the cache.", labels=["state"])
        size = GaugeMetricFamily("sglk_kv_bytes", "Bytes of these pages.", labels=["state"])
        for name, count in (
            ("free", stats.pages_free), ("cached", stats.pages_cached), ("held", stats.pages_held)
        ):  # fmt: skip
            pages.add_metric([name], count)
            size.add_metric([name], count * self._state.page_bytes)
        yield from (pages, size)
        audits = CounterMetricFamily("sglk_cache_audits", "Recomputed hits.", labels=["result"])
        audits.add_metric(["equal"], stats.num_audits - stats.num_audit_mismatches)
        audits.add_metric(["different"], stats.num_audit_mismatches)
        yield audits
        if stats.host_ops:
            yield from host_op_families(stats.host_ops)
        counters = (
            ("sglk_prompt_tokens", "Prompt tokens of answers that started.", stats.prompt_tokens),
            ("sglk_cached_tokens", "Of these, taken from the prefix cache.", stats.cached_tokens),
            ("sglk_generated_tokens", "Tokens of answers.", stats.generated_tokens),
            ("sglk_preemptions", "Answers that gave way and recompute.", stats.num_preemptions),
            ("sglk_steps", "Steps of the engine.", stats.num_steps),
        )
        yield from (CounterMetricFamily(*counter) for counter in counters)


def host_op_families(host_ops: Mapping[str, tuple[int, float]]) -> Iterator[Metric]:
    """Ops that the host does for the device: none on most models."""
    calls = CounterMetricFamily("sglk_host_ops", "Ops done by the host.", labels=["op"])
    seconds = CounterMetricFamily("sglk_host_op_seconds", "Time of them.", labels=["op"])
    for op, (count, took) in host_ops.items():
        calls.add_metric([op], count)
        seconds.add_metric([op], took)
    yield from (calls, seconds)


DEGRADED = ("audit", "device", "engine", "pages", "queue", "slow_step", "stalled")
"""Reasons that /health/degraded can give."""
_MEMORY_KINDS = {"RssAnon": "anonymous", "VmSwap": "swap", "VmRSS": "resident"}
_ZEROS: dict[str, dict[str, int]] = {
    "sglk_refusals": dict.fromkeys(
        ("draining", "forbidden", "invalid", "not_ready", "queue_full", "too_large", "too_long",
         "unauthorized"), 0,
    ),
    "sglk_errors": dict.fromkeys(("device", "engine", "internal"), 0),
    "sglk_timeouts": dict.fromkeys(("queue", "read", "request", "write"), 0),
    "sglk_answers": dict.fromkeys(
        ("abort", "error", "length", "stop", "timeout"), 0
    ),
}  # fmt: skip
"""Series exist from the start, so that rates and alerts work on the first event."""


def make_registry(metrics: Metrics, state: State) -> CollectorRegistry:
    """A registry of its own: several servers may live in one process."""
    registry = CollectorRegistry()
    registry.register(ServerCollector(metrics, state))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry
