"""Steps queued ahead of the host give what steps one by one give."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sglk.errors import DeviceError
from sglk.runtime.admission import Limits
from sglk.runtime.answer import Output
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.request import SamplingParams
from sglk.runtime.truncation import choose
from sglk.targets.device import StepBatch

VOCAB = 23
Answers = dict[str, tuple[list[int | None], str]]


def make_ahead(fake: SimpleNamespace, **limits: int) -> tuple[Engine, Any]:
    """An engine on a `HashDevice` that computes a step as late as it may: when it is collected."""

    class AheadDevice(fake.HashDevice):  # type: ignore[misc, name-defined]
        can_run_ahead = True

        def __init__(self, *args: int) -> None:
            super().__init__(*args)
            self.queue: deque[tuple[StepBatch, NDArray[np.void]]] = deque()
            self.last = np.zeros(0, np.int32)
            self.deepest = self.placed = self.repeated = 0
            self.bad_row = -1

        def submit(self, batch: StepBatch, rows: NDArray[np.void]) -> None:
            assert rows["row"].tolist() == list(range(len(batch.logit_rows)))
            copy = StepBatch(**{name: array.copy() for name, array in vars(batch).items()})
            self.queue.append((copy, rows.copy()))
            self.deepest = max(self.deepest, len(self.queue))
            assert len(self.queue) <= 2

        def submit_next(self, rows: NDArray[np.void]) -> bool:
            before, _ = self.queue[-1]
            if rows.flags.writeable or len(before.positions) != len(before.seq_lens):
                return False
            self.submit(a_token_on(before), rows)
            self.repeated += 1
            return True

        def collect(self) -> NDArray[np.int32]:
            batch, rows = self.queue.popleft()
            places = batch.token_ids < 0
            self.placed += int(places.sum())
            chosen = self.last[-1 - batch.token_ids[places]]
            batch.token_ids[places] = np.maximum(chosen, 0)
            try:
                logits = self.step(batch)
            except OSError as error:
                self.queue.clear()
                raise DeviceError(str(error)) from error
            pairs = zip(logits, rows, strict=True)
            self.last = np.array([self._pick(row, how) for row, how in pairs], np.int32)
            if self.bad_row >= 0:
                self.last[self.bad_row], self.bad_row = -1, -1
            return self.last

        def _pick(self, logits: NDArray[np.float32], how: np.void) -> int:
            if how["top_k"] == 1:
                return int(logits.argmax())
            row = (logits - logits.max()) / how["temperature"]
            params = SimpleNamespace(
                top_k=int(how["top_k"]),
                top_p=float(how["top_p"]),
                min_p=float(np.exp(how["lowest"])),
            )
            return choose(row, params, float(how["uniform"]))  # type: ignore[arg-type]

    chosen = {"page_size": 4, "num_pages": 24, "max_step_tokens": 16, "max_running": 6, **limits}
    bounds = Limits(**chosen)  # type: ignore[arg-type]
    device = AheadDevice(bounds.num_pages, bounds.page_size, bounds.max_step_tokens, VOCAB)
    return Engine(Executor(device, bounds), bounds), device


def a_token_on(before: StepBatch) -> StepBatch:
    """A decode step that continues another within its pages."""
    batch = StepBatch(**{name: array.copy() for name, array in vars(before).items()})
    batch.token_ids[:] = -1 - np.arange(len(batch.token_ids))
    for array in (batch.positions, batch.slots, batch.seq_lens):
        array += 1
    return batch


def drive(engine: Engine, arrivals: list[tuple[int, list[int], SamplingParams, int]]) -> Answers:
    """Requests by the step they arrive in; ``int`` last: the step at which it is aborted, or -1."""
    tokens: dict[str, list[int | None]] = {}
    reasons: dict[str, str] = {}
    step = 0
    while engine.has_work or step <= max(at for at, *_ in arrivals):
        for number, (at, prompt, params, _) in enumerate(arrivals):
            if at == step:
                engine.add_request(f"r{number}", prompt, params)
                tokens[f"r{number}"] = []
        for number, (*_, abort_at) in enumerate(arrivals):
            if abort_at == step and engine.abort(f"r{number}"):
                reasons[f"r{number}"] = "abort"
        for output in engine.step():
            tokens[output.request_id].append(output.token_id)
            if output.finish_reason:
                reasons[output.request_id] = output.finish_reason
        if step % 3 == 0:  # it brings requests up to date, which nobody else may do for a while
            engine.scheduler.check()
        step += 1
        assert step < 3000, "no progress"
    assert engine.scheduler.kv.pool.num_held == 0
    return {name: (tokens[name], reasons[name]) for name in tokens}


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=20)
sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.0, 0.9]),
    top_k=st.sampled_from([0, 3]),
    seed=st.integers(0, 5),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=4),
    min_tokens=st.just(0),
    logprobs=st.sampled_from([None, None, None, 1]),
)
arrivals = st.lists(
    st.tuples(st.integers(0, 8), prompts, sampling, st.just(-1)), min_size=1, max_size=9
)


@settings(max_examples=60, deadline=None)
@given(arrivals=arrivals, pages=st.integers(9, 24), repeats=st.booleans())
def test_the_same_tokens_as_one_step_at_a_time(
    fake: SimpleNamespace, arrivals: list[Any], pages: int, repeats: bool
) -> None:
    ahead, device = make_ahead(fake, num_pages=pages)
    if not repeats:
        ahead._executor._repeats = None
    plain, _ = make_ahead(fake, num_pages=pages)
    plain._executor.can_run_ahead = False
    assert drive(ahead, arrivals) == drive(plain, arrivals)
    assert not device.queue


def test_the_device_never_waits_for_a_token(fake: SimpleNamespace) -> None:
    engine, device = make_ahead(fake)
    answers = drive(engine, [(0, [1, 2, 3], SamplingParams(max_tokens=10), -1)])
    assert answers["r0"] == (fake.expected_tokens([1, 2, 3], 10, VOCAB), "length")
    assert device.deepest == 2 and device.placed == 9
    assert device.num_steps == 10  # none is computed for nothing where the end is known


def test_a_stop_token_costs_one_step_and_no_token(fake: SimpleNamespace) -> None:
    engine, device = make_ahead(fake)
    expected = fake.expected_tokens([5, 6], 6, VOCAB)
    params = SamplingParams(max_tokens=50, stop_token_ids=[expected[5]])
    tokens, reason = drive(engine, [(0, [5, 6], params, -1)])["r0"]
    assert reason == "stop" and tokens == expected[: expected.index(expected[5]) + 1]
    assert device.num_steps == len(tokens) + 1


@pytest.mark.parametrize("at", range(4, 8))
def test_a_token_that_ends_only_others_breaks_a_run_and_no_more(
    fake: SimpleNamespace, at: int
) -> None:
    """The device repeats steps, so the arrays of the host lag when the run begins again."""
    engine, device = make_ahead(fake)
    expected = fake.expected_tokens([1, 1], 12, VOCAB)
    others = fake.expected_tokens([3, 14], 12, VOCAB)
    assert expected[at] not in others
    goes_on = SamplingParams(max_tokens=12)
    ends = SamplingParams(max_tokens=12, stop_token_ids=[expected[at]])
    answers = drive(engine, [(0, [1, 1], goes_on, -1), (0, [3, 14], ends, -1)])
    assert answers == {"r0": (expected, "length"), "r1": (others, "length")}
    assert device.repeated > 2


@pytest.mark.parametrize("abort_at", [1, 2, 3])
def test_an_abort_in_flight_leaves_the_others_alone(fake: SimpleNamespace, abort_at: int) -> None:
    engine, _ = make_ahead(fake)
    params = SamplingParams(max_tokens=8)
    answers = drive(engine, [(0, [1, 2], params, abort_at), (0, [3, 4, 5], params, -1)])
    assert answers["r0"][1] == "abort"
    assert answers["r1"] == (fake.expected_tokens([3, 4, 5], 8, VOCAB), "length")


def test_logits_that_are_not_finite_end_their_own_request(fake: SimpleNamespace) -> None:
    engine, device = make_ahead(fake)
    device.bad_row = 0
    params = SamplingParams(max_tokens=5)
    answers = drive(engine, [(0, [1, 2], params, -1), (0, [3, 4, 5], params, -1)])
    assert answers["r0"] == ([None], "error")
    assert answers["r1"] == (fake.expected_tokens([3, 4, 5], 5, VOCAB), "length")


def test_a_device_that_fails_ends_what_was_in_flight(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, device = make_ahead(fake)
    engine.add_request("a", [1, 2, 3, 4, 5], SamplingParams(max_tokens=9))
    engine.step()
    device.failures = 1
    with pytest.raises(DeviceError, match="the device is gone"):
        engine.step()
    (output,) = engine.step()
    assert (output.request_id, output.finish_reason, output.token_id) == ("a", "error", None)
    assert output.error is not None and "gone" in output.error
    assert not engine.has_work and engine.stats().pages_cached == 0
    again = drive(engine, [(0, [1, 2, 3, 4, 5], SamplingParams(max_tokens=9), -1)])
    assert again["r0"] == (fake.expected_tokens([1, 2, 3, 4, 5], 9, VOCAB), "length")


def test_rows_that_need_the_host_are_run_one_by_one(fake: SimpleNamespace) -> None:
    engine, device = make_ahead(fake)
    params = SamplingParams(max_tokens=6, logprobs=2)
    answers = drive(engine, [(0, [7, 8], params, -1)])
    assert answers["r0"][0] == fake.expected_tokens([7, 8], 6, VOCAB)
    assert device.deepest == 0


def test_a_prompt_whose_last_token_comes_alone_notes_its_first_token(fake: SimpleNamespace) -> None:
    """The rest of a prompt looks like decoding, so a run may begin with it."""
    engine, _ = make_ahead(fake, max_step_tokens=8)
    engine.add_request("a", list(range(9)), SamplingParams(max_tokens=12))
    outputs: list[Output] = []
    while not outputs:
        outputs = engine.step()
    assert outputs[0].timing.first_token is not None
