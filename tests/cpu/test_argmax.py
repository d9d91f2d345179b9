"""Greedy ids from the device: NumPy's, for every shape, tie and oddity of the values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.errors import DeviceError
from sglk.targets.artifact import Bucket, Program
from sglk.targets.cpu.device.greedy import Greedy
from sglk.targets.cpu.device.library import Library
from sglk.targets.device import HasArgmax, StepBatch

Chooser = Any
SIZES = [1, 3, 15, 16, 17, 64, 1000, 49152]


@pytest.fixture
def library(library_bytes: bytes) -> Iterator[Library]:
    library = Library("test", library_bytes)
    yield library
    library.close()


@pytest.fixture(params=["native", "numpy"])
def choose(request: pytest.FixtureRequest, library: Library, num_threads: int) -> Chooser:
    """`Greedy.choose` on a pool; also as it is with a library that has no argmax."""
    pool = library.create_pool(num_threads)
    if request.param == "numpy":
        library.argmax = None
    greedy = Greedy(library)

    def call(logits: NDArray[np.float32], rows: list[int]) -> list[int]:
        return cast(list[int], greedy.choose(pool, logits, np.array(rows, np.int32)).tolist())

    return call


@pytest.mark.parametrize("vocab", SIZES)
def test_ids_are_numpys(choose: Chooser, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.integers(-9, 9, (33, vocab)).astype(np.float32)  # many ties
    assert choose(logits, list(range(33))) == logits.argmax(axis=1).tolist()
    rows = [5, 5, 0, 32]
    assert choose(logits, rows) == logits[rows].argmax(axis=1).tolist()
    assert choose(logits, []) == []


def test_zeros_of_both_signs_and_infinite_losers_are_ordinary(choose: Chooser) -> None:
    logits = np.full((2, 40), -np.inf, np.float32)
    logits[0, [7, 30]] = -0.0, 0.0
    logits[1, 39] = -3e38
    assert choose(logits, [0, 1]) == [7, 39]


@pytest.mark.parametrize("place", [0, 17, 36])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_without_a_finite_largest_gives_no_id(
    choose: Chooser, place: int, value: float
) -> None:
    logits = np.zeros((3, 37), np.float32)
    logits[1, place] = value
    logits[2] = -np.inf
    assert choose(logits, [0, 1, 2]) == [0, -1, -1]


def test_rows_that_the_step_has_not_are_refused(choose: Chooser) -> None:
    with pytest.raises(DeviceError, match=r"rows of the last step's 2 logits, got \[2\]"):
        choose(np.zeros((2, 4), np.float32), [2])
    with pytest.raises(DeviceError, match=r"got \[0, -1\]"):
        choose(np.zeros((2, 4), np.float32), [0, -1])


def _step_program(toy: Any) -> Program:
    names = {"token_ids": "tokens", "logit_rows": "rows"}
    buffers = [toy.buffer("input", name, "i32", dim) for name, dim in names.items()]
    buffers += [toy.buffer("output", "logits", "f32", "rows", "3")]
    buffers += [toy.buffer("state", "kv", "i32", "num_pages")]
    args = ("buffer token_ids", "buffer logit_rows", "buffer logits", "state kv", "i32 3")
    call = toy.call("toy_logits", "rows", *args)
    return cast(
        Program, toy.program("step", "tokens seqs pages rows", buffers, Bucket(None, (call,)))
    )


def test_an_executable_offers_it_for_its_last_step(toy: Any) -> None:
    with toy.load(_step_program(toy)) as executable:
        greedy: HasArgmax = executable
        none = np.zeros(0, np.int32)
        assert greedy.argmax(none).tolist() == []
        one = np.array([1], np.int32)
        batch = StepBatch(
            token_ids=one, positions=one, slots=one, query_start=np.array([0, 1], np.int32),
            seq_lens=np.array([2], np.int32), page_table=np.array([[1]], np.int32),
            logit_rows=np.array([0], np.int32),
        )  # fmt: skip
        logits = executable.step(batch)
        assert executable.argmax(np.array([0], np.int32)).tolist() == [int(logits[0].argmax())]
    with pytest.raises(DeviceError, match="closed"):
        executable.argmax(np.array([0], np.int32))
