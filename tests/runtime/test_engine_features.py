"""What the server asks of the engine: masks, minimum lengths, deadlines, times, step records."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray
from sglk.errors import DeviceError, RequestError, SglkError
from sglk.runtime.answer import Output
from sglk.runtime.engine import Engine
from sglk.runtime.request import SamplingParams
from sglk.runtime.sampler import RowState, sample
from sglk.runtime.steps import StepLoad, StepWriter, read_steps
from sglk.runtime.token_mask import forbid
from sglk.runtime.tokenizer import GenerationConfig, Tokenizer

MakeEngine = Callable[..., Engine]
VOCAB = 97


class Cycle:
    """A grammar: each token is one of a few, and the answer is complete after ``length``."""

    def __init__(self, allowed: list[int], length: int = 1000, fails_at: int = -1) -> None:
        self.allowed, self.length, self.fails_at = allowed, length, fails_at
        self.accepted: list[int] = []

    def fill(self, words: NDArray[np.uint32]) -> None:
        assert words.shape == (-(-VOCAB // 32),) and not words.any()
        if len(self.accepted) == self.fails_at:
            raise RequestError("grammar: expected a small one, got one without end")
        for token in self.allowed:
            words[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token_id: int) -> None:
        assert token_id in self.allowed
        self.accepted.append(token_id)

    def is_terminated(self) -> bool:
        return len(self.accepted) == self.length


class Clock:
    """Time that moves when told, and by a bit at each reading."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def finish(engine: Engine) -> dict[str, list[Output]]:
    """Run until there is no work; outputs by request."""
    found: dict[str, list[Output]] = {}
    while engine.has_work:
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)
    return found


def tokens(outputs: list[Output]) -> list[int | None]:
    return [output.token_id for output in outputs]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_decides_what_may_come_and_when_it_is_complete(
    make_engine: MakeEngine, temperature: float
) -> None:
    engine = make_engine()
    mask = Cycle([3, 40, 96], length=6)
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=1)
    engine.add_request("a", [1, 2, 3], params, mask=mask)
    engine.add_request("free", [5, 6], SamplingParams(max_tokens=9))
    found = finish(engine)
    assert tokens(found["a"]) == mask.accepted and len(mask.accepted) == 6
    assert found["a"][-1].finish_reason == "stop"
    assert len(found["free"]) == 9
    engine.close()


def test_a_mask_that_fails_ends_its_request_alone(
    make_engine: MakeEngine, fake: SimpleNamespace
) -> None:
    engine = make_engine()
    engine.add_request("bad", [1, 2], SamplingParams(max_tokens=9), mask=Cycle([4], fails_at=2))
    engine.add_request("none", [1, 9], SamplingParams(max_tokens=9), mask=Cycle([]))
    engine.add_request("good", [7], SamplingParams(max_tokens=6))
    found = finish(engine)
    assert tokens(found["bad"]) == [4, 4, None]
    assert found["bad"][-1].finish_reason == "error"
    assert found["bad"][-1].error == "grammar: expected a small one, got one without end"
    assert found["none"][-1].error is not None and "got none" in found["none"][-1].error
    assert tokens(found["good"]) == fake.expected_tokens([7], 6, VOCAB)
    assert engine.stats().pages_held == 0
    assert engine.stats().finished == {"error": 2, "length": 1}
    engine.close()


def test_the_next_mask_is_filled_while_the_device_computes(make_engine: MakeEngine) -> None:
    """Each fill waits for the device's next step to begin, so nothing before that may need it."""
    engine = make_engine()
    began = threading.Semaphore(0)
    device: Any = engine._executor.executable
    compute = device.step

    def step(batch: Any) -> Any:
        began.release()
        return compute(batch)

    class Slow(Cycle):
        def fill(self, words: NDArray[np.uint32]) -> None:
            assert began.acquire(timeout=30), "the device waited for the mask"
            super().fill(words)

    device.step = step
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=9), mask=Slow([5, 6], length=5))
    assert len(finish(engine)["a"]) == 5
    engine.close()


def test_a_request_that_is_refused_leaves_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="expected prompt and answer of at most 253 tokens"):
        engine.add_request("a", [1], SamplingParams(max_tokens=900), mask=Cycle([1]), deadline=1.0)
    assert not engine.has_work and engine.step() == []
    engine.add_request("a", [1], SamplingParams(max_tokens=2))
    assert len(finish(engine)["a"]) == 2
    engine.close()


def test_forbid_reads_bits_from_the_lowest() -> None:
    rng = np.random.default_rng(0)
    allowed = rng.random(VOCAB) < 0.5
    words = np.zeros(4, np.uint32)
    for token in np.flatnonzero(allowed):
        words[token // 32] |= np.uint32(1 << int(token) % 32)
    row = np.zeros(VOCAB, np.float32)
    forbid(row, words)
    assert (np.isfinite(row) == allowed).all()


def test_no_end_token_before_the_minimum(make_engine: MakeEngine, fake: SimpleNamespace) -> None:
    prompt = [4, 8]
    free = fake.expected_tokens(prompt, 12, VOCAB)
    stop = free[2]
    params = SamplingParams(max_tokens=12, min_tokens=6, stop_token_ids=[stop])
    engine = make_engine()
    engine.add_request("a", prompt, params)
    found = tokens(finish(engine)["a"])
    assert found[:2] == free[:2] and stop not in found[:6]
    engine.add_request("b", prompt, SamplingParams(max_tokens=12, stop_token_ids=[stop]))
    assert tokens(finish(engine)["b"]) == free[:3]


def test_stop_strings_count_from_the_minimum_on(
    make_engine: MakeEngine, byte_level: tokenizers.Tokenizer
) -> None:
    config = GenerationConfig()
    engine = make_engine(Tokenizer(byte_level, config), config, vocab=byte_level.get_vocab_size())
    word = byte_level.encode("a").ids[0]
    params: dict[str, Any] = {"max_tokens": 9, "logit_bias": {word: 100}, "stop": "a"}
    engine.add_request("early", [1, 2], SamplingParams(**params))
    engine.add_request("late", [1, 2], SamplingParams(**params, min_tokens=4))
    found = finish(engine)
    assert "".join(o.text for o in found["early"]) == ""
    assert "".join(o.text for o in found["late"]) == "aaaa"
    assert len(found["late"]) == 5 and found["late"][-1].finish_reason == "stop"


def test_min_tokens_cannot_exceed_max_tokens() -> None:
    with pytest.raises(RequestError, match=r"min_tokens: expected a whole number in \[0, 3\]"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_deadlines_end_requests_in_every_state(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=1)
    clock = engine.clock = Clock()
    engine.add_request("runs", [1, 2], SamplingParams(max_tokens=50), deadline=110.0)
    engine.add_request("queued", [3], SamplingParams(max_tokens=9), start_deadline=105.0)
    engine.add_request("late", [4], SamplingParams(max_tokens=1), start_deadline=200.0)
    assert [o.request_id for o in engine.step()] == ["runs"]
    clock.now = 106.0
    found = {o.request_id: o for o in engine.step()}
    assert (found["queued"].finish_reason, found["queued"].token_id) == ("timeout", None)
    assert found["queued"].timing.started is None
    clock.now = 110.0
    outputs = finish(engine)
    assert outputs["runs"][-1].finish_reason == "timeout"
    assert outputs["late"][-1].finish_reason == "length"
    stats = engine.stats()
    assert stats.finished == {"timeout": 2, "length": 1} and stats.pages_held == 0


def test_what_ended_is_told_even_if_the_step_fails(make_engine: MakeEngine) -> None:
    engine = make_engine()
    clock = engine.clock = Clock()
    engine.add_request("gone", [1], SamplingParams(max_tokens=9), deadline=100.5)
    engine.add_request("stays", [2], SamplingParams(max_tokens=1))
    clock.now = 101.0
    engine._executor.executable.failures = 1  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="device is gone"):
        engine.step()
    assert {o.request_id: o.finish_reason for o in engine.step()} == {
        "gone": "timeout",
        "stays": "length",
    }
    assert not engine.has_work


def test_ended_requests_leave_no_deadline_behind(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for number in range(300):
        engine.add_request(f"r{number}", [1], SamplingParams(max_tokens=1), deadline=1e12)
        finish(engine)
    assert len(engine._deadlines.entries) < 80


def test_times_of_a_request(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=1)
    clock = engine.clock = Clock()
    engine.add_request("first", [1], SamplingParams(max_tokens=2))
    engine.add_request("second", [2], SamplingParams(max_tokens=2))
    clock.now = 101.0
    engine.step()
    clock.now = 102.0
    engine.step()
    clock.now = 103.0
    timing = finish(engine)["second"][-1].timing
    assert timing.queue_s == pytest.approx(3.0, abs=0.1)
    assert timing.ttft_s == pytest.approx(3.0, abs=0.1)
    assert timing.started is not None and timing.first_token is not None
    assert timing.arrived < timing.started < timing.first_token
    assert timing.first_token < (timing.last_token or 0) <= (timing.finished or 0)


def test_step_records_say_what_was_computed(make_engine: MakeEngine) -> None:
    engine = make_engine()
    lines = io.StringIO()
    engine.on_step = StepWriter(lines)
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=3))
    engine.step()
    engine.add_request("b", list(range(20)), SamplingParams(max_tokens=1))
    finish(engine)
    records = read_steps(lines.getvalue().splitlines(), "trace")
    assert [record.load for record in records] == [
        StepLoad(3, 0, 1, 0, 6),
        StepLoad(15, 1, 1, 4, 120),
        StepLoad(5, 1, 2, 5, 90),
    ]
    assert records[-1] == engine.last_step and engine.stats().num_steps == 3
    assert all(0 <= record.device_seconds <= record.seconds for record in records)


@pytest.mark.parametrize("line", ["{", '{"load": {}}', "[1]", '{"load": 3, "started": 1}'])
def test_a_bad_step_trace_is_refused_by_line(line: str) -> None:
    with pytest.raises(SglkError, match="trace: line 2: expected a step record"):
        read_steps(["", line], "trace")


def test_stats_count_tokens_pages_and_slots(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("a", list(range(10)), SamplingParams(max_tokens=3))
    engine.step()
    stats = engine.stats()
    assert (stats.slots_allocated, stats.slots_filled) == (12, 10)
    assert stats.fragmentation == pytest.approx(1 / 6)
    assert stats.utilisation == pytest.approx(3 / 63)
    finish(engine)
    engine.add_request("b", list(range(10)), SamplingParams(max_tokens=2))
    finish(engine)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (20, 8, 5)
    assert stats.finished == {"length": 2} and stats.utilisation == 0 and stats.fragmentation == 0


def test_the_devices_own_argmax_serves_plain_rows_alone() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 50)).astype(np.float32)
    asked: list[list[int]] = []

    def argmax(rows: NDArray[np.int32]) -> NDArray[np.int32]:
        asked.append(rows.tolist())
        ids: NDArray[np.int32] = logits[rows].argmax(axis=1).astype(np.int32)
        return ids

    kinds = [{}, {"temperature": 1.0}, {}, {"logit_bias": {3: 50}}, {"logprobs": 1}]
    states = [RowState(SamplingParams(**kind), [0]) for kind in kinds]  # type: ignore[arg-type]
    with_device, without = sample(logits, states, argmax), sample(logits, states)
    assert with_device == without
    assert asked == [[0, 2, 4]]
    with pytest.raises(DeviceError, match="expected finite logits, got nan in row 2"):
        logits[2, 7] = np.nan
        sample(logits, states, lambda rows: np.array([1, -1, 3], np.int32))
