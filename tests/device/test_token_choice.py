"""Tokens from logits against the runtime's own sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.runtime.request import SamplingParams
from sglk.runtime.sampler import History, RowState, _processed
from sglk.runtime.token_mask import forbid
from sglk.runtime.truncation import choose
from sglk.targets.kernels import adjust_logits, argmax_rows, draw_rows

pytestmark = pytest.mark.device
Launch = Callable[..., None]
Array = NDArray[Any]


@dataclass(frozen=True)
class Sizes:
    vocab: int
    chunk: int
    tile: int
    room: int
    options: dict[str, int]

    @property
    def parts(self) -> int:
        return -(-self.vocab // self.chunk)

    @property
    def groups(self) -> int:
        return self.parts * self.chunk // 64


SMALL = Sizes(500, 64, 256, 256, {})
LARGE = Sizes(128256, 4096, 1024, 8192, {"num_warps": 8})


def argmax(launch: Launch, logits: Array, sizes: Sizes) -> Array:
    rows = len(logits)
    bests = np.full((rows, sizes.parts), np.nan, np.float32)
    places, tokens = np.full((rows, sizes.parts), -7, np.int32), np.full(rows, -7, np.int32)
    constants = {"VOCAB": sizes.vocab, "CHUNK": sizes.chunk, "PDL": False}
    given = {"bests": bests, "places": places}
    launch(argmax_rows.best_of_parts, (sizes.parts, rows, 1), constants, logits=logits, **given)
    block = 1 << (sizes.parts - 1).bit_length()
    constants = {"PARTS": sizes.parts, "BLOCK": block, "PDL": False}
    landing, turn = np.full((3, rows + 2), -7, np.int32), np.array([0, 0, 2, 3, rows + 2, 2, 9, 9])
    turn = turn.astype(np.int32)
    given |= {"turn": turn, "landing": landing}
    launch(argmax_rows.best_of_row, (rows, 1, 1), constants, **given, tokens=tokens)
    assert landing[2, :rows].tolist() == tokens.tolist() and (landing[:2] == -7).all()
    assert (landing[2, rows:] == -7).all() and turn.tolist() == [1, 0, 0, 3, rows + 2, 2, 9, 9]
    return tokens


def awkward_rows(vocab: int) -> tuple[Array, list[int]]:
    logits = np.random.default_rng(1).standard_normal((7, vocab), dtype=np.float32)
    logits[0, [vocab - 1, vocab // 3]] = 9.0
    logits[1, 400] = np.nan
    logits[2, 5] = np.inf
    logits[3] = -np.inf
    logits[4] = -np.inf
    logits[4, vocab - 2] = -3e38
    logits[5] = 0.0
    best = logits[6].argmax()
    return logits, [vocab // 3, -1, -1, -1, vocab - 2, 0, int(best)]


def test_argmax(launch: Launch) -> None:
    logits, expected = awkward_rows(SMALL.vocab)
    assert argmax(launch, logits, SMALL).tolist() == expected


def test_argmax_of_a_large_vocabulary(on_gpu: Launch) -> None:
    logits, expected = awkward_rows(LARGE.vocab)
    assert argmax(on_gpu, logits, LARGE).tolist() == expected


@dataclass(frozen=True)
class Rows:
    """Logits and how each row is to be drawn."""

    logits: Array
    heat: Array
    top_k: Array
    top_p: Array
    min_p: Array
    uniform: Array

    def expected(self) -> list[int]:
        tokens = []
        for row, logits in enumerate(self.logits):
            x = (logits - logits.max()) / np.float32(self.heat[row])
            params = SamplingParams(
                temperature=float(self.heat[row]),
                top_k=int(self.top_k[row]),
                top_p=max(float(self.top_p[row]), 1e-30),
                min_p=float(self.min_p[row]),
            )
            tokens.append(choose(x, params, float(self.uniform[row])))
        return tokens


def draw(launch: Launch, rows: Rows, sizes: Sizes) -> list[int]:
    count = len(rows.logits)
    with np.errstate(divide="ignore"):
        lowest = np.log(rows.min_p).astype(np.float32)
    between = {
        "largest": np.full((count, sizes.groups), np.nan, np.float32),
        "mass": np.full((count, sizes.groups), np.nan, np.float32),
    }
    given = {
        "logits": rows.logits,
        "top_k": rows.top_k.astype(np.int32),
        "temperature": rows.heat.astype(np.float32),
    }
    constants = {"VOCAB": sizes.vocab, "CHUNK": sizes.chunk, "PDL": False}
    grid = (sizes.parts, count, 1)
    launch(draw_rows.group_rows, grid, constants, sizes.options, **given, **between)
    tokens = np.full(count, -7, np.int32)
    constants |= {"ROOM": sizes.room, "TILE": sizes.tile}
    constants["BLOCK"] = 1 << (sizes.groups - 1).bit_length()
    launch(
        draw_rows.draw_rows,
        (count, 1, 1),
        constants,
        sizes.options,
        **given,
        **between,
        lowest=lowest,
        top_p=rows.top_p,
        uniform=rows.uniform,
        lists=np.full((count, sizes.groups + sizes.room), -7, np.int32),
        tokens=tokens,
    )
    return tokens.tolist()


CUTS = [
    (0, 1.0, 0.0), (1, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.1), (50, 0.95, 0.02),
    (500, 0.5, 0.0), (0, 0.0, 0.0), (0, 0.999, 0.0), (3, 0.7, 0.5),
]  # fmt: skip
"""top_k, top_p, min_p"""


def random_rows(sizes: Sizes, count: int, seed: int) -> Rows:
    """Sharp and flat rows, rows full of ties, rows with most tokens forbidden."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((count, sizes.vocab)) * rng.choice([0.1, 1, 3, 8], (count, 1))
    logits[1::4] = np.round(logits[1::4])
    logits[2::5, rng.random(sizes.vocab) < 0.7] = -np.inf
    cuts = np.array([CUTS[i % len(CUTS)] for i in range(count)])
    heat = rng.choice([0.3, 0.7, 1.0, 1.5], count)
    top_k, top_p, min_p = cuts.T.copy()
    return Rows(logits.astype(np.float32), heat, top_k, top_p, min_p, rng.random(count))


def test_draws_are_the_runtimes(launch: Launch) -> None:
    rows = random_rows(SMALL, 10, seed=4)
    assert draw(launch, rows, SMALL) == rows.expected()


def test_draws_from_a_large_vocabulary(on_gpu: Launch) -> None:
    """A draw may differ where it falls within a rounding of a boundary: about one in a million."""
    for seed in range(4):
        rows = random_rows(LARGE, 100, seed)
        pairs = zip(draw(on_gpu, rows, LARGE), rows.expected(), strict=True)
        assert sum(got != wanted for got, wanted in pairs) <= 1


def test_rows_without_a_finite_best_give_no_token(on_gpu: Launch) -> None:
    logits, best = awkward_rows(LARGE.vocab)
    ones = np.ones(len(logits))
    for top_k in (0, 1, 40):
        rows = Rows(logits, ones, ones * top_k, ones, ones * 0, ones * 0.5)
        got = draw(on_gpu, rows, LARGE)
        assert [token < 0 for token in got] == [token < 0 for token in best]


def lists(parts: list[Array], dtype: type) -> tuple[Array, Array]:
    """Starts and entries; one entry of padding, so that no list is empty memory."""
    starts = np.cumsum([0, *(len(part) for part in parts)]).astype(np.int32)
    return starts, np.concatenate([*parts, [0]]).astype(dtype)


def test_adjusted_rows_are_the_runtimes(launch: Launch) -> None:
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((4, 1000), dtype=np.float32) * 4
    states = []
    for row in (2, 0):
        params = SamplingParams(
            repetition_penalty=1.3, frequency_penalty=0.2 * row, presence_penalty=-0.4,
            logit_bias={3: 5.0, 7: -2.0, 999: 1.0, 4000: 9.0}, min_tokens=3,
        )  # fmt: skip
        state = RowState(params, rng.integers(0, 1000, 90).tolist(), end_ids=(3, 17))
        for token in (7, 7, 999)[:row]:
            state.append(token)
        states.append(state)
    expected = logits.copy()
    expected[2], expected[0] = (
        _processed(logits[i], s) for i, s in ((2, states[0]), (0, states[1]))
    )
    histories = [history for state in states if isinstance(history := state.history, History)]
    given: dict[str, Any] = {"logits": logits, "rows": np.array([2, 0], np.int32)}
    given["bias_starts"], given["bias_ids"] = lists([s.bias_ids for s in states], np.int32)
    given["bias"] = lists([s.bias for s in states], np.float32)[1]
    given["history_starts"], given["history_ids"] = lists([h.ids for h in histories], np.int32)
    given["counts"] = lists([h.counts for h in histories], np.float32)[1]
    ends = [state.forbidden_ids for state in states]
    given["forbidden_starts"], given["forbidden_ids"] = lists(ends, np.int32)
    params_of = [state.params for state in states]
    given["penalties"] = np.array(
        [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params_of],
        np.float32,
    )
    constants = {"VOCAB": 1000, "BLOCK": 64, "PDL": False}
    launch(adjust_logits.adjust_rows, (2, 1, 1), constants, **given)
    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-6)
    assert np.array_equal(np.isinf(logits), np.isinf(expected))


def test_masked_rows(launch: Launch) -> None:
    rng = np.random.default_rng(6)
    logits = rng.standard_normal((3, 1000), dtype=np.float32)
    words = rng.integers(-(2**31), 2**31, (2, 32)).astype(np.int32)
    expected = logits.copy()
    forbid(expected[2], words[0])
    forbid(expected[1], words[1])
    given = {"logits": logits, "rows": np.array([2, 1], np.int32), "masks": words}
    constants = {"VOCAB": 1000, "BLOCK": 256, "PDL": False}
    launch(adjust_logits.mask_rows, (4, 2, 1), constants, **given)
    assert np.array_equal(logits, expected)
