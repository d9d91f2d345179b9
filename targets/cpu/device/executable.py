"""An artifact on the CPU: memory allocated, kernels loaded, threads ready."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...artifact import LOAD_SYMBOLS, Artifact
from ...artifact.host_ops import HostOps
from ...device import STATE_SLOTS, STEP_FIELDS, HostCount, Int32s, StepBatch, arrays_of, sizes_of
from ...dim_code import parse
from .bound_program import Array, BoundProgram, CallTime
from .host_calls import HostCalls
from .library import Library
from .memory import Memory
from .plan_code import PlanCode
from .plan_file import plan_of
from .row_sampler import RowSampler
from .step_inputs import ValueChecker, check_step_program, checked_slots

log = logging.getLogger(__name__)
STEP = "step"
TYPICAL_SEQS = 256
"""Sequences and logit rows that the arena is sized for at load; a larger step grows it."""


class CpuExecutable:
    """Implements `Executable`; also runs other entries by name with `run`. Not thread-safe."""

    def __init__(
        self,
        artifact: Artifact,
        library: Library,
        *,
        num_pages: int,
        max_tokens: int,
        num_threads: int,
        isa: str = "",
        num_slots: int = 0,
    ) -> None:
        self.isa = isa
        self.num_slots = num_slots
        self.num_pages = num_pages
        self.max_tokens = max_tokens
        self.num_threads = num_threads
        self.page_size = _size(artifact, "target", "page_size")
        self.vocab_size = _size(artifact, "model", "vocab_size")
        self._programs: dict[str, BoundProgram] = {}
        self._step_bases: list[int] = []
        self._slots_base = -1
        host_ops = HostOps.of(artifact)
        self.host_counts: Mapping[str, HostCount] = host_ops.counts
        host = HostCalls(host_ops) if host_ops.ops else None
        self._pool = library.create_pool(num_threads)
        # Not only `close`: an executable that is merely dropped ends its threads too.
        self._release = weakref.finalize(self, library.close)
        self._arena = Memory("intermediate results")
        plans = [plan_of(artifact, entry) for entry in artifact.entries]
        self._regions = regions = _weights(artifact, plans) | self._states(plans)
        for plan in plans:
            bound = BoundProgram(plan, library, self._arena, regions, num_pages, host, num_slots)
            self._programs[plan.entry] = bound
            if plan.entry == STEP:
                check_step_program(plan, self.page_size)
                self._step_bases = [bound.input_base(name) for name in STEP_FIELDS]
                self._slots_base = bound.input_base(STATE_SLOTS)
        self._reserve_arena(plans, _size(artifact, "model", "context_length"))
        self._logits = np.zeros((0, self.vocab_size), np.float32)
        self._rows = RowSampler(library)
        self.can_sample = self._rows.can_sample
        self._checker = ValueChecker(library, self.page_size, num_pages, self.vocab_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give memory and threads back; safe to call twice."""
        self._programs = {}
        self._regions = {}
        self._logits = np.zeros((0, 0), np.float32)
        self._arena = Memory("intermediate results")
        self._release()

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        """Run one step; the logits [L, V] are a view that is valid until the next step."""
        program = self._program(STEP)
        symbols = sizes_of(batch, self.max_tokens, "cpu")._asdict()
        arrays = arrays_of(batch)
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        self._checker.check(batch, addresses, symbols)
        for base, array, address in zip(self._step_bases, arrays, addresses, strict=True):
            if base >= 0:
                program.point(base, address, array.nbytes)
        if self._slots_base >= 0:
            slots = checked_slots(batch, self.num_slots)
            program.point(self._slots_base, slots.ctypes.data, slots.nbytes)
        (logits,) = program.outputs.values()
        view = program.output(logits, (symbols["rows"], self.vocab_size))
        program.run(self._pool, [symbols[name] for name in program.own_symbols])
        log.debug("step: %s", symbols)
        self._logits = cast("NDArray[np.float32]", view)
        return self._logits

    def argmax(self, rows: Int32s) -> Int32s:
        """The id of the largest logit in each of these rows of the last step; see `HasArgmax`."""
        self._program(STEP)
        return self._rows.argmax(self._pool, self._logits, rows)

    def sample(self, rows: NDArray[np.void]) -> Int32s:
        """A token for each `SAMPLED_ROW` of the last step; see `HasSample`."""
        self._program(STEP)
        return self._rows.sample(self._pool, self._logits, rows)

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry that is no decoder step on arrays by name; returns its outputs by name."""
        return self._program(entry).run_named(self._pool, inputs)

    def memory_bytes(self) -> dict[str, int]:
        """Address space by purpose: weights in the file, states, arena and outputs."""
        regions = self._regions.items()
        return {
            "weights": sum(region.nbytes for (kind, _), region in regions if kind == "weight"),
            "states": sum(region.nbytes for (kind, _), region in regions if kind == "state"),
            "arena": self._arena.num_bytes,
            "outputs": sum(program.output_bytes for program in self._programs.values()),
        }

    def start_profile(self) -> None:
        """Time every call from now on; costs two clock reads and a barrier per call."""
        for program in self._programs.values():
            program.start_profile()

    def profile(self, entry: str = STEP) -> list[CallTime]:
        """Time of each call of `entry` since `start_profile`."""
        return self._program(entry).profile()

    def _program(self, entry: str) -> BoundProgram:
        if not self._release.alive:
            raise DeviceError("cpu: the executable is closed (load the artifact again)")
        if entry not in self._programs:
            raise DeviceError(f"cpu: no program {entry!r} (has: {sorted(self._programs)})")
        return self._programs[entry]

    def _states(self, plans: list[PlanCode]) -> dict[tuple[str, str], NDArray[np.uint8]]:
        """One region per state name; entries that name the same state share it."""
        sizes: dict[str, int] = {}
        for plan in plans:
            for state in plan.states:
                size = state_bytes(state.bytes, self.num_pages, self.num_slots)
                if sizes.setdefault(state.name, size) != size:
                    raise ArtifactError(f"cpu: state {state.name} has two sizes in the programs")
        return {("state", n): Memory(f"state {n}", size).array[:size] for n, size in sizes.items()}

    def _reserve_arena(self, plans: list[PlanCode], context_length: int) -> None:
        """Size the arena for the largest usual step, so that serving rarely maps memory anew."""
        seqs = min(self.max_tokens, TYPICAL_SEQS)
        pages = -(-context_length // self.page_size) if self.page_size else 0
        usual = {"tokens": self.max_tokens, "seqs": seqs, "rows": seqs}
        usual |= {"pages": max(1, min(pages, self.num_pages)), "num_pages": self.num_pages}
        usual["num_slots"] = self.num_slots
        for plan in plans:
            size = parse(plan.arena_bytes, plan.symbols)
            if size.symbols <= set(usual):
                self._arena.ensure(size.evaluate(usual))


def state_bytes(text: str, num_pages: int, num_slots: int = 0) -> int:
    """Bytes of a state with so many pages and slots."""
    size = parse(text, LOAD_SYMBOLS).evaluate({"num_pages": num_pages, "num_slots": num_slots})
    if size < 0:
        raise ArtifactError(f"cpu: expected a state of 0 or more bytes, got {size}")
    return size


def _weights(artifact: Artifact, plans: list[PlanCode]) -> dict[tuple[str, str], NDArray[np.uint8]]:
    """Views of the weights in the file: nothing is copied, pages come in when read."""
    names = dict.fromkeys(name for plan in plans for name in plan.weights)
    return {("weight", name): artifact.weight(name) for name in names}


def _size(artifact: Artifact, section: str, key: str) -> int:
    """A size of the manifest that models without it leave out: then 0."""
    value = cast(dict[str, object], artifact.manifest[section]).get(key)
    return value if isinstance(value, int) else 0
