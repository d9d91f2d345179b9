"""A plain torch module: compiled, proved by its self-test, called with arrays of several sizes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
import torch
from sglk import knobs
from sglk.errors import PassError, RequestError, SglkError


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(48, 100)
        self.norm = torch.nn.LayerNorm(100)
        self.narrow = torch.nn.Linear(100, 10)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.nn.functional.gelu(self.wide(x))
        centred = self.norm(hidden) + hidden.mean(-1, keepdim=True)
        return (self.narrow(centred) + bias).softmax(-1), hidden.transpose(0, 1)[3:9]


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def artifact(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forward") / "net.sglk"
    example = (torch.randn(5, 48), torch.randn(10))
    compiled = sglk.compile(net, example, dims={"x": {0: "batch"}}, output=path, dtype="fp32")
    assert compiled.report["selftest"]
    return path


def test_results_equal_torch_for_every_batch(net: Net, artifact: Path) -> None:
    with sglk.load_forward(artifact) as model:
        for batch in (1, 2, 7, 33):
            x, bias = torch.randn(batch, 48), torch.randn(10)
            wanted = net(x, bias)
            got = model(x.numpy(), bias=bias.numpy())
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_allclose(a, b.detach().numpy(), atol=1e-6)


def test_wrong_inputs_are_refused_by_name(artifact: Path) -> None:
    with (
        sglk.load_forward(artifact) as model,
        pytest.raises(RequestError, match=r"inputs: expected x, bias, got 1 by position"),
    ):
        model(np.zeros((2, 48), np.float32))


def test_a_forward_artifact_is_no_decoder(artifact: Path) -> None:
    with pytest.raises(RequestError, match=r"expected a decoder, got the entries forward"):
        sglk.load(artifact)


def test_unsupported_ops_are_listed_with_their_lines(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.lgamma(x) + x

    with pytest.raises((PassError, sglk.SglkError), match=r"test_forward_modules.py:\d+"):
        sglk.compile(Odd(), (torch.randn(4),), output=tmp_path / "odd.sglk")
    assert not list(tmp_path.iterdir())


def test_dump_has_every_form(net: Net, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    example = (torch.randn(5, 48), torch.randn(10))
    with knobs.override(dump=str(tmp_path / "dump")), caplog.at_level(logging.DEBUG, "sglk"):
        sglk.compile(
            net, example, dims={"x": {0: "batch"}}, output=tmp_path / "n.sglk", selftest=False
        )
    names = {path.name for path in (tmp_path / "dump").iterdir()}
    assert {"00-given.txt", "program.txt", "kernels"} < names  # and a graph per change
    kernels = {path.suffix for path in (tmp_path / "dump" / "kernels").iterdir()}
    assert kernels == {".ttir", ".cpp"}
    logged = {record.name for record in caplog.records}
    assert {"sglk.driver", "sglk.passes.instruments", "sglk.targets.cpu.build"} <= logged


class Tree(torch.nn.Module):
    """A constant, a default, a name, a list and a result of several kinds."""

    def forward(
        self,
        x: torch.Tensor,
        times: int,
        pair: list[torch.Tensor],
        shift: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        shifted = x if shift is None else x + shift
        return {"sum": (shifted * times, pair[0] + pair[1]), "none": None, "many": x.long()}


def test_what_comes_back_is_called_as_the_module_is(tmp_path: Path) -> None:
    module, pair = Tree(), [torch.randn(3), torch.randn(3).bfloat16()]
    x, shift = torch.randn(4, 3), torch.randn(3)
    made = sglk.compile(
        module, (x, 3, pair), kwargs={"shift": shift}, output=tmp_path / "t.sglk", dtype="fp32"
    )
    wanted = module(x, 3, pair, shift)
    for found in (made(x, 3, pair, shift), made(x, shift=shift, pair=pair, times=3)):
        assert found["none"] is None and isinstance(found["sum"], tuple)
        assert found["many"].dtype == torch.int64
        torch.testing.assert_close(found, wanted)
    arrays = made(x.numpy(), 3, [pair[0].numpy(), pair[1].float().numpy()], shift.numpy())
    assert isinstance(arrays["many"], np.ndarray)
    with pytest.raises(RequestError, match=r"argument times: expected 3, which the compile fixed"):
        made(x, 4, pair, shift)
    with pytest.raises(RequestError, match="expected the structure of the example"):
        made(x, 3, pair)
    with pytest.raises(RequestError, match="missing a required argument: 'pair'"):
        made(x, 3)
    made.close()


def test_inputs_that_are_no_tuple_are_refused() -> None:
    with pytest.raises(SglkError, match=r"example_inputs: expected a tuple .* got a Tensor"):
        sglk.compile(Tree(), torch.randn(3))
