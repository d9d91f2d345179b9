"""An artifact on a GPU: weights there, pages allocated, each class of steps one graph launch.

A step costs the host: one block of inputs written, one copy, one graph launch, one event; one that
only moves all sequences on by a token the launch and the event alone. Greedy tokens come to the
host's memory from the graph itself. Nothing waits until a result is read.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...artifact import Artifact
from ...artifact.kernel_pack import PackedKernel
from ...device import (
    SAMPLED_ROW,
    Int32s,
    LogitChanges,
    SizesOf,
    StepBatch,
)
from ...dim_code import parse
from .bound_program import BoundProgram
from .checks import WITH_STEPS, check_ahead, check_beside, check_named, check_rows, check_step
from .choices import ADJUST, MASK, Choices
from .draws import Draws
from .driver import Driver
from .kernel_table import KernelTable
from .memory import DeviceMemory, aligned
from .named_run import run_named
from .profile import CallTime, LaunchTimer
from .program_code import ProgramCode
from .reader import DeviceLogits, Reader
from .recipes import ARGMAX, IDS, INPUTS, LOGITS, NO_ENDING, PLACE, SAMPLE, STEP, Recipe, RecipeBook
from .repeats import Repeatable
from .slots import MAX_IN_FLIGHT, NUM_SLOTS, Slot, SlotRing
from .step_layout import most_words
from .step_sizes import corners, power_of_two
from .warm_up import decode_batches
from .weights import load_weights

log = logging.getLogger(__name__)
TYPICAL_SEQS = 256
"""Sequences and logit rows that memory is reserved for at load; a larger step moves it."""


class CudaExecutable:
    """`Executable`, `HasArgmax`, `HasSample`, `WarmsUp`; ahead of the host: `RunsAhead`,
    `RepeatsSteps`, `ChoosesLater`.
    """

    def __init__(
        self,
        driver: Driver,
        artifact: Artifact,
        pack: Mapping[str, PackedKernel],
        codes: Sequence[ProgramCode],
        *,
        num_pages: int,
        max_tokens: int,
        isa: str = "",
    ) -> None:
        self.isa = isa
        self.num_pages = num_pages
        self.max_tokens = max_tokens
        self.page_size = _size(artifact, "target", "page_size")
        self.vocab_size = _size(artifact, "model", "vocab_size")
        self._driver = driver
        self._sizes_of = SizesOf(max_tokens, driver.where)
        driver.use()
        self._stream = driver.make_stream()
        self._memory = DeviceMemory(driver, self._stream)
        self._reader = Reader(driver, self._stream)
        self._resources = contextlib.ExitStack()
        self._resources.callback(driver.free_stream, self._stream)
        self._resources.callback(self._memory.close)
        self._resources.callback(self._reader.close)
        self._release = weakref.finalize(self, _release, driver, self._resources)
        try:
            self._bind(artifact, pack, codes)
        except BaseException:
            self._release()
            raise

    def _bind(
        self,
        artifact: Artifact,
        pack: Mapping[str, PackedKernel],
        codes: Sequence[ProgramCode],
    ) -> None:
        """Weights, states, programs, and what steps need."""
        driver = self._driver
        kernels = KernelTable(driver, pack, f"{artifact.path}: {self.isa}")
        self._programs = {
            code.entry: BoundProgram(
                driver, self._stream, code, kernels, self._memory, self.num_pages
            )
            for code in codes
        }
        names = dict.fromkeys(name for code in codes for name in code.weights)
        load_weights(driver, self._stream, self._memory, self._programs, artifact, names)
        self._allocate_states(codes)
        self._in_flight: deque[Slot] = deque()
        self._latest: Slot | None = None
        self._repeatable: Repeatable | None = None
        self._unchosen: Slot | None = None
        self._greedy_rows: NDArray[np.void] | None = None
        self._logits = DeviceLogits(self._reader, 0, 0, self.vocab_size)
        self._padded_rows = 0
        self.can_sample = SAMPLE in self._programs
        self.can_run_ahead = {SAMPLE, PLACE} <= set(self._programs)
        self.can_choose_later = self.can_run_ahead and {ADJUST, MASK} <= set(self._programs)
        if STEP in self._programs:
            self._prepare_steps(_size(artifact, "model", "context_length"))

    def _prepare_steps(self, context_length: int) -> None:
        """Reserve what steps need and make what runs them."""
        step = self._programs[STEP]
        where = self._driver.where
        check_step(step.code, self.page_size, where)
        check_beside([self._programs[n].code for n in WITH_STEPS if n in self._programs], where)
        pages = min(-(-context_length // self.page_size), self.num_pages) or 1
        usual = corners(self.max_tokens, min(self.max_tokens, TYPICAL_SEQS), pages)
        programs = [self._programs[n] for n in (STEP, ARGMAX, SAMPLE) if n in self._programs]
        for program, sizes in itertools.product(programs, usual):
            program.reserve(sizes._asdict())
        self._memory.ensure(INPUTS, 4 * max(map(most_words, usual)))
        rows = max(sizes.rows for sizes in usual)
        self._memory.ensure(LOGITS, aligned(4 * rows * self.vocab_size))
        # Tokens of the step before are read by the one after: their memory must never move.
        max_rows = max(rows, power_of_two(self.max_tokens))
        self._memory.ensure(IDS, aligned(4 * max_rows))
        layout = (self.page_size, self.num_pages, self.vocab_size)
        self._ring = SlotRing(self._driver, max_rows)
        self._resources.callback(self._ring.close)
        self._book = RecipeBook(
            self._driver, self._stream, self._memory, self._programs, layout, self._reader,
            self._ring.landing,
        )  # fmt: skip
        self._resources.callback(self._book.close)
        if self.can_sample:
            self._draws = Draws(self._driver, self._stream, self._memory, self._programs[SAMPLE])
            self._resources.callback(self._draws.close)
        if self.can_choose_later:
            parts = (self._memory, self._programs, self._draws, self.vocab_size)
            self._choices = Choices(self._driver, self._stream, *parts)

    def _allocate_states(self, codes: Sequence[ProgramCode]) -> None:
        """One region per state name, zeroed; entries that name the same state share it."""
        sizes: dict[str, int] = {}
        for code in codes:
            for state in code.states:
                size = state_bytes(state.bytes, self.num_pages)
                if sizes.setdefault(state.name, size) != size:
                    raise ArtifactError(f"cuda: state {state.name} has two sizes in the programs")
        for name, size in sizes.items():
            address = self._memory.allocate(("state", name), size)
            # A key that nobody has written may be multiplied with a weight of zero: no NaN there.
            self._driver.set_bytes(address, 0, size, self._stream)

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
        """Give the device back; safe to call twice."""
        self._logits.expire()
        self._programs = {}
        self._in_flight.clear()
        self._latest = self._unchosen = self._repeatable = None
        self._release()

    def step(self, batch: StepBatch) -> DeviceLogits:
        """Queue one step; nothing waits for it before its logits or tokens are read."""
        return self._enqueue(batch, ARGMAX if ARGMAX in self._programs else NO_ENDING)

    def submit(self, batch: StepBatch, rows: NDArray[np.void]) -> None:
        """Queue a step that chooses a token for each of its rows; see `RunsAhead`."""
        ahead = (self.can_run_ahead, len(self._in_flight))
        check_ahead(*ahead, len(rows), len(batch.logit_rows), self._driver.where)
        if rows is not self._greedy_rows:
            is_greedy = ARGMAX in self._programs and bool((rows["top_k"] == 1).all())
            # rows that nobody can change are looked at once
            self._greedy_rows = rows if is_greedy and not rows.flags.writeable else None
        else:
            is_greedy = True
        self._enqueue(batch, ARGMAX if is_greedy else SAMPLE, rows)
        self._in_flight.append(cast("Slot", self._latest))

    def submit_next(self, rows: NDArray[np.void]) -> bool:
        """Queue the last step again, each sequence a token further on; see `RepeatsSteps`."""
        last = self._repeatable
        if last is None or rows is not self._greedy_rows:
            return False
        if len(rows) != last.sizes.rows or len(self._in_flight) == MAX_IN_FLIGHT:
            return False  # `submit` says what is wrong
        self._driver.use()
        if self._book.get(last.sizes, ARGMAX) is not last.recipe:
            return False
        if not last.take_step():
            return False
        slot = self._ring.take_after(last.slot)
        self._repeatable = None  # if it fails nobody knows how far the device has moved on
        self._queue(last.recipe, slot, 0, last.sizes.rows)
        last.slot, self._repeatable = slot, last
        self._in_flight.append(slot)
        return True

    def submit_unchosen(self, batch: StepBatch) -> None:
        """Queue a step whose tokens `choose` will choose; see `ChoosesLater`."""
        count = len(batch.logit_rows)
        ahead = (self.can_choose_later, len(self._in_flight))
        check_ahead(*ahead, count, count, self._driver.where)
        self._enqueue(batch, NO_ENDING, np.zeros(0, SAMPLED_ROW))
        self._unchosen = self._latest
        self._in_flight.append(cast("Slot", self._latest))

    def choose(self, rows: NDArray[np.void], changes: LogitChanges) -> None:
        """Queue the choice of a token for each row of the step before; see `ChoosesLater`."""
        self._program(STEP)
        slot, self._unchosen = self._unchosen, None
        if slot is None or len(rows) != slot.num_rows:
            what = "expected a step without tokens and its rows"
            got = f"{len(rows)} rows for {slot.num_rows if slot else 'none'}"
            raise DeviceError(f"{self._driver.where}: choose: {what}, got {got}")
        if not slot.num_rows:
            return
        try:
            self._choices.queue(slot, rows, self._padded_rows, changes)
        except BaseException:
            self._in_flight.remove(slot)  # its tokens are those of a step long gone
            raise
        ids = self._memory.address(IDS)
        self._driver.copy_out(slot.ids_address, ids, 4 * slot.num_rows, self._stream)
        slot.record(slot.num_rows, self._stream)

    def collect(self) -> Int32s:
        """Wait for the oldest step in flight; see `RunsAhead`."""
        if not self._in_flight or self._in_flight[0] is self._unchosen:
            self._program(STEP)
            where = self._driver.where
            raise DeviceError(f"{where}: collect: no step is in flight, or it has no tokens")
        self._driver.use()
        try:
            return self._in_flight.popleft().ids()
        except DeviceError:
            self._in_flight.clear()
            self._unchosen = self._repeatable = None
            raise

    def argmax(self, rows: Int32s) -> Int32s:
        """The id of the largest logit in each of these rows of the last step; see `HasArgmax`."""
        self._program(STEP)
        check_rows(rows, len(self._logits), self._driver.where)
        if ARGMAX not in self._programs or self._latest is None:
            return _with_numpy(np.asarray(self._logits), rows)
        return self._latest.ids()[rows]

    def sample(self, rows: NDArray[np.void]) -> Int32s:
        """A token for each `SAMPLED_ROW` of the last step; see `HasSample`."""
        self._program(STEP)
        if not self.can_sample or rows.dtype != SAMPLED_ROW:
            raise DeviceError(f"{self._driver.where}: expected SAMPLED_ROWs and a sampler")
        check_rows(rows["row"], len(self._logits), self._driver.where)
        return self._draws.sample(rows, self._padded_rows)

    def run(self, entry: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run an entry that is no decoder step on arrays by name; outputs as copies."""
        check_named(entry, self._driver.where)
        return run_named(self._driver, self._memory, self._reader, self._program(entry), inputs)

    def warm_up(self, max_seqs: int, max_context: int) -> None:
        """Run decode steps of every class; see `WarmsUp`."""
        self._program(STEP)
        most = min(max_seqs, self.max_tokens)
        for batch in decode_batches(most, max_context, self.page_size, self.num_pages):
            self.step(batch)
        self._driver.synchronize(self._stream)

    def start_profile(self) -> None:
        """From now on, time every launch of a step on its own, without graphs."""
        self._program(STEP)
        self._book.timer = LaunchTimer(self._driver, self._stream)
        self._resources.callback(self._book.timer.close)

    def profile(self, entry: str = STEP) -> list[CallTime]:
        """Time of each call since `start_profile`, which ends; the sampler's follow the step's."""
        self._program(entry)
        timer, self._book.timer = self._book.timer, None
        return timer.times() if timer else []

    def memory_bytes(self) -> dict[str, int]:
        """Device memory by purpose."""
        return self._memory.sizes()

    def _enqueue(
        self, batch: StepBatch, ending: str, rows: NDArray[np.void] | None = None
    ) -> DeviceLogits:
        self._program(STEP)
        if self._unchosen is not None:
            what = "the step before has no tokens (choose them first)"
            raise DeviceError(f"{self._driver.where}: {what}")
        self._repeatable = None  # what is staged next may lie where its inputs do
        sizes = self._sizes_of(batch)
        recipe = self._book.get(sizes, ending)
        slot = self._ring.take(self._in_flight)
        layout = recipe.layout
        staged = slot.stage(layout)
        staged.fill(batch, sizes)
        before = self._latest.num_rows if rows is not None and self._latest else 0
        staged.check(sizes, before)
        is_repeatable = sizes.is_decode and sizes.rows == sizes.tokens and ending == ARGMAX
        staged.take_turn(is_repeatable, slot.number, NUM_SLOTS, self._ring.max_rows)
        num_words = layout.num_words
        if rows is not None and ending == SAMPLE:
            staged.fill_draws(rows, self._draws.dtypes)
            num_words = layout.num_words_with_draws
        self._queue(recipe, slot, num_words, sizes.rows)
        log.debug("step: %s as %s", sizes, recipe.sizes)
        if is_repeatable and rows is not None:
            self._repeatable = Repeatable(recipe, sizes, slot, staged)
        self._padded_rows = recipe.sizes.rows
        self._logits.expire()
        self._logits = logits = DeviceLogits(
            self._reader, recipe.logits_address, sizes.rows, self.vocab_size
        )
        return logits

    def _queue(self, recipe: Recipe, slot: Slot, num_words: int, num_rows: int) -> None:
        """What is staged in a slot goes in, the recipe runs, its tokens come out."""
        driver, stream = self._driver, self._stream
        if num_words:
            driver.copy_in(recipe.inputs_address, slot.inputs_address, 4 * num_words, stream)
        self._book.run(recipe, num_rows)
        if recipe.ending == SAMPLE and num_rows:  # "argmax" writes them to the slot itself
            driver.copy_out(slot.ids_address, recipe.ids_address, 4 * num_rows, stream)
        slot.record(num_rows, stream)
        self._latest = slot

    def _program(self, entry: str) -> BoundProgram:
        if not self._release.alive:
            raise DeviceError(f"{self._driver.where}: it is closed (load the artifact again)")
        if entry not in self._programs:
            raise DeviceError(
                f"{self._driver.where}: no program {entry!r} (has: {sorted(self._programs)})"
            )
        self._driver.use()
        return self._programs[entry]


def _release(driver: Driver, resources: contextlib.ExitStack) -> None:
    """A context that a failed kernel has lost refuses to free: the driver frees all at its end."""
    with contextlib.suppress(DeviceError):
        driver.use()
        resources.close()
    driver.close()


def state_bytes(text: str, num_pages: int) -> int:
    """Bytes of a state with so many pages."""
    size = parse(text, ["num_pages"]).evaluate({"num_pages": num_pages})
    if size < 0:
        raise ArtifactError(f"cuda: expected a state of 0 or more bytes, got {size}")
    return size


def _with_numpy(logits: NDArray[np.float32], rows: Int32s) -> Int32s:
    ids = np.array([logits[row].argmax() for row in rows.tolist()], np.int32)
    ids[~np.isfinite(logits[rows, ids])] = -1
    return ids


def _size(artifact: Artifact, section: str, key: str) -> int:
    """A size of the manifest that models without it leave out: then 0."""
    value = cast(dict[str, object], artifact.manifest[section]).get(key)
    return value if isinstance(value, int) else 0
