"""What conversion does beyond single ops: leaves, tied weights, other doors, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sglk.errors import FrontendError
from sglk.frontend import load_model
from sglk.frontend.torch_module import export_module
from sglk.ir.interpret import interpret
from sglk.ir.rewrite import clone
from sglk.ir.testing import assert_close
from torch import nn

TOKENS = {"x": {0: "tokens"}}


class Block(nn.Module):
    """A persistent buffer, a computed one, a plain tensor attribute, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)
        self.again = nn.Linear(4, 8)
        self.again.weight = self.up.weight
        self.register_buffer("shift", torch.randn(8))
        self.register_buffer("scale", torch.arange(8.0), persistent=False)
        self.table = torch.tensor([1, 0, 2, 3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x) + self.shift) * self.scale  # type: ignore[operator]
        return self.down(hidden + self.again(x)) * self.table  # type: ignore[no-any-return]


def check(captured: Any, module: nn.Module, symbol: str = "tokens") -> None:
    x = torch.randn(5, 4)
    name = captured.graph.inputs[0].name
    (got,) = interpret(clone(captured.graph, {symbol: 5}), {name: x.numpy()}, captured.weights.read)
    assert_close(got, module(x).detach().numpy(), 1e-6)


def test_leaves_keep_their_kind() -> None:
    captured = load_model(Block(), (torch.randn(7, 4),), dims=TOKENS)
    check(captured, Block())
    names = sorted(v.name for v in captured.graph.params)
    assert names == ["again.bias", "down.bias", "down.weight", "shift", "up.bias", "up.weight"]
    named = [v.name for v in captured.graph.consts if v.type.rank]
    assert named[0] == "scale"
    assert captured.info.vocab_size == 4


def test_module_program_file_and_graph_module_give_one_graph(tmp_path: Path) -> None:
    block, x = Block(), torch.randn(7, 4)
    program = export_module(block, (x,), dims=TOKENS)
    torch.export.save(program, tmp_path / "block.pt2")
    doors = {
        "module": load_model(block, (x,), dims=TOKENS),
        "graph module": load_model(torch.fx.symbolic_trace(block), (x,), dims=TOKENS),
        "program": load_model(program),
        "file": load_model(tmp_path / "block.pt2"),
    }
    for captured in doors.values():
        check(captured, block)
    texts = {name: captured.graph.as_text().split("{", 1)[1] for name, captured in doors.items()}
    assert texts["module"] == texts["program"]


def test_half_precision_module_is_captured_in_f32() -> None:
    block = Block().to(torch.bfloat16)
    captured = load_model(block, (torch.randn(7, 4, dtype=torch.bfloat16),), dims=TOKENS)
    assert {str(v.type.dtype) for v in captured.graph.values()} <= {"f32", "i32"}
    assert captured.weights.info("up.weight").dtype == "bf16"
    assert captured.weights.read("up.weight").dtype == np.float32


def test_unsupported_ops_are_reported_together_with_their_lines() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.cumsum(0) + x.cos().cumsum(0)
            ordered: torch.Tensor = torch.sort(y, 0)[0]
            bessel: torch.Tensor = torch.special.i0(x)
            return ordered + bessel

    with pytest.raises(FrontendError) as caught:
        load_model(Odd(), (torch.randn(7, 4),), dims=TOKENS)
    text = str(caught.value)
    assert "got 3 kinds" in text
    assert "aten.cumsum x2 first at test_convert_program.py:" in text
    assert "aten.sort x1" in text
    assert "aten.i0 x1" in text or "aten.special_i0 x1" in text


def test_dead_ops_are_not_reported() -> None:
    class Dead(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.cumsum(0)
            return x + 1

    assert len(load_model(Dead(), (torch.randn(7, 4),)).graph.nodes) == 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * (x.shape[0] - 9), "which may be negative"),
        (lambda x: (x.to(torch.int64) + 2**40).float(), "does not fit i32"),
        (lambda x: nn.functional.dropout(x, 0.5), "dropout in training mode"),
        (lambda x: x.long()[x.argmax(0)], "indexing over a symbolic size"),
        (lambda x: x.to(torch.complex64).real, "complex numbers"),
    ],
)
def test_use_of_an_op_that_cannot_be_expressed_is_refused(function: Any, reason: str) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    with pytest.raises(FrontendError, match=reason):
        load_model(Odd(), (torch.randn(7, 4),), dims=TOKENS)


def test_large_integer_constants_are_refused() -> None:
    class Hash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seed", torch.tensor([2**40]), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.seed  # type: ignore[operator]

    with pytest.raises(FrontendError, match="buffer seed: expected integers of 32 bits"):
        load_model(Hash(), (torch.zeros(3, dtype=torch.int64),))


def test_module_without_example_inputs_is_refused() -> None:
    with pytest.raises(FrontendError, match="Block: expected example inputs"):
        load_model(Block())


def test_unknown_argument_in_dims_is_refused() -> None:
    with pytest.raises(FrontendError, match="expected dims of x, got y"):
        load_model(Block(), (torch.randn(7, 4),), dims={"y": {0: "tokens"}})


def test_size_that_the_module_fixes_is_refused() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(7, 4)

    with pytest.raises(FrontendError, match=r"Fixed: .*symbolic"):
        load_model(Fixed(), (torch.randn(7, 4),), dims=TOKENS)


@pytest.mark.parametrize("source", [3, None, {"a": 1}])
def test_what_is_no_model_is_refused(source: Any) -> None:
    with pytest.raises(FrontendError, match="model: expected a folder"):
        load_model(source)


def test_missing_pt2_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match="no such file"):
        load_model(tmp_path / "none.pt2")


class Counter(nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.reads = reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: Any = self.total
        total.copy_(total + x[0] if self.reads else x[0])
        result: torch.Tensor = x + total
        return result


def test_memory_between_calls_is_refused() -> None:
    with pytest.raises(FrontendError, match="reads and overwrites total"):
        load_model(Counter(reads=True), (torch.randn(7, 4),), dims=TOKENS)


def test_buffer_as_scratch_is_fine() -> None:
    captured = load_model(Counter(reads=False), (torch.randn(7, 4),), dims=TOKENS)
    check(captured, Counter(reads=False))
