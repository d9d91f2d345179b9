"""Modules on integers of every width: torch runs few of these ops, NumPy all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sglk.errors import FrontendError
from sglk.frontend import load_model
from sglk.ir.interpret import interpret

WIDTHS = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64")


class Arithmetic(torch.nn.Module):
    table: torch.Tensor

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        c = a * 3 + self.table
        return c, a - b, a // b, a % b, torch.maximum(a, b), a & b, a >> 2, torch.where(a < b, c, b)


def on_numpy(a: Any, b: Any, table: Any) -> tuple[Any, ...]:
    c = a * 3 + table
    return c, a - b, a // b, a % b, np.maximum(a, b), a & b, a >> 2, np.where(a < b, c, b)


@pytest.mark.parametrize("width", WIDTHS)
def test_integers_keep_their_type_and_wrap(width: str) -> None:
    info = np.iinfo(width)
    a = np.array([0, 1, 7, info.max, info.max - 1, info.min], width)
    b = np.array([3, 1, 9, 5, info.max, 2], width)
    table = np.array([info.max, 2, 1, 0, 7, 1], width)
    captured = load_model(Arithmetic(torch.from_numpy(table)), (torch.tensor(a), torch.tensor(b)))
    read = captured.weights.read("table")
    assert read.dtype == table.dtype and captured.graph.inputs[0].type.dtype.numpy == a.dtype
    found = interpret(captured.graph, {"a": a, "b": b}, {"table": read})
    for ours, theirs in zip(found, on_numpy(a, b, table), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_bits_are_read_as_another_type_of_their_width() -> None:
    class Bits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.view(torch.int32), (x.view(torch.int32) + 1).view(torch.float32)

    x = np.array([0.0, -0.0, 1.5, 3e-45], np.float32)
    captured = load_model(Bits(), (torch.tensor(x),))
    bits, following = interpret(captured.graph, {"x": x})
    np.testing.assert_array_equal(bits, x.view(np.int32))
    np.testing.assert_array_equal(following.view(np.int32), x.view(np.int32) + 1)


def test_bits_that_graphs_do_not_keep_are_refused() -> None:
    class Bits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(torch.int64)

    with pytest.raises(FrontendError, match="which graphs hold as f32"):
        load_model(Bits(), (torch.ones(3, dtype=torch.float64),))


def test_wide_unsigned_numbers_compare_with_python_numbers() -> None:
    class Above(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x > 5

    x = np.array([2**63, 6, 5], np.uint64)
    captured = load_model(Above(), (torch.tensor(x),))
    assert interpret(captured.graph, {"x": x})[0].tolist() == [True, True, False]
