"""``sglk bench --profile``: where the time of a step goes, kernel by kernel."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import DeviceError
from ..targets.device import NO_SLOTS, Executable, Logits, StepBatch, slots_of
from .roofline import Roofline

WARM_UP_STEPS = 4


@dataclass(frozen=True)
class KernelTime:
    """All calls that one kernel gets in a step, for one op.

    Where the artifact's report knows the work: ``flops`` and ``bytes`` of all of them, and with
    limits of the machine the least time for it and what that is bound by. Kernels that one node
    became are one entry.
    """

    op: str
    kernel: str
    calls: int
    seconds: float
    flops: int | None = None
    bytes: int | None = None
    limit_s: float | None = None
    bound_by: str = ""


@dataclass(frozen=True)
class StepProfile:
    """The mean over some equal steps; ``wall_s`` is measured without the per-call clocks."""

    name: str
    tokens: int
    context: int
    wall_s: float
    kernels: list[KernelTime] = field(default_factory=list)


def profile_steps(
    executable: Executable,
    prompt: int,
    concurrency: int,
    steps: int,
    roofline: Roofline | None = None,
) -> list[StepProfile]:
    """The prefill of ``prompt`` tokens, and decode steps of ``concurrency`` sequences after it."""
    if not hasattr(executable, "start_profile"):
        raise DeviceError("--profile: this device does not time its kernels (leave the option out)")
    chunk = min(prompt, executable.max_tokens)
    prefill = [_batch(executable, 1, prompt - chunk, chunk)]
    decode = [_batch(executable, concurrency, prompt + step, 1) for step in range(steps)]
    return [
        _profile(executable, "prefill", prefill * 3, prompt, roofline),
        _profile(executable, "decode", decode, prompt + steps, roofline),
    ]


def pages_needed(page_size: int, prompt: int, concurrency: int, steps: int) -> int:
    """Pages for `profile_steps`, the reserved one included."""
    return 1 + concurrency * -(-(prompt + steps) // page_size)


def _batch(executable: Executable, seqs: int, start: int, new: int) -> StepBatch:
    """``new`` tokens of each of ``seqs`` sequences that hold ``start`` tokens already."""
    size = executable.page_size
    each = -(-(start + new) // size)
    table = 1 + np.arange(seqs * each, dtype=np.int32).reshape(seqs, each)
    positions = np.arange(start, start + new, dtype=np.int32)
    slots = table[:, positions // size] * size + positions % size
    rng = np.random.default_rng(start)
    return StepBatch(
        token_ids=rng.integers(0, executable.vocab_size, seqs * new, dtype=np.int32),
        positions=np.tile(positions, seqs),
        slots=np.ascontiguousarray(slots.reshape(-1), np.int32),
        query_start=np.arange(seqs + 1, dtype=np.int32) * np.int32(new),
        seq_lens=np.full(seqs, start + new, np.int32),
        page_table=table,
        logit_rows=(np.arange(1, seqs + 1) * new - 1).astype(np.int32),
        state_slots=np.arange(1, 1 + seqs, dtype=np.int32) if slots_of(executable) else NO_SLOTS,
    )


def _profile(
    executable: Any,
    name: str,
    batches: list[StepBatch],
    context: int,
    roofline: Roofline | None,
) -> StepProfile:
    """Warm-up (a device may need two steps to make its graphs), without clocks, then with them."""
    for _ in range(WARM_UP_STEPS):
        _finish(executable.step(batches[0]))
    started = time.perf_counter()
    for batch in batches:
        logits = executable.step(batch)
    _finish(logits)
    wall = (time.perf_counter() - started) / len(batches)
    executable.start_profile()
    for batch in batches:
        executable.step(batch)
    calls = list(executable.profile())
    if roofline is None or not roofline.costs:
        kernels = summed(calls, len(batches))
    else:
        kernels = with_work(calls, len(batches), roofline, step_sizes(batches[-1]))
    return StepProfile(name, len(batches[0].token_ids), context, wall, kernels)


def _finish(logits: Logits) -> None:
    """Wait for a step that may be only queued: reading a row does."""
    if len(logits):
        logits[0]


def summed(calls: Iterable[Any], steps: int) -> list[KernelTime]:
    """Calls of one op and kernel added up, per step, slowest first; idle ones do not count."""
    counts: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        if call.nanoseconds:
            entry = counts.setdefault((call.op, call.kernel), [0, 0])
            entry[0] += 1
            entry[1] += call.nanoseconds
    times = [
        KernelTime(op, kernel, number, total / steps / 1e9)
        for (op, kernel), (number, total) in counts.items()
    ]
    return sorted(times, key=lambda each: -each.seconds)


def step_sizes(batch: StepBatch) -> dict[str, int]:
    """What a program's symbols are in a step."""
    seqs, pages = batch.page_table.shape
    return {
        "tokens": len(batch.token_ids),
        "seqs": seqs,
        "pages": pages,
        "rows": len(batch.logit_rows),
    }


def with_work(
    calls: Iterable[Any], steps: int, roofline: Roofline, sizes: dict[str, int]
) -> list[KernelTime]:
    """`summed` by the report's groups of equal work, held against the machine's limits."""
    works = roofline.step(sizes)
    working_set = roofline.working_set(sizes)
    place: Counter[int] = Counter()
    counts: dict[int, list[int]] = {}
    unknown = []
    for call in calls:
        group = roofline.group(call.bucket, place[call.bucket])
        place[call.bucket] += 1
        if group not in works:
            unknown.append(call)
        elif call.nanoseconds:
            entry = counts.setdefault(group, [0, 0])
            entry[0] += 1
            entry[1] += call.nanoseconds
    times = summed(unknown, steps)
    for group, (number, nanoseconds) in counts.items():
        work = works[group]
        bound = roofline.bound(work, working_set)
        limit, by = (bound.seconds, bound.by) if bound else (None, "")
        seconds = nanoseconds / steps / 1e9
        times.append(
            KernelTime(work.op, work.name, number, seconds, work.flops, work.bytes, limit, by)
        )
    return sorted(times, key=lambda each: -each.seconds)


def profile_lines(profile: StepProfile) -> list[str]:
    """A table for people."""
    total = sum(each.seconds for each in profile.kernels)
    wide = max([len(each.op) for each in profile.kernels] + [2])
    lines = [
        f"{profile.name}: {profile.tokens} tokens at context {profile.context}, "
        f"{profile.wall_s * 1e3:.2f} ms a step ({total * 1e3:.2f} ms in kernels while timed)",
        f"  share       ms  calls  us/call{_work_head(profile)}  {'op':<{wide}}  kernel",
    ]
    shown = [each for each in profile.kernels if each.seconds >= total / 2000]
    lines += [
        f"  {each.seconds / total:5.1%} {each.seconds * 1e3:8.3f} {each.calls:6d} "
        f"{each.seconds / each.calls * 1e6:8.1f}{_work_cells(each, profile)}"
        f"  {each.op:<{wide}}  {each.kernel}"
        for each in shown
    ]
    if hidden := len(profile.kernels) - len(shown):
        lines.append(f"  and {hidden} kernels with less than 0.05% each")
    return lines


def _work_head(profile: StepProfile) -> str:
    if all(each.bytes is None for each in profile.kernels):
        return ""
    limits = any(each.limit_s is not None for each in profile.kernels)
    return "     GB/s  GFLOP/s" + ("  of limit  bound by" if limits else "")


def _work_cells(each: KernelTime, profile: StepProfile) -> str:
    """Speed of moving and of computing, and the share of what the machine could do."""
    head = _work_head(profile)
    if not head or each.bytes is None or each.flops is None:
        return " " * len(head)
    cells = f" {each.bytes / each.seconds / 1e9:8.1f} {each.flops / each.seconds / 1e9:8.1f}"
    if each.limit_s is None:
        return f"{cells:<{len(head)}}"
    return f"{cells:<18} {each.limit_s / each.seconds:8.0%}  {each.bound_by:<9}"[: len(head) + 2]
