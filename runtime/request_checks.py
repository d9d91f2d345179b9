"""What a request must be for a model: its prompt and sampling values, before it may wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError
from .request import SamplingParams

Ids = Sequence[int] | NDArray[np.int32]


def as_ids(prompt: object) -> NDArray[np.signedinteger[Any]]:
    """A prompt as an array of at least one whole number, or `RequestError`.

    >>> as_ids([3, 1, 2])
    array([3, 1, 2])
    """
    try:
        ids = np.asarray(prompt)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"prompt: expected token ids, got {prompt!r:.80}") from error
    if ids.size == 0:
        raise RequestError("prompt: expected at least one token, got none")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise RequestError(f"prompt: expected token ids, got {prompt!r:.80}")
    return ids


def checked_prompt(prompt: Ids, vocab_size: int, max_context: int) -> NDArray[np.int32]:
    """The ids of a prompt that this model can take, or `RequestError`."""
    ids = as_ids(prompt)
    if len(ids) >= max_context:
        raise RequestError(
            f"prompt: expected fewer tokens than the context of {max_context}, "
            f"got {len(ids)} (shorten it)"
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        bad = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        raise RequestError(f"prompt: expected ids in [0, {vocab_size}), got {bad}")
    return ids.astype(np.int32)


def check_params(params: SamplingParams, vocab_size: int, *, has_tokenizer: bool) -> None:
    """Refuse with `RequestError` what this model has no tokens or text for."""
    if params.stop and not has_tokenizer:
        raise RequestError("stop: expected stop_token_ids, got strings (there is no tokenizer)")
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
    ):
        if any(token >= vocab_size for token in ids):
            raise RequestError(f"{name}: expected ids below {vocab_size}, got {max(ids)}")
