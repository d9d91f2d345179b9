"""The soak of bench/soak.py in small; `python bench/soak.py` runs it with 10,000 requests."""

from __future__ import annotations

import pytest
from sglk.bench.soak import TOLERANCE, Soak, growth
from sglk.runtime.admission import POLICIES, Policy


@pytest.mark.parametrize("policy", POLICIES)
def test_aborts_failures_and_flushes_lose_and_leave_nothing(policy: Policy) -> None:
    soak = Soak(300, seed=7, policy=policy)
    soak.run()
    assert soak.num_ended == 300 and set(soak.reasons) == {"abort", "length", "timeout"}
    assert soak.engine.stats().num_preemptions > 0
    # Python's own count of memory blocks: the size of a process moves in steps too coarse for this.
    assert growth(soak.blocks[1:]) < TOLERANCE
