"""A decoder loaded on the chip: sequences run in chunks on pages of the kit's choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.dtype import BF16, F16, F32, DType
from ...ir.graph import Graph
from ...ir.rewrite import clone
from ...passes.pipeline import StepOptions, run_pipeline, step_pipeline
from ..artifact import Artifact
from ..device import Executable, StepBatch
from ..weights import dense_reader
from .chip import Chip
from .decoder import Reference, Shape, decoder_graph, random_params

Floats = NDArray[np.float32]
NUM_SEQUENCES = 70
"""More than the decode buckets that the kit tries."""
MOST_TOKENS = 80


@dataclass(frozen=True)
class Mode:
    """What is stored how; ``tolerance`` is of logits, relative L2, against exact arithmetic."""

    weights: DType
    kv: DType
    activations: DType
    tolerance: float

    @property
    def name(self) -> str:
        return f"weights {self.weights}, cache {self.kv}, activations {self.activations}"


EXACT = Mode(F32, F32, F32, 1e-4)
MODES = (
    EXACT,
    Mode(BF16, F16, F32, 1e-2),
    Mode(F32, BF16, F32, 1e-1),
    Mode(BF16, BF16, BF16, 1e-1),
)


def modes_of(chip: Chip) -> list[Mode]:
    """Those that the chip's facts allow; the first is the most exact one."""
    target = chip.target
    wide = target.activation_dtype == F32
    fitting = [m for m in MODES if target.supports(m.weights) and target.supports(m.kv)]
    return [m for m in fitting if wide or m.activations == target.activation_dtype]


@dataclass(frozen=True)
class Chunk:
    """Tokens ``start`` to ``stop`` of a sequence that lies on these pages."""

    tokens: tuple[int, ...]
    start: int
    stop: int
    pages: tuple[int, ...]


def make_batch(
    chunks: Sequence[Chunk], page_size: int, *, columns: int = 0, all_rows: bool = False
) -> StepBatch:
    """One step; ``columns`` widens the page table, ``all_rows`` asks for every token's logits."""
    spans = [np.arange(c.start, c.stop) for c in chunks]
    used = [-(-c.stop // page_size) for c in chunks]
    table = np.zeros((len(chunks), max([columns, *used])), np.int32)
    for row, chunk, count in zip(table, chunks, used, strict=True):
        row[:count] = chunk.pages[:count]
    slots = [
        row[span // page_size] * page_size + span % page_size
        for row, span in zip(table, spans, strict=True)
    ]
    starts = np.cumsum([0, *(len(s) for s in spans)]).astype(np.int32)
    rows = np.arange(starts[-1]) if all_rows else starts[1:] - 1
    return StepBatch(
        token_ids=np.array([t for c in chunks for t in c.tokens[c.start : c.stop]], np.int32),
        positions=np.concatenate(spans).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        query_start=starts,
        seq_lens=np.array([c.stop for c in chunks], np.int32),
        page_table=table,
        logit_rows=rows.astype(np.int32),
    )


@dataclass
class Session:
    """Steps on an executable, and how results may differ."""

    executable: Executable
    reference: Reference
    mode: Mode
    page_size: int
    is_invariant: bool
    buckets: tuple[int, ...]
    rng: np.random.Generator

    def sequence(self, length: int) -> tuple[int, ...]:
        """Fresh random tokens."""
        vocab = self.executable.vocab_size
        return tuple(int(t) for t in self.rng.integers(0, vocab, length))

    def pages(self, *lengths: int) -> list[tuple[int, ...]]:
        """Pages in random order for sequences of these lengths; none is shared."""
        counts = [-(-n // self.page_size) for n in lengths]
        free = 1 + self.rng.permutation(self.executable.num_pages - 1)[: sum(counts)]
        cuts = np.cumsum(counts)[:-1]
        return [tuple(int(p) for p in part) for part in np.split(free, cuts)]

    def step(self, *chunks: Chunk, columns: int = 0, all_rows: bool = False) -> Floats:
        batch = make_batch(chunks, self.page_size, columns=columns, all_rows=all_rows)
        return np.array(self.executable.step(batch), np.float32)

    def whole(self, tokens: tuple[int, ...], pages: tuple[int, ...]) -> Floats:
        """Logits [V] of the last token, computed in one step."""
        return np.asarray(self.step(Chunk(tokens, 0, len(tokens), pages))[0])

    def wrong(self, got: Floats, tokens: tuple[int, ...], first: int = 0) -> str:
        """Why ``got`` are not the logits of tokens ``first`` and on, or ""."""
        wanted = self.reference.logits(tokens)[first:]
        return far(got, wanted, self.mode.tolerance, "against the reference")

    def differ(self, got: Floats, wanted: Floats, what: str) -> str:
        """Why two results of one token are not equal, or ""."""
        if not self.is_invariant:
            return far(got, wanted, self.mode.tolerance, what)
        wrong = int((got != wanted).sum())
        if not wrong:
            return ""
        return (
            f"expected the same bits {what} (the chip's facts say batch_invariant), got "
            f"{wrong} of {got.size} logits that differ, by up to {np.abs(got - wanted).max():.2g}"
        )


def far(got: Floats, wanted: Floats, tolerance: float, what: str) -> str:
    """Why logits [.., V] are not close in relative L2, or ""."""
    if got.shape != wanted.shape:
        return f"expected logits of shape {wanted.shape}, got {got.shape}"
    if not np.isfinite(got).all():
        return f"expected finite logits, got {int((~np.isfinite(got)).sum())} that are not"
    norms = np.maximum(np.linalg.norm(wanted, axis=-1), 1e-30)
    errors = np.atleast_1d(np.linalg.norm(got.astype(np.float64) - wanted, axis=-1) / norms)
    worst = int(errors.argmax())
    if errors[worst] <= tolerance:
        return ""
    return (
        f"expected a relative error of at most {tolerance:g} {what}, got {errors[worst]:.2g} "
        f"in row {worst} of {errors.size} (right rows: {int((errors <= tolerance).sum())})"
    )


def step_graph(chip: Chip, shape: Shape, mode: Mode) -> tuple[Graph, Reference]:
    """What the passes make of a decoder, and the reference with the same rounded weights."""
    captured = decoder_graph(shape)
    step = clone(captured)
    options = StepOptions(mode.weights, mode.kv, (), mode.activations)
    run_pipeline(step, step_pipeline(chip.target, options), ())
    params = random_params(captured)
    dtypes = {v.name: F32 for v in captured.params} | {v.name: v.type.dtype for v in step.params}
    read = dense_reader(dtypes, params.__getitem__)
    return step, Reference(captured, {name: read(name) for name in params})


def compile_decoder(chip: Chip, shape: Shape, mode: Mode) -> tuple[Artifact, Reference]:
    """A decoder for the chip; what the chip has no rows for raises `SglkError`."""
    step, reference = step_graph(chip, shape, mode)
    context = NUM_SEQUENCES * chip.target.page_size
    sizes: dict[str, Any] = {"vocab_size": shape.vocab, "context_length": context}
    return chip.compile(step, random_params(reference.graph), **sizes), reference


@contextmanager
def opened(chip: Chip, artifact: Artifact, reference: Reference, mode: Mode) -> Iterator[Session]:
    """A session with pages for `NUM_SEQUENCES` sequences."""
    page = chip.target.page_size
    with chip.loaded(artifact, NUM_SEQUENCES + 1, max(MOST_TOKENS, 4 * page)) as executable:
        yield Session(
            executable=executable,
            reference=reference,
            mode=mode,
            page_size=page,
            is_invariant=chip.target.batch_invariant,
            buckets=chip.target.token_buckets,
            rng=np.random.default_rng(11),
        )


def retold(chunk: Chunk, **changes: Any) -> Chunk:
    """The same sequence, cut elsewhere or on other pages."""
    return replace(chunk, **changes)
