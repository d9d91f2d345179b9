"""Invalid values: one sentence each, naming the field, what is expected and what came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sglk.errors import RequestError
from sglk.runtime.request import SamplingParams

BAD: list[tuple[str, Any, str]] = [
    ("max_tokens", 0, r"a whole number >= 1, got 0"),
    ("max_tokens", 1.5, r"a whole number >= 1, got 1.5"),
    ("max_tokens", True, r"got True"),
    ("temperature", -0.1, r"a number >= 0, got -0.1 \(0 is greedy\)"),
    ("temperature", float("nan"), r"got nan"),
    ("temperature", "hot", r"got 'hot'"),
    ("top_k", -1, r"a whole number >= 0, got -1"),
    ("top_p", 0, r"a number in \(0, 1\], got 0"),
    ("top_p", 1.01, r"a number in \(0, 1\], got 1.01"),
    ("min_p", 1.5, r"a number in \[0, 1\], got 1.5"),
    ("repetition_penalty", 0, r"a number > 0, got 0"),
    ("presence_penalty", 2.5, r"a number in \[-2, 2\], got 2.5"),
    ("frequency_penalty", -3, r"a number in \[-2, 2\], got -3"),
    ("logit_bias", {1: 101}, r"a number in \[-100, 100\], got 101"),
    ("logit_bias", {"a": 1}, r"a whole number >= 0, got 'a'"),
    ("logit_bias", [1], r"a mapping of token id to number, got \[1\]"),
    ("seed", -1, r"a whole number in \[0, 18446744073709551615\], got -1"),
    ("stop", [""], r"texts of 1 to 1024 characters, got ''"),
    ("stop", ["x"] * 17, r"at most 16 strings, got 17"),
    ("stop", 5, r"a list, got 5"),
    ("stop", ["y" * 2000], r"got 'yyy.*\.\.\.$"),
    ("stop_token_ids", [-5], r"a whole number >= 0, got -5"),
    ("logprobs", 101, r"a whole number in \[0, 100\], got 101"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_invalid_values_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name}(\[1\])?: expected .*{message}") as error:
        SamplingParams(**{name: value})
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**63))  # type: ignore[arg-type]
    assert params.top_k == 3 and not params.is_greedy


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="END").stop == ("END",)


def test_the_default_is_greedy() -> None:
    assert SamplingParams().is_greedy and not SamplingParams().has_processors
