"""In-place ops on values of their own are rewritten; what something else may see stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sglk.frontend.in_place import without_in_place
from torch.export import Dim, ExportedProgram


class Plain(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def routed(x: torch.Tensor) -> torch.Tensor:
    values, ids = torch.topk(torch.softmax(x, -1), 3)
    total = values.sum(-1, keepdim=True)
    values /= total
    return values + ids


def twice(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y += 1.0
    y *= x
    return y.transpose(0, 1) + 1.0


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    rows = y.view(-1)
    y += 1.0
    return rows


def of_the_input(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.dropout(x, 0.5, training=False)
    y += 1.0
    return y + x


def exported(function: Callable[[torch.Tensor], torch.Tensor]) -> ExportedProgram:
    shapes = ({0: Dim("n", min=2, max=64)},)
    return torch.export.export(Plain(function), (torch.zeros(5, 8),), dynamic_shapes=shapes)


def in_place_ops(program: ExportedProgram) -> int:
    targets = [n.target for n in program.graph.nodes]
    return sum(isinstance(t, torch._ops.OpOverload) and t._schema.is_mutable for t in targets)


@pytest.mark.parametrize("function", [routed, twice])
def test_ops_on_values_of_their_own_are_rewritten(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    program = exported(function)
    assert in_place_ops(program) > 0
    without_in_place(program)
    assert in_place_ops(program) == 0
    program.graph_module.recompile()
    x = torch.randn(6, 8)
    assert torch.equal(program.module()(x.clone()), function(x.clone()))


@pytest.mark.parametrize("function", [through_a_view, of_the_input])
def test_ops_that_something_else_may_see_stay(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    program = exported(function)
    before = in_place_ops(program)
    assert before > 0
    without_in_place(program)
    assert in_place_ops(program) == before
