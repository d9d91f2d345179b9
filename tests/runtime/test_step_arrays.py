"""Arrays of steps that follow each other, and tokens that a request has not yet got."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sglk.runtime.answer import Live, Lives, Timing
from sglk.runtime.batch import BatchBuffers, Chunk, Plan
from sglk.runtime.page_pool import Page
from sglk.runtime.request import Request, SamplingParams, place_of
from sglk.runtime.sampler import RowState

SIZE = 4


def decoding(request: Request) -> Chunk:
    return Chunk(request, request.num_computed, request.num_tokens, True)


def fill_afresh(plan: Plan) -> dict[str, np.ndarray]:
    """What buffers give that have seen no step before."""
    return vars(BatchBuffers(SIZE, 64, 8).fill(plan))


@pytest.mark.parametrize("seed", range(4))
def test_a_step_like_the_last_has_the_arrays_of_a_new_one(seed: int) -> None:
    rng = random.Random(seed)
    pages = iter(range(1, 1000))
    buffers = BatchBuffers(SIZE, 64, 8)
    requests = []
    for number in range(5):
        request = Request(f"r{number}", [1] * rng.randrange(1, 9), max_new=60)
        count = -(-request.num_tokens // SIZE)
        request.add_pages([Page(next(pages), 0) for _ in range(count)])
        request.num_computed = request.num_tokens - 1
        requests.append(request)
    for _ in range(30):
        chosen = requests if rng.random() < 0.8 else rng.sample(requests, 3)
        plan = Plan([decoding(request) for request in chosen], len(chosen))
        got, wanted = vars(buffers.fill(plan)), fill_afresh(plan)
        for name, array in wanted.items():
            assert np.array_equal(got[name], array), name
        if rng.random() < 0.2:
            continue  # the step failed: the same again
        for request in chosen:
            request.num_computed += 1
            request.append(rng.randrange(2, 99))
            if request.num_tokens > SIZE * len(request.pages):
                request.add_pages([Page(next(pages), 0)])


def test_tokens_show_the_place_of_one_in_flight_until_it_lands() -> None:
    request = Request("r", [5, 6], max_new=9)
    request.append(7)
    request.append(place_of(3))
    assert request.tokens.tolist() == [5, 6, 7, -4]
    request.last_token = request.latest[-1] = 8
    assert request.tokens.tolist() == [5, 6, 7, 8]
    for token in range(10, 16):
        request.append(token)
    assert request.tokens.tolist() == [5, 6, 7, 8, *range(10, 16)]
    assert request.page_keys(4, 2) == [
        np.array(ids, np.int32).tobytes() for ids in ([5, 6, 7, 8], [10, 11, 12, 13])
    ]
    assert not request.num_in_flight and not request.latest


def test_requests_that_want_more_than_the_likeliest_token_are_known_apart() -> None:
    lives = Lives()
    for id, params in (("a", SamplingParams()), ("b", SamplingParams(temperature=0.7))):
        lives[id] = Live(Request(id, [1], 4), RowState(params, [1]), None, Timing(0.0))
    assert set(lives.special) == {"b"}
    del lives["b"], lives["a"]
    assert not lives.special and not lives
