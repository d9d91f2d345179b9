"""OpenAI's names for sampling to `SamplingParams`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...errors import RequestError
from ..request import MAX_SEED, SamplingParams
from .problem import Problem, as_problem
from .request_schema import given

SAME_NAME = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "min_tokens", "ignore_eos", "stop", "stop_token_ids",
    "skip_special_tokens",
)  # fmt: skip


def sampling_params(
    body: Mapping[str, Any],
    *,
    recommended: Mapping[str, Any],
    max_tokens: int | None,
    logprobs: int | None,
    keeps_special: bool = False,
) -> SamplingParams:
    """The request's values; else those the model's makers recommend, else OpenAI's defaults.

    A seed is drawn here if none is given, so that all answers of the request share it.
    """
    defaults = {k: v for k, v in recommended.items() if k in SAME_NAME}
    values: dict[str, Any] = {"temperature": 1.0, **defaults}
    values |= {name: body[name] for name in SAME_NAME if body.get(name) is not None}
    if keeps_special:
        values["skip_special_tokens"] = False
    seed = given(body, "seed")
    values["seed"] = _fresh_seed() if seed is None else int(seed) % MAX_SEED
    values["logit_bias"] = _logit_bias(given(body, "logit_bias", {}))
    if "stop_token_ids" in values:
        values["stop_token_ids"] = [int(token) for token in values["stop_token_ids"]]
    for name in ("top_k", "min_tokens"):
        if name in values:
            values[name] = int(values[name])
    try:
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **values)
    except RequestError as error:
        raise as_problem(error, "prompt") from error


def _fresh_seed() -> int:
    return int.from_bytes(os.urandom(7), "little")


def _logit_bias(given_bias: Mapping[str, float]) -> dict[int, float]:
    bias = {}
    for key, value in given_bias.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise Problem(
                f"logit_bias: expected token ids as names, got {key!r:.40}",
                param="logit_bias",
                code="invalid_value",
            )
        bias[int(key)] = value
    return bias
