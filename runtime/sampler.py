"""Logits to token ids, in NumPy. One row per request; a row's result depends on that row alone.

Order, as transformers has it: bias, penalties, temperature, top-k, top-p, min-p, then one uniform
number picks from what is left, in order of token id. Ties always go to the lowest id. Reported
log-probabilities are those of the model, before any of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError
from .philox import UniformStream
from .request import SamplingParams
from .truncation import choose, top_ids

Floats = NDArray[np.float32]
MIN_TEMPERATURE = 1e-5
"""Below it, dividing by the temperature overflows f32 while the choice is greedy already."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A chosen token's log-probability and the most likely tokens at its place, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row, and log-probabilities for the rows that ask for them."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]


class History:
    """Token ids of a request with their counts, as arrays that grow with each token."""

    def __init__(self, prompt: Sequence[int] | NDArray[np.int32]) -> None:
        seen = np.unique(np.asarray(prompt, dtype=np.int64))
        self._ids, self._counts = seen, np.zeros(len(seen), dtype=np.float32)
        self._size = len(seen)
        self._places = {int(token): place for place, token in enumerate(seen)}

    @property
    def ids(self) -> NDArray[np.int64]:
        """Every id of prompt and answer once."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Floats:
        """How often the answer has each of `ids`."""
        return self._counts[: self._size]

    def append(self, token: int) -> None:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = self._size
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros(place + 16, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(place + 16, np.float32)])
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1


class RowState:
    """What the sampler keeps for a request: random numbers and, for penalties, its tokens."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int] | NDArray[np.int32],
        seed: int = 0,
        sample_index: int = 0,
    ) -> None:
        self.params = params
        self.uniforms = UniformStream(seed, sample_index)
        self.history = History(prompt) if params.has_history else None
        self.bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self.bias = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self.position = len(prompt)
        self.is_plain = params.is_greedy and not params.has_processors
        """Whether the row is decided by its raw logits alone."""

    def append(self, token: int) -> None:
        """The chosen token becomes part of the sequence."""
        self.position += 1
        if self.history is not None:
            self.history.append(token)


def sample(logits: Floats, states: Sequence[RowState]) -> Sampled:
    """Choose one token per row of ``logits`` [L, V].

    >>> logits = np.array([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]], np.float32)
    >>> sample(logits, [RowState(SamplingParams(), [0]), RowState(SamplingParams(), [0])]).token_ids
    [1, 0]
    """
    best = logits.argmax(axis=1)
    _check_finite(logits, best)
    ids: list[int] = best.tolist()
    if not all(state.is_plain for state in states):
        for row, state in enumerate(states):
            if not state.is_plain:
                ids[row] = _sample_row(logits[row], state)
    wanted = [
        None if state.params.logprobs is None else token_logprob(row, token, state.params.logprobs)
        for row, token, state in zip(logits, ids, states, strict=True)
    ]
    return Sampled(ids, wanted)


def token_logprob(logits: Floats, token: int, top: int) -> TokenLogprob:
    """Log-probability of a token and of the ``top`` most likely ones of its row."""
    peak = logits.max()
    norm = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    best = top_ids(logits, min(top, len(logits))).tolist() if top else []
    pairs = tuple((token_id, float(logits[token_id]) - norm) for token_id in best)
    return TokenLogprob(token, float(logits[token]) - norm, pairs)


def _sample_row(raw: Floats, state: RowState) -> int:
    params = state.params
    row = _processed(raw, state) if params.has_processors else raw
    if params.is_greedy:
        return int(row.argmax())
    row = (row - row.max()) / np.float32(max(params.temperature, MIN_TEMPERATURE))
    return choose(row, params, state.uniforms.at(state.position))


def _processed(raw: Floats, state: RowState) -> Floats:
    """A copy of the row with bias and penalties applied."""
    row, params, history = raw.copy(), state.params, state.history
    vocab = len(row)
    in_range = state.bias_ids < vocab
    row[state.bias_ids[in_range]] += state.bias[in_range]
    if history is None:
        return row
    values = row[history.ids]
    if params.repetition_penalty != 1:
        penalty = np.float32(params.repetition_penalty)
        values = np.where(values > 0, values / penalty, values * penalty)
    counts = history.counts
    values = values - counts * np.float32(params.frequency_penalty)
    values -= (counts > 0) * np.float32(params.presence_penalty)
    row[history.ids] = values
    return row


def _check_finite(logits: Floats, best: NDArray[np.intp]) -> None:
    """argmax lands on a NaN if there is one, so looking at the winners is enough."""
    winners = logits[np.arange(len(best)), best]
    if not np.isfinite(winners).all():
        row = int(np.flatnonzero(~np.isfinite(winners))[0])
        raise DeviceError(f"step: expected finite logits, got {winners[row]} in row {row}")
