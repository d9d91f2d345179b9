"""Measuring on the processor that others disturb least."""

from __future__ import annotations

import os

import pytest
from sglk.bench import processors


def test_the_fastest_is_taken_and_all_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    fastest = max(allowed)
    monkeypatch.setattr(processors, "rounds_on", lambda processor: int(processor == fastest))
    with processors.on_quietest() as chosen:
        assert chosen == fastest and os.sched_getaffinity(0) == {fastest}
    assert os.sched_getaffinity(0) == allowed


def test_a_probe_counts_rounds() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        assert processors.rounds_on(min(allowed)) > 1
    finally:
        os.sched_setaffinity(0, allowed)
