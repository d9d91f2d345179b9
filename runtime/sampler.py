"""Logits to token ids, in NumPy. One row per request; a row's result depends on that row alone.

Order, as transformers has it: bias, penalties, forbidden tokens, temperature, top-k, top-p, min-p,
then one uniform number picks from what is left, in order of token id. Ties always go to the lowest
id. Reported log-probabilities are those of the model, before any of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, RequestError
from ..targets.device import SAMPLED_ROW, Logits
from .philox import UniformStream
from .request import SamplingParams
from .token_mask import MaskedRow, forbid
from .truncation import choose, top_ids

Floats = NDArray[np.float32]
Argmax = Callable[[NDArray[np.int32]], NDArray[np.int32]]
"""`sglk.targets.device.HasArgmax.argmax`."""
Draw = Callable[[NDArray[np.void]], NDArray[np.int32]]
"""`sglk.targets.device.HasSample.sample`."""
NO_TOKEN = -1
_IS_SIMPLE = attrgetter("is_simple")
_MOST_TOP_K = 2**31 - 1
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
    """`NO_TOKEN` in rows that failed."""
    logprobs: list[TokenLogprob | None]
    failures: dict[int, RequestError] = field(default_factory=dict)
    """By row, why it has no token: its mask failed or allows none."""


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
        *,
        end_ids: Collection[int] = (),
        mask: MaskedRow | None = None,
    ) -> None:
        self.params = params
        self.uniforms = UniformStream(seed, sample_index)
        self.history = History(prompt) if params.has_history else None
        self.bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self.bias = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self.position = len(prompt)
        """Of the next token; nobody counts on where the row `is_simple`."""
        self.mask = mask
        self.wants_logprobs = params.logprobs is not None
        self.num_logprobs = params.logprobs or 0
        self._end_ids = np.array(sorted(end_ids), dtype=np.int64)
        self._may_end_at = self.position + params.min_tokens
        self.changes_logits = self.is_plain = self.is_simple = False
        self._update()

    @property
    def forbidden_ids(self) -> NDArray[np.int64]:
        """The end tokens while the answer has to go on."""
        return self._end_ids[: 0 if self.position >= self._may_end_at else None]

    def append(self, token: int) -> None:
        """The chosen token becomes part of the sequence."""
        self.position += 1
        if self.history is not None:
            self.history.append(token)
        if self.position == self._may_end_at:
            self._update()

    def needs_logits(self, can_change: bool) -> bool:
        """Whether the host has to see the next token's logits; ``can_change``: the device does."""
        return self.wants_logprobs or (self.changes_logits and not can_change)

    @property
    def has_lists(self) -> bool:
        """Whether something besides a mask changes the logits of the next token."""
        return self.params.has_processors or len(self.forbidden_ids) > 0

    def as_sampled_row(
        self, row: int, ahead: int = 0
    ) -> tuple[int, int, float, float, float, float]:
        """A `SAMPLED_ROW`: what the device needs to draw the next token.

        ``ahead`` tokens of the sequence come before it that `append` has not seen yet.
        """
        params = self.params
        heat = max(params.temperature, MIN_TEMPERATURE)
        lowest = math.log(params.min_p) if params.min_p else -math.inf
        top_k = min(params.top_k, _MOST_TOP_K)
        uniform = self.uniforms.at(self.position + ahead)
        return row, top_k, heat, lowest, params.top_p, uniform

    def _update(self) -> None:
        """``changes_logits``: not the raw logits decide; ``is_plain``: their maximum does.

        ``is_simple``: and nobody asks for more than the token.
        """
        self.changes_logits = (
            self.params.has_processors or self.mask is not None or len(self.forbidden_ids) > 0
        )
        self.is_plain = self.params.is_greedy and not self.changes_logits
        self.is_simple = self.is_plain and not self.wants_logprobs


def sample(
    logits: Logits,
    states: Sequence[RowState],
    argmax: Argmax | None = None,
    draw: Draw | None = None,
) -> Sampled:
    """Choose one token per row of ``logits`` [L, V]; ``argmax`` and ``draw`` are the device's.

    >>> logits = np.array([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]], np.float32)
    >>> sample(logits, [RowState(SamplingParams(), [0]), RowState(SamplingParams(), [0])]).token_ids
    [1, 0]
    """
    if all(map(_IS_SIMPLE, states)):
        return Sampled(_best_ids(logits, range(len(states)), argmax), [None] * len(states))
    plain = [row for row, state in enumerate(states) if state.is_plain]
    best = _best_ids(logits, plain, argmax)
    if len(plain) == len(states):
        found = Sampled(best, [None] * len(best))
    else:
        found = Sampled([NO_TOKEN] * len(states), [None] * len(states))
        for row, token in zip(plain, best, strict=True):
            found.token_ids[row] = token
        _sample_others(logits, states, found, draw)
    for row, top in [(row, s.num_logprobs) for row, s in enumerate(states) if s.wants_logprobs]:
        if row not in found.failures:
            found.logprobs[row] = token_logprob(logits[row], found.token_ids[row], top)
    return found


def _best_ids(found: Logits, rows: Sequence[int], argmax: Argmax | None) -> list[int]:
    """The largest logit of each of these rows."""
    if not rows:
        return []
    if argmax is not None:
        best = argmax(np.asarray(rows, dtype=np.int32))
        if best.min() < 0:
            _refuse(found, rows[int(best.argmin())])
        ids: list[int] = best.tolist()
        return ids
    logits = np.asarray(found)
    if len(rows) == len(logits):
        ids = logits.argmax(axis=1).tolist()
    else:
        ids = [int(logits[row].argmax()) for row in rows]
    # argmax lands on a NaN if there is one, so looking at the winners is enough.
    finite = np.isfinite(logits[rows, ids])
    if not finite.all():
        _refuse(logits, rows[int(finite.argmin())])
    return ids


def _sample_others(
    logits: Logits, states: Sequence[RowState], found: Sampled, draw: Draw | None
) -> None:
    """Every row that is not decided by its raw logits alone."""
    rows = [row for row, state in enumerate(states) if not state.is_plain]
    if draw is not None:
        # Which rows the device draws depends on their own requests alone, never on their company.
        drawn = [row for row in rows if not states[row].changes_logits]
        for row, token in zip(drawn, _drawn_ids(logits, states, drawn, draw), strict=True):
            found.token_ids[row] = token
        rows = [row for row in rows if states[row].changes_logits]
    for row in rows:
        values = logits[row]
        if not np.isfinite(values.max()):
            _refuse(logits, row)
        try:
            found.token_ids[row] = _sample_row(values, states[row])
        except RequestError as error:
            found.failures[row] = error


def _drawn_ids(
    logits: Logits, states: Sequence[RowState], rows: list[int], draw: Draw
) -> list[int]:
    """Tokens that the device draws for these rows."""
    if not rows:
        return []
    ids = draw(np.array([states[row].as_sampled_row(row) for row in rows], SAMPLED_ROW))
    if ids.min() < 0:
        _refuse(logits, rows[int(ids.argmin())])
    tokens: list[int] = ids.tolist()
    return tokens


def _refuse(logits: Logits, row: int) -> None:
    raise DeviceError(f"step: expected finite logits, got {logits[row].max()} in row {row}")


def token_logprob(logits: Floats, token: int, top: int) -> TokenLogprob:
    """Log-probability of a token and of the ``top`` most likely ones of its row."""
    peak = logits.max()
    norm = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    best = top_ids(logits, min(top, len(logits))).tolist() if top else []
    pairs = tuple((token_id, float(logits[token_id]) - norm) for token_id in best)
    return TokenLogprob(token, float(logits[token]) - norm, pairs)


def _sample_row(raw: Floats, state: RowState) -> int:
    params = state.params
    row = _processed(raw, state) if state.changes_logits else raw
    if params.is_greedy:
        return int(row.argmax())
    row = (row - row.max()) / np.float32(max(params.temperature, MIN_TEMPERATURE))
    return choose(row, params, state.uniforms.at(state.position))


def _processed(raw: Floats, state: RowState) -> Floats:
    """A copy of the row with bias and penalties applied, and forbidden tokens at -inf."""
    row = raw.copy()
    in_range = state.bias_ids < len(row)
    row[state.bias_ids[in_range]] += state.bias[in_range]
    if state.history is not None:
        _penalize(row, state.params, state.history)
    row[state.forbidden_ids] = -np.inf
    if state.mask is not None:
        forbid(row, state.mask.words())
    if row.max() == -np.inf:
        raise RequestError("mask: expected at least one token that may come next, got none")
    return row


def _penalize(row: Floats, params: SamplingParams, history: History) -> None:
    """Repetition, frequency and presence penalties, in place."""
    values = row[history.ids]
    if params.repetition_penalty != 1:
        penalty = np.float32(params.repetition_penalty)
        values = np.where(values > 0, values / penalty, values * penalty)
    counts = history.counts
    values = values - counts * np.float32(params.frequency_penalty)
    values -= (counts > 0) * np.float32(params.presence_penalty)
    row[history.ids] = values
