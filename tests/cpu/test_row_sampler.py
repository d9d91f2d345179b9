"""Tokens from the device: NumPy's, for every shape, tie and oddity of the values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.errors import DeviceError
from sglk.runtime.request import SamplingParams
from sglk.runtime.sampler import RowState, sample
from sglk.targets.artifact import Bucket, Program
from sglk.targets.cpu.device.library import Library
from sglk.targets.cpu.device.row_sampler import RowSampler
from sglk.targets.device import SAMPLED_ROW, HasArgmax, HasSample, StepBatch

Chooser = Any
SIZES = [1, 3, 15, 16, 17, 64, 1000, 49152]


@pytest.fixture
def library(library_bytes: bytes) -> Iterator[Library]:
    library = Library("test", library_bytes)
    yield library
    library.close()


@pytest.fixture(params=["native", "numpy"])
def choose(request: pytest.FixtureRequest, library: Library, num_threads: int) -> Chooser:
    """`RowSampler.argmax` on a pool; also as it is with a library that has no argmax."""
    pool = library.create_pool(num_threads)
    if request.param == "numpy":
        library.argmax = None
    sampler = RowSampler(library)

    def call(logits: NDArray[np.float32], rows: list[int]) -> list[int]:
        return cast(list[int], sampler.argmax(pool, logits, np.array(rows, np.int32)).tolist())

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


def _sampled_rows(states: list[RowState]) -> NDArray[np.void]:
    return np.array([s.as_sampled_row(row) for row, s in enumerate(states)], SAMPLED_ROW)


def _states(rng: np.random.Generator, count: int) -> list[RowState]:
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.3, 1.0, 2.0])),
            top_k=int(rng.choice([0, 1, 5, 40, 1000])),
            top_p=float(rng.choice([0.1, 0.5, 0.9, 0.99, 1.0])),
            min_p=float(rng.choice([0.0, 0.0, 0.05, 0.5, 1.0])),
        )
        for _ in range(count)
    ]
    return [RowState(p, [0] * int(rng.integers(1, 99)), int(rng.integers(2**62))) for p in params]


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("scale", [0.5, 3.0, 30.0])
def test_sampled_tokens_are_the_runtimes(library: Library, vocab: int, scale: float) -> None:
    """Cuts of every kind, ties included, on one thread and on three."""
    rng = np.random.default_rng(vocab)
    sampler, pools = RowSampler(library), [library.create_pool(1), library.create_pool(3)]
    for is_tied in (False, True):
        logits = (rng.standard_normal((24, vocab)) * scale).astype(np.float32)
        logits = np.round(logits) if is_tied else logits
        states = _states(rng, 24)
        expected = sample(logits, states).token_ids
        for pool in pools:
            found = sampler.sample(pool, logits, _sampled_rows(states)).tolist()
            assert found == expected


def test_wide_cuts_of_a_flat_row_are_the_runtimes(library: Library) -> None:
    """Nuclei and top-k of most of a vocabulary, beyond what fits on the stack."""
    logits = np.random.default_rng(3).standard_normal((4, 300_000)).astype(np.float32)
    kinds: list[dict[str, Any]] = [
        {"top_p": 0.999},
        {"top_k": 250_000},
        {"top_p": 0.5},
        {"min_p": 0.001},
    ]
    states = [RowState(SamplingParams(temperature=1.5, **kind), [0], 7) for kind in kinds]
    found = RowSampler(library).sample(library.create_pool(2), logits, _sampled_rows(states))
    assert found.tolist() == sample(logits, states).token_ids


def test_draws_follow_the_distribution(library: Library) -> None:
    logits = np.log(np.array([[1, 2, 3, 4]], np.float32))
    rows = np.zeros(20_000, SAMPLED_ROW)
    rows["temperature"], rows["top_p"], rows["lowest"] = 1, 1, -np.inf
    rows["uniform"] = (np.arange(20_000) + 0.5) / 20_000
    found = RowSampler(library).sample(library.create_pool(2), logits, rows)
    assert np.abs(np.bincount(found) - [2000, 4000, 6000, 8000]).max() <= 1


def test_rows_that_cannot_be_sampled_give_no_id(library: Library) -> None:
    logits = np.zeros((3, 70), np.float32)
    logits[0, 69], logits[1, 3], logits[2, :] = np.nan, np.inf, -np.inf
    states = [RowState(SamplingParams(temperature=1.0), [0], 1)] * 3
    sampler, pool = RowSampler(library), library.create_pool(1)
    assert sampler.sample(pool, logits, _sampled_rows(states)).tolist() == [-1, -1, -1]
    with pytest.raises(DeviceError, match="expected SAMPLED_ROW"):
        sampler.sample(pool, logits, np.zeros(1, np.int32))
    with pytest.raises(DeviceError, match="sample: expected rows of the last step's 2 logits"):
        sampler.sample(pool, logits[:2], _sampled_rows(states))


def test_a_library_of_the_first_release_says_that_it_cannot_sample(library: Library) -> None:
    library.sample = None
    sampler = RowSampler(library)
    assert not sampler.can_sample
    with pytest.raises(DeviceError, match="compile the model again"):
        sampler.sample(
            library.create_pool(1), np.zeros((1, 4), np.float32), np.zeros(0, SAMPLED_ROW)
        )


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
        random: HasSample = executable
        assert random.can_sample
        none = np.zeros(0, np.int32)
        assert greedy.argmax(none).tolist() == []
        one = np.array([1], np.int32)
        batch = StepBatch(
            token_ids=one, positions=one, slots=one, query_start=np.array([0, 1], np.int32),
            seq_lens=np.array([2], np.int32), page_table=np.array([[1]], np.int32),
            logit_rows=np.array([0], np.int32),
        )  # fmt: skip
        logits = executable.step(batch)
        assert greedy.argmax(np.array([0], np.int32)).tolist() == [int(logits[0].argmax())]
        rows = np.zeros(1, SAMPLED_ROW)
        rows["temperature"], rows["top_k"] = 1, 1
        assert random.sample(rows).tolist() == [int(logits[0].argmax())]
    with pytest.raises(DeviceError, match="closed"):
        executable.argmax(np.array([0], np.int32))
