"""From an artifact and a memory budget to something that runs plans.

The only place of the runtime that touches a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, SglkError
from ..targets.artifact import Artifact
from ..targets.device import (
    ChoosesLater,
    Device,
    Executable,
    FitsPages,
    HasArgmax,
    HasSample,
    Int32s,
    LogitChanges,
    Logits,
    RepeatsSteps,
    RunsAhead,
    host_ops_of,
    slots_of,
)
from ..targets.registry import open_device
from .admission import Limits, Policy
from .batch import BatchBuffers, Plan
from .capacity import DEFAULT_KV_TOKENS, pages_within, plan_capacity, slots_for
from .sampler import Draw

_COUNTS = ("kv_memory", "memory", "max_step_tokens", "max_running", "max_context", "num_threads")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How much to take and how much to do at once; see `sglk.load`."""

    kv_memory: int | None = None
    """Bytes for keys and values; None: what ``memory_share`` leaves on a device with memory of its
    own, elsewhere enough for 8192 tokens."""
    memory: int | None = None
    """Bytes for everything instead: what `sglk plan` leaves for keys and values is taken."""
    memory_share: float = 0.9
    """Share of a device's free memory that weights, steps, keys and values take, unless one of the
    above says it in bytes."""
    max_step_tokens: int = 512
    """Token budget of a step: larger steps prefill faster, smaller ones delay decoding less."""
    max_running: int = 32
    """Requests computed side by side; never more than ``max_step_tokens``."""
    max_context: int | None = None
    """Longest sequence; None: what the model was made for."""
    prefix_cache: bool = True
    """Reuse the keys and values of prefixes that earlier prompts share; models that keep states
    beside them reuse nothing."""
    audit_cache: float = 0.0
    """Share of the prefix cache's hits that are computed again without it and compared."""
    audit_tolerance: float = 0.0
    """Difference of logits, relative to the largest, that an audit lets pass."""
    num_threads: int | None = None
    """Worker threads of a CPU; None: as many as the process may use."""
    policy: Policy = "fcfs"
    aging_steps: int = 256
    prefill_share: float = 1.0
    itl_target_s: float | None = None
    batch_wait_s: float = 0.0
    """These five as in `Limits`."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SglkError(f"{name}: expected a whole number >= 1, got {value!r:.80}")
        if not 0 < self.memory_share <= 1:
            raise SglkError(f"memory_share: expected a share up to 1, got {self.memory_share!r}")
        if self.kv_memory is not None and self.memory is not None:
            raise SglkError("memory: expected either memory or kv_memory, got both")


class Executor:
    """Runs plans on an executable, filling the same buffers each time."""

    def __init__(self, executable: Executable, limits: Limits) -> None:
        self.executable = executable
        self.argmax = executable.argmax if isinstance(executable, HasArgmax) else None
        """The device's own greedy choice for rows of the last run, if it offers one."""
        self.draw: Draw | None = None
        """The device's own random choice for them, if it offers one."""
        if isinstance(executable, HasSample) and executable.can_sample:
            self.draw = executable.sample
        self._ahead: RunsAhead | None = None
        if isinstance(executable, RunsAhead) and executable.can_run_ahead:
            self._ahead = executable
        self._repeats = self._ahead if isinstance(self._ahead, RepeatsSteps) else None
        self._later: ChoosesLater | None = None
        if isinstance(executable, ChoosesLater) and executable.can_choose_later:
            self._later = executable
        self.can_run_ahead = self._ahead is not None
        """Whether steps may be queued with `submit`."""
        self.can_choose_later = self._later is not None
        """Whether logits may be changed without the host seeing them."""
        self._buffers = BatchBuffers(limits.page_size, limits.max_step_tokens, limits.max_running)

    def submit(self, plan: Plan, rows: NDArray[np.void] | None) -> None:
        """Queue a plan; ``rows`` say how each of ``plan.sampled`` gets its token.

        None: `choose` says it later, before the next plan.
        """
        assert self._ahead is not None
        is_next = plan.moved and not plan.has_new_pages and rows is not None
        if is_next and self._repeats is not None and self._repeats.submit_next(rows):
            return
        batch = self._buffers.fill(plan)
        if rows is not None:
            self._ahead.submit(batch, rows)
        else:
            assert self._later is not None
            self._later.submit_unchosen(batch)

    def choose(self, rows: NDArray[np.void], changes: LogitChanges) -> None:
        """How the plan queued last gets its tokens."""
        assert self._later is not None
        self._later.choose(rows, changes)

    def collect(self) -> Int32s:
        """The tokens of the oldest plan in flight."""
        assert self._ahead is not None
        return self._ahead.collect()

    def run(self, plan: Plan) -> Logits:
        """Logits of ``plan.sampled``, in its order; valid until the next run."""
        batch = self._buffers.fill(plan)
        logits = self.executable.step(batch)
        expected = (len(batch.logit_rows), self.executable.vocab_size)
        if logits.shape != expected:
            raise DeviceError(f"step: expected logits of shape {expected}, got {logits.shape}")
        return logits

    def host_ops(self) -> dict[str, tuple[int, float]]:
        """Calls and seconds of the ops that the host did for the device."""
        return host_ops_of(self.executable)

    def close(self) -> None:
        self.executable.close()


def context_length(artifact: Artifact, options: LoadOptions) -> int:
    """The longest sequence: the model's context, or less if asked for."""
    model = cast(dict[str, Any], artifact.manifest["model"])
    limit = int(model.get("context_length") or 2**31 - 1)
    return min(limit, options.max_context or limit)


def open_executable(artifact: Artifact, device: str | None, options: LoadOptions) -> Executable:
    """Bind an artifact to its device with as many pages as the budget gives."""
    target = cast(dict[str, Any], artifact.manifest["target"])
    opened = open_device(device or str(target["name"]))
    running = min(options.max_running, options.max_step_tokens)
    return opened.load(
        artifact,
        num_pages=_num_pages(artifact, opened, int(target["page_size"]), options),
        max_tokens=options.max_step_tokens,
        num_threads=options.num_threads,
        **slots_for(artifact, running),
    )


def limits_of(executable: Executable, context: int, options: LoadOptions) -> Limits:
    """What the scheduler works within on this executable."""
    step_tokens = min(options.max_step_tokens, executable.max_tokens)
    slots = slots_of(executable)
    return Limits(
        page_size=executable.page_size,
        num_pages=executable.num_pages,
        max_step_tokens=step_tokens,
        max_running=min(options.max_running, step_tokens),
        max_context=context,
        prefix_cache=options.prefix_cache and not slots,
        state_slots=slots,
        policy=options.policy,
        aging_steps=options.aging_steps,
        prefill_share=options.prefill_share,
        itl_target_s=options.itl_target_s,
        batch_wait_s=options.batch_wait_s,
    )


def _num_pages(artifact: Artifact, device: Device, page_size: int, options: LoadOptions) -> int:
    """Pages for the budget, the reserved one included."""
    if options.memory is not None:
        return plan_capacity(
            artifact,
            memory=options.memory,
            max_step_tokens=options.max_step_tokens,
            max_running=options.max_running,
            max_context=options.max_context,
        ).num_pages
    if options.kv_memory is None and isinstance(device, FitsPages):
        share, tokens = options.memory_share, options.max_step_tokens
        return device.pages_that_fit(artifact, share=share, max_tokens=tokens)
    if options.kv_memory is None:
        return 1 + -(-DEFAULT_KV_TOKENS // page_size)
    return pages_within(options.kv_memory, device.kv_bytes_per_page(artifact), page_size)
