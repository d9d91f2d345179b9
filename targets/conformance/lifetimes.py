"""Section ``device``: memory, streams and lifetimes, through the `Device` protocol alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DeviceError, SglkError
from ..artifact import Artifact
from ..device import SAMPLED_ROW, HasArgmax, HasSample
from . import ahead
from .chip import Chip
from .decoder import SHAPES, Reference
from .outcome import Outcome, crashed, judged
from .session import (
    NUM_SEQUENCES,
    Chunk,
    Floats,
    Mode,
    Session,
    compile_decoder,
    make_batch,
    modes_of,
    opened,
)

SECTION = "device"
LOADS = 6
HUGE = 2**31 - 1
"""Pages that no machine has memory for."""


@dataclass
class Bench:
    """One decoder, and fresh sessions on it."""

    chip: Chip
    artifact: Artifact
    reference: Reference
    mode: Mode

    def session(self) -> AbstractContextManager[Session]:
        return opened(self.chip, self.artifact, self.reference, self.mode)


Rule = Callable[[Bench], str]


def on_decoder(chip: Chip, section: str, rules: dict[str, Rule]) -> Iterator[Outcome]:
    """Every rule on an artifact of the first decoder."""
    mode = modes_of(chip)[0]
    artifact, reference = compile_decoder(chip, SHAPES[0], mode)
    bench = Bench(chip, artifact, reference, mode)
    with artifact:
        for name, rule in rules.items():
            try:
                yield judged(section, name, lambda rule=rule: rule(bench))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001  (third-party code may raise anything)
                yield crashed(section, name, error)


def check_device(chip: Chip) -> Iterator[Outcome]:
    return on_decoder(chip, SECTION, RULES)


def says_its_sizes(bench: Bench) -> str:
    """What the runtime plans with."""
    with bench.session() as session:
        got, page = session.executable, bench.chip.target.page_size
        vocab = SHAPES[0].vocab
        if (got.page_size, got.vocab_size) != (page, vocab):
            return f"expected pages of {page} and a vocabulary of {vocab}, got {vars_of(got)}"
        if got.num_pages <= NUM_SEQUENCES or got.max_tokens < 4 * page:
            return f"expected the pages and tokens that were asked for, got {vars_of(got)}"
    each = bench.chip.device.kv_bytes_per_page(bench.artifact)
    least = SHAPES[0].layers * 2 * page * SHAPES[0].kv_heads * SHAPES[0].head_dim
    if each < least * bench.mode.kv.bits // 8:
        return f"expected kv_bytes_per_page of {least * bench.mode.kv.bits // 8:.0f}+, got {each}"
    return ""


def vars_of(executable: object) -> dict[str, object]:
    names = ("page_size", "vocab_size", "num_pages", "max_tokens")
    return {name: getattr(executable, name, None) for name in names}


def two_at_once(bench: Bench) -> str:
    """Executables share no pages: each keeps its own sequence."""
    with bench.session() as a, bench.session() as b:
        first, second = a.sequence(7), b.sequence(8)[1:]
        pages = (1,)
        a.step(Chunk(first, 0, 6, pages))
        b.step(Chunk(second, 0, 6, pages))
        reason = a.wrong(a.step(Chunk(first, 6, 7, pages)), first, 6)
        return reason or b.wrong(b.step(Chunk(second, 6, 7, pages)), second, 6)


def arrays_are_read(bench: Bench) -> str:
    """The runtime fills the same arrays for the next step: they are read when `step` returns."""
    with bench.session() as session:
        tokens = session.sequence(session.page_size + 3)
        (pages,) = session.pages(len(tokens))
        batch = make_batch([Chunk(tokens, 0, len(tokens), pages)], session.page_size)
        logits = session.executable.step(batch)
        for array in filter(lambda field: field is not None, vars(batch).values()):
            array[...] = 0
        return session.wrong(np.array(logits, np.float32), tokens, len(tokens) - 1)


def results_of_run(bench: Bench) -> str:
    """`step` after `step`: each result is that of its own batch, in order."""
    with bench.session() as session:
        tokens = session.sequence(20)
        (pages,) = session.pages(20)
        for place in range(20):
            got = session.step(Chunk(tokens, place, place + 1, pages))
            if reason := session.wrong(got, tokens[: place + 1], place):
                return f"step {place} of 20 in a row: {reason}"
    return ""


def other_thread(bench: Bench) -> str:
    """Loaded here, stepped in a thread of a server: no state may belong to a thread."""
    with bench.session() as session:
        tokens = session.sequence(9)
        (pages,) = session.pages(9)
        found: list[str] = []

        def work() -> None:
            try:
                got = session.step(Chunk(tokens, 0, 9, pages))
                found.append(session.wrong(got, tokens, 8))
            except SglkError as error:
                found.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found[0] if found else "expected a result in another thread, got an exception"


def closing(bench: Bench) -> str:
    """`close` twice is fine; a step afterwards is refused."""
    with bench.session() as session:
        executable = session.executable
        executable.close()
        executable.close()
        batch = make_batch([Chunk((1,), 0, 1, (1,))], session.page_size)
        try:
            np.array(executable.step(batch), np.float32)
        except DeviceError:
            return ""
        return "expected a DeviceError for a step after close, got a result"


def gives_back(bench: Bench) -> str:
    """Threads and files do not grow with loads; the first one may open the device for good."""
    counts = []
    for _ in range(LOADS):
        with bench.session() as session:
            session.whole(session.sequence(3), session.pages(3)[0])
        counts.append((_entries("task"), _entries("fd")))
    early, late = counts[1], counts[-1]
    if late <= early:
        return ""
    return f"expected no more threads and files after {LOADS} loads than after 2, got {counts}"


def _entries(kind: str) -> int:
    return sum(1 for _ in Path(f"/proc/self/{kind}").iterdir())


def too_much_memory(bench: Bench) -> str:
    """More pages than any machine holds: an executable all the same, or a sentence."""
    try:
        executable = bench.chip.load(bench.artifact, HUGE, 16)
    except DeviceError:
        pass
    else:
        executable.close()
    with bench.session() as session:
        tokens = session.sequence(5)
        return session.wrong(session.step(Chunk(tokens, 0, 5, (1,))), tokens, 4)


def greedy(bench: Bench) -> str:
    """`argmax`, where it is offered: the host's own choice, row by row."""
    with bench.session() as session:
        executable = session.executable
        if not isinstance(executable, HasArgmax):
            return ""
        logits = _three_rows(session)
        rows = np.array([2, 0], np.int32)
        got = np.array(executable.argmax(rows))
        wanted = logits[rows].argmax(-1)
        return "" if (got == wanted).all() else f"argmax: expected {wanted}, got {got}"


def sampled(bench: Bench) -> str:
    """`sample`, where it is offered: with top_k 1 the greedy choice, whatever the number."""
    with bench.session() as session:
        executable = session.executable
        if not isinstance(executable, HasSample) or not executable.can_sample:
            return ""
        logits = _three_rows(session)
        rows = np.zeros(3, SAMPLED_ROW)
        rows["row"] = np.arange(3)
        rows["top_k"], rows["temperature"], rows["top_p"] = 1, 0.7, 1
        rows["lowest"], rows["uniform"] = -np.inf, (0.0, 0.5, 0.999)
        got = np.array(executable.sample(rows))
        wanted = logits.argmax(-1)
        return "" if (got == wanted).all() else f"sample: expected {wanted}, got {got}"


def _three_rows(session: Session) -> Floats:
    sequences = [session.sequence(n) for n in (3, 1, 5)]
    placed = session.pages(3, 1, 5)
    parts = zip(sequences, placed, strict=True)
    return session.step(*(Chunk(tokens, 0, len(tokens), pages) for tokens, pages in parts))


RULES: dict[str, Rule] = {
    "an executable says its sizes": says_its_sizes,
    "two executables share no pages": two_at_once,
    "input arrays may be overwritten after a step": arrays_are_read,
    "steps in a row, each with its own result": results_of_run,
    "steps in another thread than the load": other_thread,
    "close twice, then refuse": closing,
    "threads and files are given back": gives_back,
    "more pages than there is memory": too_much_memory,
    "greedy choice on the device": greedy,
    "random choice on the device": sampled,
    **ahead.RULES,
}
