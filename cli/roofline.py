"""Bytes and operations of each kernel in a step, and the least time that this machine needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..targets.dim_code import parse
from .limits import EIGHT_BIT, SIXTEEN_BIT, Limits


@dataclass(frozen=True)
class Work:
    """All nodes of a step that are one group: the same op, kernels and cost.

    ``flops`` and ``bytes`` are of all of them together; None where a step does not give them.
    """

    op: str
    row: str
    kernels: tuple[str, ...]
    nodes: int
    flops: int | None
    bytes: int | None

    @property
    def name(self) -> str:
        """The first kernel, and how many follow it."""
        more = f" +{len(self.kernels) - 1}" if len(self.kernels) > 1 else ""
        return f"{self.kernels[0]}{more}"


@dataclass(frozen=True)
class Bound:
    """The least time for some work, and what takes it: "memory" or the kind of arithmetic."""

    seconds: float
    by: str


@dataclass(frozen=True)
class Roofline:
    """``costs`` as the compile report has them; without ``limits`` nothing is bound."""

    costs: Mapping[str, Any]
    limits: Limits | None = None

    def group(self, bucket: int, index: int) -> int | None:
        """The group of a bucket's call; None when the report does not know it."""
        calls = self.costs["buckets"][bucket]["calls"] if self.costs else []
        return int(calls[index]) if index < len(calls) else None

    def step(self, sizes: Mapping[str, int]) -> dict[int, Work]:
        """Every group of the bucket that a step of these sizes takes, in program order."""
        tokens = sizes.get("tokens", 0)
        bucket = next(
            b for b in self.costs["buckets"]
            if b["tokens_max"] is None or tokens <= b["tokens_max"]
        )  # fmt: skip
        return {
            number: self._work(self.costs["groups"][number], calls, sizes)
            for number, calls in Counter(bucket["calls"]).items()
        }

    def _work(self, group: Mapping[str, Any], calls: int, sizes: Mapping[str, int]) -> Work:
        kernels = tuple(group["kernels"])
        nodes = calls // len(kernels)
        texts = (group["flops"], group["bytes"])
        flops, moved = (
            nodes * parse(text, list(sizes)).evaluate(sizes) if text else None for text in texts
        )
        return Work(group["op"], group["row"], kernels, nodes, flops, moved)

    def working_set(self, sizes: Mapping[str, int]) -> int:
        """Bytes that pass the caches in every step: what a step of one token moves.

        That is the weights and the KV cache; activations of larger steps are used at once.
        """
        return moved_bytes(self.step({**sizes, "tokens": 1, "rows": 1}))

    def bound(self, work: Work, working_set: int) -> Bound | None:
        """Against the bandwidth at a working set, and the fastest 16-bit arithmetic."""
        if self.limits is None or work.flops is None or work.bytes is None:
            return None
        kinds = [k for k in SIXTEEN_BIT if k in self.limits.tera_per_s]
        kind = max(kinds, key=lambda k: self.limits.tera_per_s[k] if self.limits else 0.0)
        moving = work.bytes / self.limits.bandwidth(working_set)
        computing = work.flops / self.limits.rate((kind,))
        return Bound(moving, "memory") if moving >= computing else Bound(computing, kind)


def moved_bytes(works: Mapping[int, Work]) -> int:
    return sum(work.bytes or 0 for work in works.values())


def step_lines(roofline: Roofline, name: str, sizes: Mapping[str, int]) -> list[str]:
    """A table for people: the work of one step, the heaviest first."""
    works = roofline.step(sizes)
    working_set, least = roofline.working_set(sizes), 0.0
    rows = []
    for work in works.values():
        bound = roofline.bound(work, working_set)
        least += bound.seconds if bound else 0.0
        weight = bound.seconds if bound else float(work.bytes or 0)
        limit = f"{bound.seconds * 1e6:9.1f} {bound.by:<10}" if bound else ""
        text = f"  {amounts(work)} {limit} x{work.nodes:<4} {work.op:<18} {work.row}  {work.name}"
        rows.append((weight, text))
    shown = ", ".join(f"{key}={value}" for key, value in sizes.items())
    ending = f", at least {least * 1e3:.2f} ms" if roofline.limits else ""
    flops = sum(work.flops or 0 for work in works.values())
    head = f"{name} ({shown}): {moved_bytes(works) / 1e6:.1f} MB, {flops / 1e9:.2f} GFLOP{ending}"
    limit_head = f"{'limit us':>9} {'bound by':<10}" if roofline.limits else ""
    titles = f"  {'MB':>8} {'GFLOP':>8} {limit_head} nodes op, row, kernel"
    ordered = sorted(rows, key=lambda row: -row[0])
    return [head, titles.replace("  nodes", " nodes"), *(text for _, text in ordered)]


def amounts(work: Work) -> str:
    """MB and GFLOP in columns."""
    moved = f"{work.bytes / 1e6:8.2f}" if work.bytes is not None else f"{'-':>8}"
    flops = f"{work.flops / 1e9:8.3f}" if work.flops is not None else f"{'-':>8}"
    return f"{moved} {flops}"


def limit_notes(limits: Limits) -> list[str]:
    """The rates that bounds are taken from, and those of 8-bit arithmetic beside them."""
    rates = ", ".join(f"{kind} {rate:.2f} T/s" for kind, rate in limits.tera_per_s.items())
    reads = ", ".join(f"{rate:.0f} at {size} MiB" for size, rate in limits.read_gb_per_s.items())
    notes = [f"limits of {limits.processor}, {limits.threads} threads: {rates}; read {reads} GB/s"]
    if limits.rate(EIGHT_BIT) > limits.rate():
        notes.append("bounds take 16-bit arithmetic: kernels on 8-bit activations may pass them")
    return notes
