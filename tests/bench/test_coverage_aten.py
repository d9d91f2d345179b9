"""A few ops of the scoreboard, one sample of each type: the board counts what it should."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sglk.bench.aten_list import EXCLUDED, core_names
from sglk.bench.coverage_aten import Tally, differs, try_op

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, about its own sample inputs
OPS = ("atan2", "avg_pool2d", "bitwise_xor", "index_put", "scatter_reduce")


@pytest.mark.parametrize("name", OPS)
def test_op_passes(name: str) -> None:
    tally = try_op(name, most=1, compiled=False)
    assert tally.verdict == "pass", {**tally.wrong, **tally.refused}


def test_board_covers_core_aten() -> None:
    names = core_names()
    assert set(EXCLUDED) <= set(names)
    assert len(names) - len(EXCLUDED) >= 130


def test_other_numbers_and_shapes_are_wrong() -> None:
    wanted = [torch.tensor([1.0, 2.0])]
    assert not differs([np.array([1, 2.00001])], wanted, torch.float32)
    assert differs([np.array([1, 2.1])], wanted, torch.float32) == "other numbers"
    assert differs([np.array([[1, 2.0]])], wanted, torch.float32).startswith("shape")
    assert Tally(passed=1).verdict == "pass"
    assert Tally(training=1).verdict == "training"
