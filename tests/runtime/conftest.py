"""A device made of hashes, and small tokenizers.

`HashDevice` keeps real KV pages: each slot stores the token and position written to it. The logits
of a row are a hash of its whole context, read back through page table and sequence lengths. So any
wrong slot, stale page, wrong order or page shared too early changes the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray
from sglk.runtime.admission import Limits
from sglk.runtime.batch import Plan
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.request import Request
from sglk.runtime.scheduler import Scheduler
from sglk.runtime.steps import StepLoad, StepRecord
from sglk.runtime.waiting import rank_of
from sglk.targets.device import StepBatch
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

POISON = -999
_MIX = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def context_logits(tokens: Sequence[int] | NDArray[np.int32], vocab: int) -> NDArray[np.float32]:
    """Logits that depend on every token of the context and on its place."""
    values = np.asarray(tokens, dtype=np.int64).astype(np.uint64)
    places = np.arange(len(values), dtype=np.uint64)
    digest = _mixed(values * _MIX + _mixed(places)).sum(dtype=np.uint64)
    row = _mixed(digest + np.arange(vocab, dtype=np.uint64) * _MIX)
    return (row >> np.uint64(40)).astype(np.float32) / np.float32(2**22)


def expected_tokens(prompt: Sequence[int], count: int, vocab: int) -> list[int]:
    """What greedy decoding must give, computed with no pages at all."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(context_logits(tokens, vocab).argmax()))
    return tokens[len(prompt) :]


class HashDevice:
    """An `Executable` that checks its inputs as a kernel never could."""

    def __init__(self, num_pages: int, page_size: int, max_tokens: int, vocab: int = 97) -> None:
        self.page_size, self.num_pages = page_size, num_pages
        self.max_tokens, self.vocab_size = max_tokens, vocab
        self.tokens = np.full(num_pages * page_size, POISON, dtype=np.int64)
        self.positions = np.full(num_pages * page_size, POISON, dtype=np.int64)
        self.num_steps = 0
        self.is_closed = False
        self.failures = 0

    def poison(self, pages: Sequence[int]) -> None:
        """Overwrite pages that nobody may read again."""
        for page in pages:
            self.tokens[page * self.page_size : (page + 1) * self.page_size] = POISON
            self.positions[page * self.page_size : (page + 1) * self.page_size] = POISON

    def run(self, entry: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise AssertionError(f"a decoder has no entry {entry}")

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        self._check(batch)
        if self.failures:
            self.failures -= 1
            raise OSError("the device is gone")
        self.num_steps += 1
        self.tokens[batch.slots] = batch.token_ids
        self.positions[batch.slots] = batch.positions
        rows = [self._row(batch, int(row)) for row in batch.logit_rows]
        return np.array(rows, dtype=np.float32).reshape(len(rows), self.vocab_size)

    def close(self) -> None:
        self.is_closed = True

    def _row(self, batch: StepBatch, row: int) -> NDArray[np.float32]:
        seq = int(np.searchsorted(batch.query_start, row, side="right")) - 1
        length = int(batch.positions[row]) + 1
        places = np.arange(length)
        slots = batch.page_table[seq, places // self.page_size] * self.page_size
        slots = slots + places % self.page_size
        assert (self.positions[slots] == places).all(), "a slot holds another position"
        assert (self.tokens[slots] >= 0).all(), "a slot was freed or never written"
        return context_logits(self.tokens[slots].astype(np.int32), self.vocab_size)

    def _check(self, batch: StepBatch) -> None:
        total, seqs = len(batch.token_ids), len(batch.seq_lens)
        assert 0 < total <= self.max_tokens
        for array in vars(batch).values():
            assert array.dtype == np.int32 and array.flags.c_contiguous
        assert len(batch.positions) == len(batch.slots) == batch.query_start[-1] == total
        assert batch.query_start[0] == 0 and (np.diff(batch.query_start) > 0).all()
        assert batch.page_table.shape[0] == seqs == len(batch.query_start) - 1
        assert len(np.unique(batch.slots)) == total and (batch.slots >= self.page_size).all()
        for seq in range(seqs):
            self._check_sequence(batch, seq)
        assert (np.diff(batch.logit_rows) > 0).all()
        assert set(batch.logit_rows) <= set(batch.query_start[1:] - 1)

    def _check_sequence(self, batch: StepBatch, seq: int) -> None:
        start, end = batch.query_start[seq], batch.query_start[seq + 1]
        length = batch.seq_lens[seq]
        places = np.arange(length - (end - start), length)
        assert (batch.positions[start:end] == places).all(), "queries are the last tokens"
        pages = batch.page_table[seq]
        slots = pages[places // self.page_size] * self.page_size + places % self.page_size
        assert (batch.slots[start:end] == slots).all()
        used = -(-length // self.page_size)
        assert (pages[:used] > 0).all() and (pages[used:] == 0).all()
        assert (pages < self.num_pages).all()


class Bench:
    """A scheduler on a `HashDevice`, with every invariant checked after every step."""

    def __init__(self, limits: Limits, vocab: int = 97) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.device = HashDevice(limits.num_pages, limits.page_size, limits.max_step_tokens, vocab)
        self._executor = Executor(self.device, limits)
        self.answers: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.now = 0.0
        self.prefilled: list[int] = []

    def add(self, id: str, prompt: Sequence[int], max_new: int, **more: object) -> Request:
        request = Request(id, prompt, max_new, **more)  # type: ignore[arg-type]
        self.scheduler.add(request, self.now)
        self.answers[id] = []
        return request

    def step(self, is_first_leaving: bool = False) -> None:
        """One step; with ``is_first_leaving`` its first request is aborted while it runs.

        A step takes a second, and 1/64 s more for each token of prefill.
        """
        plan = self.scheduler.schedule(self.now)
        if plan.wait_until is not None:
            assert not plan.chunks and plan.wait_until > self.now
            self.now = plan.wait_until
            plan = self.scheduler.schedule(self.now)
        assert bool(plan.chunks) == self.scheduler.has_work
        self.check()
        self.check_order(plan)
        load = StepLoad.of(plan)
        seconds = 1 + load.prefill_tokens / 64
        self.prefilled.append(load.prefill_tokens)
        self.now += seconds
        self.scheduler.observe(StepRecord(0, seconds, 0, load, 0, 0, 0))
        if not plan.chunks:
            return
        logits = self._executor.run(plan)
        if is_first_leaving:
            self.abort(plan.chunks[0].request.id)
        for event in self.scheduler.commit(plan, np.asarray(logits).argmax(axis=1).tolist()):
            self.answers[event.request.id].append(event.token_id)
            if event.finish_reason:
                self.end(event.request.id, event.finish_reason)
        self.check()

    def end(self, id: str, reason: str) -> None:
        assert id not in self.reasons, "a request ended twice"
        self.reasons[id] = reason

    def abort(self, id: str) -> None:
        if self.scheduler.abort(id):
            self.end(id, "abort")
        self.check()

    def check(self) -> None:
        self.scheduler.check()
        pool = self.scheduler.kv.pool
        assert pool.num_free + pool.num_cached + pool.num_held == pool.total
        self.device.poison(pool.free_numbers())

    def check_order(self, plan: Plan) -> None:
        """Prompts take the step's tokens by rank: who goes short ranks behind those served."""
        served = {chunk.request.id: chunk for chunk in plan.chunks}
        step, aging = self.scheduler.num_steps, self.limits.aging_steps
        for request in self.scheduler.running.values():
            chunk = served.get(request.id)
            if chunk is None:
                ahead = plan.chunks[plan.num_decoding :]
            elif chunk.is_last or request in plan.admitted:
                continue
            else:
                ahead = plan.chunks[plan.num_decoding : plan.chunks.index(chunk)]
            rank = rank_of(request, step, aging)
            assert all(rank_of(each.request, step, aging) < rank for each in ahead)

    def run_until(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            self.step()

    def run(self, limit: int = 10_000) -> int:
        steps = 0
        while self.scheduler.has_work:
            self.step()
            steps += 1
            assert steps <= limit, "no progress"
        assert self.scheduler.kv.pool.num_held == 0
        return steps


@pytest.fixture(scope="session")
def fake() -> SimpleNamespace:
    """The fakes of this file; tests import no other test file."""
    return SimpleNamespace(
        HashDevice=HashDevice,
        Bench=Bench,
        context_logits=context_logits,
        expected_tokens=expected_tokens,
    )


@pytest.fixture
def make_engine() -> Callable[..., Engine]:
    """An engine on a `HashDevice`."""

    def make(tokenizer: object = None, config: object = None, **limits: object) -> Engine:
        chosen = {"page_size": 4, "num_pages": 64, "max_step_tokens": 16, "max_running": 8}
        vocab = int(limits.pop("vocab", 97))  # type: ignore[call-overload]
        bounds = Limits(**{**chosen, **limits})  # type: ignore[arg-type]
        device = HashDevice(bounds.num_pages, bounds.page_size, bounds.max_step_tokens, vocab)
        return Engine(Executor(device, bounds), bounds, tokenizer, config)  # type: ignore[arg-type]

    return make


_CORPUS = [
    "hello world, this is a small tokenizer for tests",
    "你好，世界。今天天气很好。",
    "안녕하세요 세계",
    "🙂🙃 👩‍👩‍👧 family",
    "naïve café — déjà vu",
]


@pytest.fixture(scope="session")
def byte_level() -> tokenizers.Tokenizer:
    """Like GPT-2, Llama 3, Qwen, SmolLM: every byte is a letter."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS * 3, trainer)
    return made


@pytest.fixture(scope="session")
def byte_fallback() -> tokenizers.Tokenizer:
    """Like Llama 2, Mistral, Gemma: pieces with U+2581 for a space, bytes for unknown letters."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted({char for char in "▁" + _CORPUS[0] if char != " "})
    merges = [("▁", "h"), ("▁h", "e"), ("l", "o"), ("▁", "w"), ("▁", "t")]
    names += [*letters, *("".join(pair) for pair in merges)]
    vocab = {name: id for id, name in enumerate(names)}
    made = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


@pytest.fixture(scope="session")
def word_piece() -> tokenizers.Tokenizer:
    """A decoder that looks at neighbours."""
    names = ["[UNK]", "hello", "world", "##s", "##ly", "you", ",", "你", "##好", "\N{SNOWMAN}"]
    made = tokenizers.Tokenizer(
        models.WordPiece({name: id for id, name in enumerate(names)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece(cleanup=False)
    return made
