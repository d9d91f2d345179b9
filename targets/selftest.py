"""Self-test vectors: inputs and reference results that travel in an artifact and prove it anywhere.

The reference is the captured graph, each sequence whole, on the NumPy references: it knows nothing
of pages, chunks, fusion or kernels. The steps cover prefill, decode, a resumed prefix and a mixed
batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir.dim import symbols_of
from ..ir.graph import Graph
from ..ir.interpret import interpret
from ..ir.rewrite import clone
from ..ir.testing import random_array
from .weights import Read

LENGTHS = (21, 12)
"""Tokens of the two sequences."""


@dataclass(frozen=True)
class Chunk:
    """Tokens ``start`` to ``stop`` of one sequence, run in one step."""

    sequence: int
    start: int
    stop: int


STEPS: tuple[tuple[str, tuple[Chunk, ...]], ...] = (
    ("prefill", (Chunk(0, 0, 17),)),
    ("decode", (Chunk(0, 17, 18),)),
    ("mixed batch", (Chunk(0, 18, 19), Chunk(1, 0, 7))),
    ("resumed prefix", (Chunk(1, 7, 11),)),
    ("decode batch", (Chunk(0, 19, 20), Chunk(1, 11, 12))),
)
"""Each token once: what a state has passed cannot be run again."""


@dataclass(frozen=True)
class Case:
    """One step: its inputs by name, and the logits of the last token of each chunk, f32 [L, V]."""

    name: str
    inputs: dict[str, list[int] | list[list[int]]]
    logits: np.ndarray


def make_cases(
    captured: Graph, read: Read, vocab_size: int, page_size: int, *, has_slots: bool = False
) -> list[Case]:
    """Run the reference and lay out the steps. ``read`` gives parameters as f32 values.

    With slots (states beside the pages), each sequence has its own.
    """
    rng = np.random.default_rng(20)
    sequences = [rng.integers(0, vocab_size, n).astype(np.int32) for n in LENGTHS]
    logits = [_reference(captured, read, tokens) for tokens in sequences]
    first_pages = [1, 1 + -(-LENGTHS[0] // page_size)]
    return [
        _case(name, chunks, sequences, logits, first_pages, page_size, has_slots)
        for name, chunks in STEPS
    ]


def num_pages(page_size: int) -> int:
    """Pages the steps need, the reserved page 0 included."""
    return 1 + sum(-(-n // page_size) for n in LENGTHS)


def _reference(captured: Graph, read: Read, tokens: np.ndarray) -> np.ndarray:
    graph = clone(captured, {"tokens": len(tokens)})
    positions = np.arange(len(tokens), dtype=np.int32)
    inputs = {"token_ids": tokens[None], "position_ids": positions[None]}
    wanted = {v.name: inputs[v.name] for v in graph.inputs}
    (logits,) = interpret(graph, wanted, read)
    return np.asarray(logits[0], np.float32)


def _case(
    name: str,
    chunks: tuple[Chunk, ...],
    sequences: list[np.ndarray],
    logits: list[np.ndarray],
    first_pages: list[int],
    page_size: int,
    has_slots: bool,
) -> Case:
    spans = [np.arange(c.start, c.stop) for c in chunks]
    firsts = [first_pages[c.sequence] for c in chunks]
    pages = [-(-c.stop // page_size) for c in chunks]
    starts = np.concatenate([[0], np.cumsum([len(s) for s in spans])])
    table = [
        [first + i if i < count else 0 for i in range(max(pages))]
        for first, count in zip(firsts, pages, strict=True)
    ]
    slots = [first * page_size + span for first, span in zip(firsts, spans, strict=True)]
    inputs: dict[str, list[int] | list[list[int]]] = {
        "token_ids": _ints([sequences[c.sequence][s] for c, s in zip(chunks, spans, strict=True)]),
        "positions": _ints(spans),
        "slots": _ints(slots),
        "query_start": [int(s) for s in starts],
        "seq_lens": [c.stop for c in chunks],
        "page_table": table,
        "logit_rows": [int(s) - 1 for s in starts[1:]],
    }
    if has_slots:
        inputs["state_slots"] = [1 + c.sequence for c in chunks]
    return Case(name, inputs, np.stack([logits[c.sequence][c.stop - 1] for c in chunks]))


def _ints(parts: list[np.ndarray]) -> list[int]:
    return [int(x) for x in np.concatenate(parts)]


SIZE = 9
"""Value of every symbol in the self-test of a ``forward`` program."""


@dataclass(frozen=True)
class ForwardCase:
    """One call of a ``forward`` program: inputs and outputs by name."""

    name: str
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def make_forward_cases(captured: Graph, names: list[str], read: Read) -> list[ForwardCase]:
    """Random inputs through the reference; ``names`` are those of the program's outputs."""
    symbols = {s for v in captured.inputs for d in v.type.shape for s in symbols_of(d)}
    sizes = dict.fromkeys(symbols, SIZE)
    rng = np.random.default_rng(20)
    inputs = {v.name: random_array(v.type, rng, sizes) for v in captured.inputs}
    outputs = interpret(clone(captured, sizes), inputs, read)
    return [ForwardCase("forward", inputs, dict(zip(names, outputs, strict=True)))]
