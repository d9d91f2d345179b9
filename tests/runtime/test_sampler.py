"""The sampler against a naive one that sorts the whole vocabulary, and against its distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sglk.errors import DeviceError
from sglk.runtime.philox import UniformStream, philox4x32, uniforms
from sglk.runtime.request import SamplingParams
from sglk.runtime.sampler import RowState, sample, token_logprob

Floats = NDArray[np.float32]


def rows(count: int, vocab: int, seed: int = 0, scale: float = 3) -> Floats:
    values = np.random.default_rng(seed).standard_normal((count, vocab)) * scale
    return values.astype(np.float32)


def naive_distribution(row: Floats, params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities after temperature, top-k, top-p and min-p, by full sorts in f64."""
    x = row.astype(np.float64) / params.temperature
    p = np.exp(x - x.max())
    order = np.argsort(-p, kind="stable")
    if params.top_k:
        p[order[params.top_k :]] = 0
    reach = np.searchsorted(np.cumsum(p[order]), params.top_p * p.sum()) + 1
    p[order[reach:]] = 0
    p[p < params.min_p * p.max()] = 0
    return np.asarray(p / p.sum())


KNOWN = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    words = np.array([[int(word, 16)] for word in counter.split()], dtype=np.uint64)
    k0, k1 = (int(word, 16) for word in key.split())
    found = philox4x32(words, (k0, k1))[:, 0]
    assert [int(word) for word in found] == [int(word, 16) for word in expected.split()]


def test_numbers_depend_on_seed_request_and_position_alone() -> None:
    stream = UniformStream(2**63 + 5, 3)
    places = np.array([7, 1000, 2, 64, 63, 2**33])
    expected = uniforms(2**63 + 5, 3, places)
    assert [stream.at(int(place)) for place in places] == expected.tolist()
    assert len({*expected, *uniforms(1, 3, places), *uniforms(2**63 + 5, 4, places)}) == 18


def test_numbers_are_uniform() -> None:
    values = uniforms(1, 0, np.arange(20_000))
    assert ((values >= 0) & (values < 1)).all()
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert (np.abs(counts - 1000) < 150).all()


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 500]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(chosen=params, vocab=st.sampled_from([1, 5, 63, 64, 300, 5000]), seed=st.integers(0, 99))
def test_draws_are_the_inverse_of_the_naive_distribution(
    chosen: SamplingParams, vocab: int, seed: int
) -> None:
    row = np.round(rows(1, vocab, seed), 1)  # rounded: many ties
    state = RowState(chosen, [0] * (seed + 1), seed=chosen.seed or 0)
    token = sample(row, [state]).token_ids[0]
    p = naive_distribution(row[0], chosen)
    sums = np.cumsum(p)
    uniform = uniforms(chosen.seed or 0, 0, np.array([seed + 1]))[0]
    assert p[token] > 0
    assert sums[token] - p[token] - 1e-5 <= uniform <= sums[token] + 1e-5


def test_frequencies_match_the_probabilities() -> None:
    row = rows(1, 12, 5, scale=1.5)
    chosen = SamplingParams(temperature=0.9, top_p=0.95)
    states = [RowState(chosen, [0] * n, seed=3) for n in range(2500)]
    ids = sample(np.repeat(row, 2500, axis=0), states).token_ids
    share = np.bincount(ids, minlength=12) / 2500
    assert np.abs(share - naive_distribution(row[0], chosen)).max() < 0.03


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = rows(6, 700)
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=1),
        SamplingParams(temperature=0.7, top_k=9),
        SamplingParams(temperature=1.2, top_p=0.8),
        SamplingParams(presence_penalty=1.5, logprobs=2),
        SamplingParams(temperature=1, min_p=0.1, logit_bias={3: 5}),
    ]

    def states() -> list[RowState]:
        return [RowState(kind, [1, 2, 3], seed=11) for kind in kinds]

    together = sample(logits, states())
    for row, state in enumerate(states()):
        alone = sample(logits[row : row + 1], [state])
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs[0] == together.logprobs[row]


def test_ties_go_to_the_lowest_id() -> None:
    logits = np.zeros((3, 200), dtype=np.float32)
    logits[:, [7, 90, 150]] = 2
    greedy, top1, top2 = (
        SamplingParams(),
        SamplingParams(temperature=5, top_k=1),
        SamplingParams(temperature=5, top_k=2, seed=1),
    )
    found = sample(logits, [RowState(kind, [0]) for kind in (greedy, top1, top2)]).token_ids
    assert found[:2] == [7, 7] and found[2] in (7, 90)


def test_a_tiny_temperature_is_greedy() -> None:
    logits = rows(1, 50)
    state = RowState(SamplingParams(temperature=1e-30), [0])
    assert sample(logits, [state]).token_ids[0] == int(logits[0].argmax())


def test_penalties_follow_prompt_and_answer() -> None:
    logits = np.array([[2.0, 1.9, -1.0, 1.0]], dtype=np.float32)
    state = RowState(SamplingParams(repetition_penalty=2), [0, 2])
    assert sample(logits, [state]).token_ids == [1]  # 2/2 is less than 1.9
    state.append(1)
    assert sample(logits, [state]).token_ids == [0]  # 1, 0.95, -2, 1: a tie
    state = RowState(SamplingParams(presence_penalty=0.2), [0])
    assert sample(logits, [state]).token_ids == [0]  # the prompt does not count
    state.append(0)
    assert sample(logits, [state]).token_ids == [1]
    state = RowState(SamplingParams(frequency_penalty=0.06), [3])
    state.append(0)
    assert sample(logits, [state]).token_ids == [0]
    state.append(0)
    assert sample(logits, [state]).token_ids == [1]


def test_penalties_equal_a_naive_history() -> None:
    chosen = SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.25, logit_bias={5: 1.5}
    )
    prompt, answer = [3, 3, 9, 60], [int(x) for x in rows(1, 200, 8)[0].astype(np.int64) % 64]
    state = RowState(chosen, prompt)
    for token in answer:
        state.append(token)
    row = rows(1, 64, 2)
    expected = row[0].copy()
    expected[5] += np.float32(1.5)
    for token in {*prompt, *answer}:
        value = expected[token]
        value = value / np.float32(1.3) if value > 0 else value * np.float32(1.3)
        value -= np.float32(answer.count(token) * 0.25) + np.float32(0.4) * (token in answer)
        expected[token] = value
    before = row.copy()
    assert sample(row, [state]).token_ids == [int(expected.argmax())]
    assert (row == before).all(), "the device's logits were changed"


def test_bias_can_force_and_forbid() -> None:
    logits = rows(1, 30)
    best = int(logits[0].argmax())
    assert sample(logits, [RowState(SamplingParams(logit_bias={4: 100}), [0])]).token_ids == [4]
    banned = sample(logits, [RowState(SamplingParams(logit_bias={best: -100}), [0])])
    assert banned.token_ids != [best]


def test_logprobs_are_those_of_the_model() -> None:
    logits = rows(1, 300)
    state = RowState(SamplingParams(temperature=0.5, logprobs=5, logit_bias={2: 100}), [0])
    found = sample(logits, [state]).logprobs[0]
    exact = logits[0].astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum())
    assert found is not None and found.token_id == 2
    assert found.logprob == pytest.approx(exact[2], abs=1e-5)
    order = np.argsort(-exact, kind="stable")[:5]
    assert [token for token, _ in found.top] == order.tolist()
    assert [value for _, value in found.top] == pytest.approx(exact[order].tolist(), abs=1e-5)


def test_logprobs_may_ask_for_more_than_there_are() -> None:
    found = token_logprob(np.array([0.0, 1.0], dtype=np.float32), 1, 100)
    assert [token for token, _ in found.top] == [1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_the_devices_fault(bad: float) -> None:
    logits = rows(2, 40)
    logits[1, 17] = bad
    states = [RowState(SamplingParams(), [0])] * 2
    with pytest.raises(DeviceError, match=r"expected finite logits, got (nan|inf) in row 1"):
        sample(logits, states)


def test_the_device_draws_what_the_raw_logits_decide() -> None:
    """Rows with penalties stay here; the others go in one call, and -1 is the device's fault."""
    logits, calls = rows(4, 30), []

    def draw(asked: NDArray[np.void]) -> NDArray[np.int32]:
        calls.append(asked.tolist())
        return np.array([7, -1 if len(calls) > 1 else 8], np.int32)

    states = [
        RowState(SamplingParams(temperature=0.5, top_k=4, min_p=0.5), [0, 1], seed=3),
        RowState(SamplingParams(), [0]),
        RowState(SamplingParams(temperature=1.0, presence_penalty=1.0), [0], seed=3),
        RowState(SamplingParams(temperature=2.0, top_p=0.5), [0], seed=4),
    ]
    without = sample(logits, states).token_ids
    assert sample(logits, states, draw=draw).token_ids == [7, without[1], without[2], 8]
    (first, second) = calls[0]
    assert first == (0, 4, 0.5, np.float32(np.log(0.5)), 1.0, UniformStream(3, 0).at(2))
    assert second == (3, 0, 2.0, -np.inf, 0.5, UniformStream(4, 0).at(1))
    with pytest.raises(DeviceError, match="in row 3"):
        sample(logits, states, draw=draw)


def test_no_rows_are_no_tokens() -> None:
    assert sample(np.zeros((0, 10), dtype=np.float32), []).token_ids == []
