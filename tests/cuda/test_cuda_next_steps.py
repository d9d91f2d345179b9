"""Steps that follow a decode step, each sequence a token further on: nobody gives their arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk import knobs
from sglk.errors import ArtifactError, DeviceError
from sglk.runtime.admission import Limits
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.request import SamplingParams
from sglk.runtime.run_ahead import likeliest_rows
from sglk.targets.artifact.program import Bucket
from sglk.targets.cuda.device import CudaExecutable
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.device import RepeatsSteps

Load = Callable[..., CudaExecutable]
TEXTS = [[3, 5, 7, 1, 8], [2], [4, 4, 4, 4, 4, 4, 4, 4, 4]]
PAGES = [1, 11, 21]


def greedy(toy: Any, text: list[int], count: int) -> list[int]:
    tokens = list(text)
    for _ in range(count):
        tokens.append(toy.next_token(tokens))
    return tokens[len(text) :]


def start(toy: Any, executable: CudaExecutable, count: int = 3) -> list[list[int]]:
    """Prompts, then a decode step that takes their first tokens by their places; these tokens."""
    rows = likeliest_rows(count)
    given = list(zip(TEXTS, PAGES, strict=True))[:count]
    executable.submit(toy.batch([(text, 0, page) for text, page in given]), rows)
    chunks = [([-1 - row], len(text), page) for row, (text, page) in enumerate(given)]
    executable.submit(toy.batch(chunks), rows)
    return [executable.collect().tolist()]


def test_a_step_that_follows_is_one_graph(load: Load, toy: Any, driver: NullDriver) -> None:
    with knobs.override(graphs="trust"):
        executable = load()
    start(toy, executable)
    driver.records.clear()
    assert executable.submit_next(likeliest_rows(3))
    kinds = [record.kind for record in driver.records if record.kind != "launch"]
    assert kinds == ["graph", "record"]


@pytest.mark.parametrize("mode", ["off", "check"])
def test_tokens_are_those_of_steps_with_arrays(load: Load, toy: Any, mode: str) -> None:
    with knobs.override(graphs=mode):
        executable = load()
    assert isinstance(executable, RepeatsSteps)
    found = start(toy, executable)
    for _ in range(2):  # as far as all pages go
        assert executable.submit_next(likeliest_rows(3))
        found.append(executable.collect().tolist())
    found.append(executable.collect().tolist())
    for row, text in enumerate(TEXTS):
        assert [tokens[row] for tokens in found] == greedy(toy, text, 4)


def test_what_no_decode_step_precedes_is_not_queued(load: Load, toy: Any) -> None:
    executable = load()
    rows = likeliest_rows(1)
    assert not executable.submit_next(rows)
    executable.submit(toy.batch([(TEXTS[0], 0, 1)]), rows)
    assert not executable.submit_next(rows), "that was a prompt"
    executable.submit(toy.batch([([-1], 5, 1)]), rows)
    executable.collect(), executable.collect()
    assert not executable.submit_next(rows.copy()), "rows that may have changed"
    executable.step(toy.batch([([7], 6, 1)]))
    assert not executable.submit_next(rows), "its tokens were not chosen ahead"


def test_memory_that_has_moved_is_not_read(load: Load, toy: Any) -> None:
    executable = load()
    start(toy, executable, 1)
    executable._memory.ensure(("arena", ""), 1 << 20)
    assert not executable.submit_next(likeliest_rows(1))


@pytest.mark.parametrize(("num_pages", "steps"), [(4, 1), (5, 5)])
def test_no_step_writes_beyond_the_last_page(
    load: Load, toy: Any, num_pages: int, steps: int
) -> None:
    """Whoever asks promises to stay within a page; foreign memory is safe in any case."""
    executable = load(num_pages=num_pages)
    rows: NDArray[np.void] = likeliest_rows(1)
    executable.submit(toy.batch([([3, 1], 0, 3)]), rows)
    executable.submit(toy.batch([([-1], 2, 3)]), rows)
    executable.collect()
    for _ in range(steps):
        assert executable.submit_next(rows)
        executable.collect()
    assert not executable.submit_next(rows)


def test_what_was_refused_is_not_followed(load: Load, toy: Any) -> None:
    """Slots take turns: refused arrays may lie where those of the last step were."""
    executable = load()
    start(toy, executable, 1)
    executable.collect()
    bad = toy.batch([([-1], 6, 1)])
    bad.slots[:] = -7
    for _ in range(3):
        with pytest.raises(DeviceError, match="step input slots"):
            executable.submit(bad, likeliest_rows(1))
    assert not executable.submit_next(likeliest_rows(1))


def test_a_step_that_failed_is_not_followed(
    load: Load, toy: Any, driver: NullDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device may have moved on, or not."""
    executable = load()
    start(toy, executable, 1)
    executable.collect()

    def fail(event: object, stream: object) -> None:
        raise DeviceError("cuda:null: record an event: launch failure")

    with monkeypatch.context() as broken, pytest.raises(DeviceError, match="launch failure"):
        broken.setattr(driver, "record", fail)
        executable.submit_next(likeliest_rows(1))
    assert not executable.submit_next(likeliest_rows(1))


def test_programs_that_know_nothing_of_following_steps_are_refused(load: Load, toy: Any) -> None:
    place = toy.place_program()
    older = dataclasses.replace(
        place,
        inputs=tuple(i for i in place.inputs if i.name in ("token_ids", "ids")),
        buckets=(Bucket(None, ()),),
    )
    others = [program for program in toy.PROGRAMS if program.entry != "place_tokens"]
    with pytest.raises(ArtifactError, match=r"an input turn, got \['ids', 'token_ids'\] \(compile"):
        load(programs=[*others, older])


def test_more_than_two_in_flight_are_refused(load: Load, toy: Any) -> None:
    executable = load()
    start(toy, executable)
    assert executable.submit_next(likeliest_rows(3))
    assert not executable.submit_next(likeliest_rows(3))
    with pytest.raises(DeviceError, match="at most 2 steps in flight"):
        executable.submit(toy.batch([([1], 0, 1)]), likeliest_rows(1))


def test_a_closed_executable_says_so(load: Load, toy: Any) -> None:
    executable = load()
    start(toy, executable)
    executable.close()
    assert not executable.submit_next(likeliest_rows(3))
    with pytest.raises(DeviceError, match="it is closed"):
        executable.collect()


def test_an_engine_asks_for_arrays_where_pages_change(
    load: Load, toy: Any, driver: NullDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with knobs.override(graphs="trust"):
        executable = load()
    answers: list[bool] = []
    submit_next = executable.submit_next

    def count(rows: NDArray[np.void]) -> bool:
        answers.append(submit_next(rows))
        return answers[-1]

    monkeypatch.setattr(executable, "submit_next", count)
    limits = Limits(page_size=toy.PAGE, num_pages=64, max_step_tokens=32, max_running=4)
    engine = Engine(Executor(executable, limits), limits)
    for number in range(2):  # in step with each other
        params = SamplingParams(max_tokens=40)
        engine.add_request(f"r{number}", [number, 1, 2], params)
    tokens: dict[str, list[int | None]] = {"r0": [], "r1": []}
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id].append(output.token_id)
    for number in range(2):
        assert tokens[f"r{number}"] == greedy(toy, [number, 1, 2], 40)
    assert all(answers) and len(answers) >= 40 * 3 // 4 - 3  # of four tokens one opens a page
