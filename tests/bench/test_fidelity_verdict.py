"""What `bench/fidelity.py` makes of its figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sglk.bench import fidelity


def line(error: float, broken: int = 0) -> fidelity.Line:
    given: dict[str, Any] = {field.name: 0 for field in dataclasses.fields(fidelity.Line)}
    return fidelity.Line(**{**given, "error": error, "broken": broken, "positions": 64})


@pytest.mark.parametrize(
    ("error", "broken", "passed"), [(0.12, 0, True), (0.16, 0, False), (0.12, 1, False)]
)
def test_a_stored_artifact_is_held_to_what_it_states(
    error: float, broken: int, passed: bool
) -> None:
    verdict = fidelity.judge(fidelity.STORED, [line(0.01), line(error, broken)], 0.15)
    assert verdict.passed == passed
    assert f"(relative {error:.2e}, at most 0.15)" in verdict.text


def test_others_are_held_to_the_limits_of_their_mode() -> None:
    assert fidelity.judge("keep-int8", [line(0.12)]).passed
    assert not fidelity.judge("keep-bf16", [line(0.12)]).passed
    assert "at most" not in fidelity.judge("bf16", [line(0.12)]).text
