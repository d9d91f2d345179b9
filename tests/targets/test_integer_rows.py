"""Integers of every width compute on the CPU what the references say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
import torch
from sglk.frontend import load_model
from sglk.ir.interpret import interpret

CASES: dict[str, Callable[..., Any]] = {
    "uint16": lambda a, b: (a - b, a * b, a // b, a < b, a >> 15, a.to(torch.float32), -a),
    "int16": lambda a, b: (a * b, a.reshape(2, -1).amax(1), a % b, a.to(torch.uint32)),
    "uint32": lambda a, b: (torch.maximum(a, b), a // b, a.to(torch.float32), a.cumsum(0)),
    "uint64": lambda a, b: (a + b, a > b, a.to(torch.float32), torch.topk(a, 3)[1]),
    "float32": lambda a, b: (a.to(torch.uint32), a.to(torch.uint64), b.view(torch.int32)),
}


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return self.function(a, b)


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    if dtype == "float32":
        return np.array([0.5, 7, 3e9, 4e9], dtype), np.array([-0.0, 1.5, np.inf, 1e-40], dtype)
    info = np.iinfo(dtype)
    ends = [0, 1, 9, info.max, info.max - 1, info.max // 2 + 1, info.min, 100]
    return np.array(ends, dtype), np.array([3, 1, 2, info.max, 5, 7, info.max, 99], dtype)


@pytest.mark.parametrize("dtype", CASES)
def test_every_width_computes_as_its_reference(dtype: str, tmp_path: Path) -> None:
    a, b = operands(dtype)
    module, path = Module(CASES[dtype]), tmp_path / "module.sglk"
    example = (torch.tensor(a), torch.tensor(b))
    wanted = interpret(load_model(module, example).graph, {"a": a, "b": b})
    sglk.compile(module, example, output=path, dtype="fp32", selftest=False)
    with sglk.load_forward(path) as model:
        found = model(a, b)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
