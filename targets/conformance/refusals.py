"""Section ``errors``: what is wrong is refused in a sentence, and harms nothing that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ...errors import ArtifactError, DeviceError, LoweringError, SglkError, VerifyError
from ...ir.dtype import F32
from ...ir.graph import Graph
from ...ir.op import Op
from ...ir.types import TensorType
from ...passes.select_rows import HOST_OPS
from ..artifact import Artifact, ArtifactWriter
from ..device import StepBatch
from .chip import Chip, KitChoices
from .lifetimes import Bench, Rule, on_decoder
from .outcome import Outcome
from .session import Chunk, make_batch

SECTION = "errors"
Spoil = Callable[[StepBatch], StepBatch]


def check_errors(chip: Chip) -> Iterator[Outcome]:
    return on_decoder(chip, SECTION, RULES)


def _first(array: np.ndarray, value: int) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1)[0] = value
    return changed


WRONG: dict[str, Spoil] = {
    "a token id past the vocabulary": lambda b: replace(b, token_ids=_first(b.token_ids, 1 << 20)),
    "a slot past the pages": lambda b: replace(b, slots=_first(b.slots, 1 << 28)),
    "a negative slot": lambda b: replace(b, slots=_first(b.slots, -1)),
    "a page past the pages": lambda b: replace(b, page_table=_first(b.page_table, 1 << 20)),
    "a row of logits past the tokens": lambda b: replace(b, logit_rows=_first(b.logit_rows, 99)),
    "a length past the page table": lambda b: replace(b, seq_lens=_first(b.seq_lens, 1 << 20)),
    "a length below the queries": lambda b: replace(b, seq_lens=_first(b.seq_lens, 1)),
    "64-bit token ids": lambda b: replace(b, token_ids=b.token_ids.astype(np.int64)),
    "positions of another length": lambda b: replace(b, positions=b.positions[:-1]),
    "token ids with gaps": lambda b: replace(b, token_ids=np.repeat(b.token_ids, 2)[::2]),
    "no token": lambda b: replace(
        b, token_ids=b.token_ids[:0], positions=b.positions[:0], slots=b.slots[:0]
    ),
}
"""Batches that would let a kernel read or write memory that is not its own."""


def wrong_batches(bench: Bench) -> str:
    """Each is refused before a kernel runs; the step after it is right."""
    with bench.session() as session:
        tokens = session.sequence(5)
        (pages,) = session.pages(5)
        chunk = Chunk(tokens, 0, 5, pages)
        for what, spoil in WRONG.items():
            batch = spoil(make_batch([chunk], session.page_size))
            try:
                np.array(session.executable.step(batch), np.float32)
            except DeviceError:
                pass
            else:
                return f"expected a DeviceError for {what}, got logits"
            if reason := session.wrong(session.step(chunk), tokens, 4):
                return f"the step after {what}: {reason}"
    return ""


def too_many_tokens(bench: Bench) -> str:
    with bench.session() as session:
        length = session.executable.max_tokens + 1
        (pages,) = session.pages(length)
        try:
            session.whole(session.sequence(length), pages)
        except DeviceError:
            return ""
        return f"expected a DeviceError for {length} tokens in a step, got logits"


def unknown_entry(bench: Bench) -> str:
    with bench.session() as session:
        try:
            session.executable.run("no-such-entry", {})
        except DeviceError:
            return ""
        return "expected a DeviceError for an entry that the artifact lacks, got a result"


def no_pages(bench: Bench) -> str:
    for pages, tokens in ((0, 16), (4, 0), (-1, 16)):
        try:
            bench.chip.load(bench.artifact, pages, tokens).close()
        except DeviceError:
            continue
        return f"expected a DeviceError for {pages} pages and {tokens} tokens, got an executable"
    return ""


def foreign_artifact(bench: Bench) -> str:
    """One that was compiled for another chip, and one without code for this one."""
    target = bench.artifact.manifest["target"]
    assert isinstance(target, dict)
    for what, changes in (
        ("an artifact of another target", {"name": "no-such-chip"}),
        ("an artifact without a variant", {"variants": []}),
    ):
        with _rewritten(bench, {**target, **changes}) as artifact:
            try:
                bench.chip.load(artifact, 4, 16).close()
            except (ArtifactError, DeviceError):
                continue
            return f"expected an ArtifactError for {what}, got an executable"
    return ""


def _rewritten(bench: Bench, target: dict[str, object]) -> Artifact:
    path, old = bench.chip.folder / "rewritten.sglk", bench.artifact
    with ArtifactWriter(path) as writer:
        members = old.manifest["members"]
        assert isinstance(members, dict)
        for name in members:
            if name.startswith("weights/"):
                writer.add_blob([old.view(name)])
            else:
                writer.add_bytes(name, old.read(name))
        writer.finish({**old.manifest, "target": target})
    return Artifact.open(path)


def unknown_op(bench: Bench) -> str:
    """An op without a row, and that the host may not do, is refused with its name, before kernels
    are built."""

    class Unheard(Op):
        def infer(self, x: TensorType) -> tuple[TensorType, ...]:
            return (x,)

    Unheard.name = "unheard-of"
    graph = Graph("refused")
    graph.outputs = [graph.emit(Unheard(), graph.input("x", TensorType(F32, (4,))))]
    facts = bench.chip.target
    strict = replace(facts, features=facts.features - {HOST_OPS})
    try:
        bench.chip.backend.lower(graph, strict)
    except VerifyError:
        raise
    except SglkError as error:
        if "unheard-of" in str(error):
            return ""
        return f"expected the op's name in the refusal, got: {error}"
    return "expected a PassError for an op that has no row, got a program"


def unknown_arch(bench: Bench) -> str:
    try:
        bench.chip.backend.check(KitChoices(arches=("no-such-arch",)))
    except LoweringError:
        return ""
    return "expected a LoweringError for --target NAME:no-such-arch, got none"


RULES: dict[str, Rule] = {
    "wrong batches": wrong_batches,
    "more tokens than a step may have": too_many_tokens,
    "an entry that is not there": unknown_entry,
    "no pages, no tokens": no_pages,
    "artifacts for something else": foreign_artifact,
    "an op without a row": unknown_op,
    "an arch that does not exist": unknown_arch,
}
