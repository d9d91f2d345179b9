"""Rules for executables that run ahead: steps in a queue, tokens that never leave the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...errors import DeviceError
from ..device import SAMPLED_ROW, RunsAhead, StepBatch
from .session import Chunk, Session, make_batch

if TYPE_CHECKING:
    from .lifetimes import Bench

STEPS = 4
"""Steps of a run: two are in flight, so each later one waits for a token of the one before it."""
Tokens = tuple[int, ...]


def ahead_of(session: Session) -> RunsAhead | None:
    """The executable as one that runs ahead, if it does."""
    executable = session.executable
    is_able = isinstance(executable, RunsAhead) and executable.can_run_ahead
    return executable if is_able else None  # type: ignore[return-value]


def tokens_stay_on_the_device(bench: Bench) -> str:
    """Two sequences decoded with two steps in flight, in turned order: the reference's tokens."""
    with bench.session() as session:
        ahead = ahead_of(session)
        if ahead is None:
            return ""
        prompts = [session.sequence(3), session.sequence(session.page_size - 1)]
        placed = session.pages(*(len(p) + STEPS for p in prompts))
        found: list[list[int]] = [[], []]
        for number in range(STEPS):
            _submit(ahead, _batch(session, prompts, placed, number))
            if number:
                _note(found, ahead.collect(), number - 1)
        _note(found, ahead.collect(), STEPS - 1)
        wrong = [_wrong(bench, p, f) for p, f in zip(prompts, found, strict=True)]
        return next(filter(None, wrong), "")


def _order(number: int) -> list[int]:
    """Sequences by row: turned around in every other step."""
    return [0, 1] if number % 2 == 0 else [1, 0]


def _batch(session: Session, prompts: list[Tokens], placed: list[Tokens], number: int) -> StepBatch:
    """Step ``number`` of both sequences; tokens that are not known yet are named by their row."""
    chunks = []
    for which in _order(number):
        have = len(prompts[which])
        first = 0 if number == 0 else have + number - 1
        tokens = prompts[which] + (0,) * number
        chunks.append(Chunk(tokens, first, have + number, placed[which]))
    batch = make_batch(chunks, session.page_size)
    if number:
        before = _order(number - 1)
        batch.token_ids[:] = [-1 - before.index(which) for which in _order(number)]
    return batch


def _submit(ahead: RunsAhead, batch: StepBatch) -> None:
    """Queue a step, each row greedy; what it was given is overwritten at once."""
    rows = np.zeros(len(batch.logit_rows), SAMPLED_ROW)
    rows["row"], rows["top_k"], rows["temperature"] = np.arange(len(rows)), 1, 1
    rows["top_p"], rows["lowest"] = 1, -np.inf
    ahead.submit(batch, rows)
    for array in (*vars(batch).values(), rows):
        if array is not None:
            array[...] = np.zeros((), array.dtype)


def _note(found: list[list[int]], tokens: np.ndarray, number: int) -> None:
    for row, which in enumerate(_order(number)):
        found[which].append(int(tokens[row]))


def _wrong(bench: Bench, prompt: Tokens, found: list[int]) -> str:
    """Why these are not the reference's greedy tokens, but for ties within the tolerance, or ""."""
    for place, token in enumerate(found):
        if not 0 <= token < bench.reference.logits(prompt).shape[-1]:
            return f"token {place} of a queue: expected one of the vocabulary, got {token}"
        row = bench.reference.logits((*prompt, *found[:place]))[-1]
        short = float(row.max() - row[token])
        if short > 2 * bench.mode.tolerance * float(np.linalg.norm(row)):
            return (
                f"token {place} of a queue: expected {int(row.argmax())}, got {token}: "
                f"its logit is {short:.3g} below the best one"
            )
    return ""


def failing_in_a_queue(bench: Bench) -> str:
    """A wrong index raises when the step is queued or collected; then all is as before."""
    with bench.session() as session:
        ahead = ahead_of(session)
        if ahead is None:
            return ""
        tokens = session.sequence(5)
        (pages,) = session.pages(5)
        batch = make_batch([Chunk(tokens, 0, 5, pages)], session.page_size)
        batch.token_ids[2] = session.executable.vocab_size
        try:
            _submit(ahead, batch)
            ahead.collect()
        except DeviceError:
            return session.wrong(session.step(Chunk(tokens, 0, 5, pages)), tokens, 4)
        return "expected a DeviceError for a token outside the vocabulary, got a token"


RULES = {
    "steps in a queue": tokens_stay_on_the_device,
    "a step in a queue that fails": failing_in_a_queue,
}
