"""States beside the pages: each running request owns a slot, and no prefix is taken over.

The device here reads contexts from slots alone: what a slot holds when a step begins must be the
tokens of its sequence so far, or anything where the sequence begins.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.errors import SglkError
from sglk.runtime.admission import Limits
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor, LoadOptions, limits_of
from sglk.runtime.llm import LLM
from sglk.targets.device import StepBatch

VOCAB = 97
BOUNDS: dict[str, Any] = {"page_size": 4, "max_step_tokens": 12, "max_running": 3}


class SlotDevice:
    """An `Executable` whose states are the tokens themselves."""

    def __init__(self, limits: Limits, logits: Any) -> None:
        self.page_size, self.num_pages = limits.page_size, limits.num_pages
        self.max_tokens, self.vocab_size = limits.max_step_tokens, VOCAB
        self.num_slots = limits.state_slots
        self._states: list[list[int]] = [[-1] for _ in range(self.num_slots)]
        self._logits = logits

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        slots = batch.state_slots.tolist()
        assert len(set(slots)) == len(slots) == len(batch.seq_lens), "two sequences share a slot"
        assert 1 <= min(slots) <= max(slots) < self.num_slots
        spans = zip(batch.query_start[:-1], batch.query_start[1:], strict=True)
        for slot, (start, end), length in zip(slots, spans, batch.seq_lens, strict=True):
            if length == end - start:
                self._states[slot] = []
            assert len(self._states[slot]) == length - (end - start), "another sequence's state"
            self._states[slot] += batch.token_ids[start:end].tolist()
        rows = [self._row(batch, int(row)) for row in batch.logit_rows]
        return np.array(rows, np.float32).reshape(len(rows), VOCAB)

    def _row(self, batch: StepBatch, row: int) -> NDArray[np.float32]:
        seq = int(np.searchsorted(batch.query_start, row, side="right")) - 1
        state = np.array(self._states[int(batch.state_slots[seq])], np.int32)
        result: NDArray[np.float32] = self._logits(state, VOCAB)
        return result

    def run(self, entry: str, inputs: Any) -> dict[str, NDArray[Any]]:
        raise AssertionError(f"a decoder has no entry {entry}")

    def close(self) -> None:
        """Nothing to give back."""


def limits(**changes: Any) -> Limits:
    return Limits(**{"num_pages": 64, "prefix_cache": False, "state_slots": 4, **BOUNDS, **changes})


def serve(fake: SimpleNamespace, bounds: Limits) -> LLM:
    executor = Executor(SlotDevice(bounds, fake.context_logits), bounds)
    return LLM(Engine(executor, bounds))


def prompts(*lengths: int) -> list[list[int]]:
    return [[(7 * n + 3 * i) % VOCAB for i in range(n)] for n in lengths]


@pytest.mark.parametrize("pages", [64, 9])
def test_chunks_batches_and_preemption_keep_states_apart(fake: SimpleNamespace, pages: int) -> None:
    asked = prompts(9, 3, 17, 1, 5, 12)
    with serve(fake, limits(num_pages=pages)) as llm:
        for _ in range(2):  # the second time slots hold what others left
            answers = llm.generate(asked, max_tokens=10)
            for prompt, answer in zip(asked, answers, strict=True):
                assert answer.token_ids == fake.expected_tokens(prompt, 10, VOCAB)
                assert answer.num_cached_tokens == 0
        scheduler = llm.engine.scheduler
        assert (scheduler.stats().num_preemptions > 0) == (pages == 9)
        assert scheduler.kv.slots is not None and scheduler.kv.slots.num_held == 0
        scheduler.check()


def test_limits_want_a_slot_for_everyone_and_no_cache() -> None:
    for changes in ({"prefix_cache": True}, {"state_slots": 3}):
        with pytest.raises(SglkError, match="expected prefix_cache off and a slot for each"):
            limits(**changes)


def test_a_device_with_slots_turns_the_prefix_cache_off(fake: SimpleNamespace) -> None:
    device = SlotDevice(limits(), fake.context_logits)
    found = limits_of(device, 64, LoadOptions(max_running=3, max_step_tokens=12))
    assert (found.prefix_cache, found.state_slots) == (False, 4)
    plain = fake.HashDevice(9, 4, 12)
    found = limits_of(plain, 64, LoadOptions(max_running=3, max_step_tokens=12))
    assert (found.prefix_cache, found.state_slots) == (True, 0)
