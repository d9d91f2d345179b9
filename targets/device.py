"""What a chip offers the runtime: a `Device` loads artifacts, an `Executable` runs steps.

Run-time face: NumPy, the standard library and errors only. Every array is C-contiguous int32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError

if TYPE_CHECKING:
    from .artifact import Artifact

Int32s = NDArray[np.int32]
NO_SLOTS: Int32s = np.zeros(0, np.int32)
"""What a batch has in place of slots for a model without states beside the pages."""


@dataclass
class StepBatch:
    """The inputs of one step: T flat tokens of S sequences, L rows whose logits are wanted.

    The tokens of sequence s are rows ``query_start[s]..query_start[s+1]-1`` and are its last ones:
    ``seq_lens[s]`` counts all its tokens, this step's included. Token t writes its key and value to
    ``slots[t] = page * page_size + offset``; page 0 is reserved, padded rows write there.
    The arrays may be views that the next step overwrites.
    """

    token_ids: Int32s
    """[T]"""
    positions: Int32s
    """[T]"""
    slots: Int32s
    """[T]"""
    query_start: Int32s
    """[S + 1]"""
    seq_lens: Int32s
    """[S]"""
    page_table: Int32s
    """[S, P], rows padded with the reserved page 0"""
    logit_rows: Int32s
    """[L], ascending rows of the flat tokens"""
    state_slots: Int32s = field(default_factory=lambda: NO_SLOTS)
    """[S], where the model keeps states beside the pages: the slot of each sequence, which no other
    owns; 0 is reserved. A sequence whose first tokens these are finds zeros there."""


STEP_FIELDS = (
    "token_ids", "positions", "slots", "query_start", "seq_lens", "page_table", "logit_rows",
)  # fmt: skip
"""Inputs of a step program by name: the arrays of a `StepBatch`, in its order."""
STATE_SLOTS = "state_slots"
"""One more input of programs with states of slots."""
_DTYPES = [np.dtype(np.int32)] * len(STEP_FIELDS)


class StepSizes(NamedTuple):
    """Sizes of a step: the symbols of a step program."""

    tokens: int
    seqs: int
    pages: int
    """Columns of the page table."""
    rows: int
    """Rows of logits."""

    @property
    def is_decode(self) -> bool:
        """Every sequence has one token."""
        return self.tokens == self.seqs


def arrays_of(batch: StepBatch) -> tuple[Int32s, ...]:
    """The arrays in the order of `STEP_FIELDS`."""
    return (
        batch.token_ids, batch.positions, batch.slots, batch.query_start, batch.seq_lens,
        batch.page_table, batch.logit_rows,
    )  # fmt: skip


def sizes_of(batch: StepBatch, max_tokens: int, where: str) -> StepSizes:
    """Sizes of a well-formed batch; any other is refused."""
    arrays = arrays_of(batch)
    num_tokens, num_rows = len(batch.token_ids), len(batch.logit_rows)
    num_seqs, num_pages = batch.page_table.shape if batch.page_table.ndim == 2 else (-1, -1)
    shapes: list[tuple[int, ...]] = [
        (num_tokens,), (num_tokens,), (num_tokens,), (num_seqs + 1,), (num_seqs,),
        (num_seqs, num_pages), (num_rows,),
    ]  # fmt: skip
    # All at once, since a step is due every few hundred microseconds; one by one for the sentence.
    found = [array.shape for array in arrays], [array.dtype for array in arrays]
    if found != (shapes, _DTYPES) or not all(array.flags.c_contiguous for array in arrays):
        for name, array, shape in zip(STEP_FIELDS, arrays, shapes, strict=True):
            if array.shape != shape or array.dtype != np.int32 or not array.flags.c_contiguous:
                raise DeviceError(
                    f"{where}: step input {name}: expected contiguous int32 of shape {shape},"
                    f" got {array.dtype} of shape {array.shape}"
                )
    if not 1 <= num_tokens <= max_tokens or num_seqs < 1:
        raise DeviceError(
            f"{where}: step: expected 1 to {max_tokens} tokens and at least one sequence,"
            f" got {num_tokens} and {num_seqs}"
        )
    if num_rows > num_tokens:  # devices have room for the tokens of so many rows
        raise DeviceError(
            f"{where}: step input logit_rows: expected at most {num_tokens} rows, one of each"
            f" token, got {num_rows}"
        )
    return StepSizes(num_tokens, num_seqs, num_pages, num_rows)


class SizesOf:
    """`sizes_of` batches that mostly come in the very arrays of the one before."""

    def __init__(self, max_tokens: int, where: str) -> None:
        self._max_tokens, self._where = max_tokens, where
        self._arrays: tuple[Int32s, ...] = ()
        self._sizes: StepSizes | None = None

    def __call__(self, batch: StepBatch) -> StepSizes:
        arrays = arrays_of(batch)
        if self._sizes is None or not all(map(is_, arrays, self._arrays)):
            self._sizes = sizes_of(batch, self._max_tokens, self._where)
            self._arrays = arrays
        return self._sizes


class Logits(Protocol):
    """Logits [L, V] of a step, valid until the next one; an array is one.

    Reading may cost a wait and a copy: whoever needs a token alone asks `HasArgmax` or `HasSample`.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """(L, V)."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> NDArray[np.float32]:
        """One row [V]."""

    def __array__(self) -> NDArray[np.float32]:
        """All of them; `numpy.asarray` calls it."""


class Executable(Protocol):
    """An artifact bound to a device, with its KV pages allocated. Not thread-safe."""

    page_size: int
    """Tokens per page."""
    num_pages: int
    """Physical pages, the reserved page 0 included."""
    vocab_size: int
    max_tokens: int
    """Most tokens that one step may hold."""

    def step(self, batch: StepBatch) -> Logits:
        """Run or queue one step; a failure may show only when its results are read."""

    def run(self, entry: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run an entry that is no decoder step on arrays by name; outputs by name, as copies."""

    def close(self) -> None:
        """Give memory and threads back; safe to call twice."""


@runtime_checkable
class HasSlots(Protocol):
    """An `Executable` may be this too: it keeps states of sequences beside pages."""

    num_slots: int
    """Slots of the states, the reserved slot 0 included; 0: the model has none."""


def slots_of(executable: object) -> int:
    """Slots of its states, the reserved one included; 0 where the model has none."""
    return executable.num_slots if isinstance(executable, HasSlots) else 0


@runtime_checkable
class HasArgmax(Protocol):
    """An `Executable` may offer this too: greedy ids without the host reading the logits."""

    def argmax(self, rows: Int32s) -> Int32s:
        """The id of the largest of each of these rows [R] of the last step's logits.

        Ties go to the lowest id; a row with NaN, or whose largest is not finite, gives -1. The
        result may be a view that is valid until the next call.
        """


SAMPLED_ROW = np.dtype(
    [
        ("row", np.int32), ("top_k", np.int32), ("temperature", np.float32),
        ("lowest", np.float32), ("top_p", np.float64), ("uniform", np.float64),
    ]
)  # fmt: skip
"""How a row of logits becomes a token: its number; top_k (0: off) and top_p (1: off); temperature,
above 0; `lowest`, the log of min_p (-inf: off); and the number in [0, 1) that decides."""


@runtime_checkable
class HasSample(Protocol):
    """An `Executable` may offer this too: random ids without the host reading the logits."""

    can_sample: bool

    def sample(self, rows: NDArray[np.void]) -> Int32s:
        """A token for each `SAMPLED_ROW` [R] of the last step's logits, by the runtime's rules.

        Equal to the runtime's own sampler but where a cut or the draw falls within a rounding of a
        boundary. A row with NaN, or whose largest is not finite, gives -1. The result may be a view
        that is valid until the next call.
        """


@runtime_checkable
class RunsAhead(Protocol):
    """An `Executable` may offer this too: steps in a queue, tokens that never leave the device.

    The next step is submitted while one runs, so the device does not wait for the host. At most two
    steps are in flight. A step that fails raises in `collect`, and all in flight are lost.
    """

    can_run_ahead: bool

    def submit(self, batch: StepBatch, rows: NDArray[np.void]) -> None:
        """Queue a step that ends by choosing a token for each of its logit rows [L].

        ``rows`` are `SAMPLED_ROW`s [L], numbered 0 to L-1; top_k 1 is the greedy choice. A token id
        of -1 - r in ``batch.token_ids`` stands for the token that row r of the step submitted
        before this one chose; a row that chose none (-1) counts as token 0, its step is ignored.
        The arrays are read before this returns.
        """

    def collect(self) -> Int32s:
        """Wait for the oldest step in flight: the token [L] of each of its rows.

        -1 in a row as `HasSample.sample` gives it. The result is valid until the next call.
        """


@runtime_checkable
class RepeatsSteps(Protocol):
    """A `RunsAhead` may offer this too: a step like the last one, without its arrays."""

    def submit_next(self, rows: NDArray[np.void]) -> bool:
        """Queue the step submitted last again, each sequence a token further on in the same page.

        The token of row r is the one that row r chose, ``rows`` are as in `RunsAhead.submit`. False
        and nothing queued where that step was another than one token and row of each sequence, or
        where the device has to look at the arrays: it is to be submitted as any other then.
        """


@dataclass
class LogitChanges:
    """What becomes of rows of logits before their tokens are chosen, in the order of the fields.

    A list of the i-th changed row is entries ``starts[i]`` to ``starts[i + 1]`` of its arrays; ids
    within a list differ. As the runtime's own sampler has it (runtime/sampler.py).
    """

    rows: Int32s
    """[n] the rows that have lists, once each"""
    bias_starts: Int32s
    bias_ids: Int32s
    bias: NDArray[np.float32]
    history_starts: Int32s
    """of the tokens of prompt and answer"""
    history_ids: Int32s
    counts: NDArray[np.float32]
    """how often the answer has each"""
    penalties: NDArray[np.float32]
    """[n, 3]: repetition, frequency, presence"""
    forbidden_starts: Int32s
    forbidden_ids: Int32s
    masked_rows: Int32s
    """[m] rows that have a mask, once each"""
    masks: NDArray[np.uint32]
    """[m, ceil(V / 32)]: bit ``t % 32`` of word ``t // 32`` allows token ``t``"""


@runtime_checkable
class ChoosesLater(Protocol):
    """A `RunsAhead` may offer this too: the host changes logits that it never sees.

    It may change them by the tokens of the step before, which it sees while this one runs.
    """

    can_choose_later: bool

    def submit_unchosen(self, batch: StepBatch) -> None:
        """Queue a step as `RunsAhead.submit` does; `choose` must follow before any other step."""

    def choose(self, rows: NDArray[np.void], changes: LogitChanges) -> None:
        """Queue the choice of a token for each row of the step submitted last; see `submit`.

        The arrays are read before this returns.
        """


@runtime_checkable
class WarmsUp(Protocol):
    """An `Executable` may offer this too: doing beforehand what first steps would wait for."""

    def warm_up(self, max_seqs: int, max_context: int) -> None:
        """Make ready for decode steps of so many sequences and tokens of context.

        It writes to pages: only while nothing is cached.
        """


@dataclass
class HostCount:
    """How often the host did an op for the device, and its seconds, copies not included."""

    calls: int = 0
    seconds: float = 0.0


@runtime_checkable
class CountsHostOps(Protocol):
    """An `Executable` may offer this too: what the host did, as no kernel of the chip can."""

    @property
    def host_counts(self) -> Mapping[str, HostCount]:
        """By name of the op; {} where the device does everything."""


def host_ops_of(executable: object) -> dict[str, tuple[int, float]]:
    """Calls and seconds of each op that the host did; {} where nothing is counted."""
    if not isinstance(executable, CountsHostOps):
        return {}
    return {op: (count.calls, count.seconds) for op, count in executable.host_counts.items()}


class Device(Protocol):
    """A chip of this machine."""

    name: str

    def load(
        self, artifact: Artifact, *, num_pages: int, max_tokens: int, num_threads: int | None = None
    ) -> Executable:
        """Bind an artifact: load kernels, place weights, allocate ``num_pages`` pages."""

    def kv_bytes_per_page(self, artifact: Artifact) -> int:
        """Bytes that one page takes over all layers."""


class SlotDevice(Protocol):
    """A `Device` for programs with states of slots; others are never asked for such states."""

    def load(
        self,
        artifact: Artifact,
        *,
        num_pages: int,
        max_tokens: int,
        num_threads: int | None = None,
        num_slots: int = 0,
    ) -> Executable:
        """As `Device.load`, with ``num_slots`` slots of each state, the reserved one included."""


@runtime_checkable
class Tunes(Protocol):
    """A `Device` may offer this too: measuring what a compile kept for it (`backend.Tunes`)."""

    def tune(
        self,
        artifact: Artifact,
        progress: Callable[[str, int, int], None],
        rows: Collection[int] = (),
    ) -> tuple[dict[str, object], int]:
        """Content of a tuning file, and how many ways of doing a piece of work were refused, since
        the chip cannot run them or their results are not those of the others. ``rows``: only
        products of so many rows; empty: all."""


@runtime_checkable
class FitsPages(Protocol):
    """A `Device` with memory of its own may offer this too: what it holds beside the weights."""

    def pages_that_fit(self, artifact: Artifact, *, share: float, max_tokens: int) -> int:
        """Pages that take, with weights and steps, this share of the memory that is free now."""
