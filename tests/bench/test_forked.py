"""A row of a board in a process of its own: its result, or why there is none."""

from __future__ import annotations

import os
import threading

from sglk.bench.forked import Crash, run_forked


def _raise() -> None:
    raise KeyError("no such key")


def _spin() -> None:
    while True:
        pass


def test_a_result_comes_back_and_an_exception_says_where() -> None:
    assert run_forked(divmod, 7, 2, limit=60) == (3, 1)
    crash = run_forked(_raise, limit=60)
    assert isinstance(crash, Crash)
    assert crash.reason.startswith("KeyError: 'no such key' at test_forked.py:")


def test_a_process_that_dies_computes_for_ever_or_hangs_is_a_crash() -> None:
    assert run_forked(os._exit, 3, limit=60) == Crash("the process died with exit code 3")
    assert run_forked(_spin, limit=1) == Crash("not done after 1 s of computing")
    hung = run_forked(threading.Event().wait, limit=0.03)
    assert hung == Crash("not done after 0.3 s, most of them without computing")
