"""What plain modules compute beside products runs compiled as torch has it: one artifact each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
import torch
import torch.nn.functional as F

PLACES = torch.tensor([3, 0, 3, 1])
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "mathematics": (
        lambda x, i: (x.asinh(), x.atan2(x + 1), x.fmod(0.7), i**3, i.fmod(3), i ^ 5, x.round()),
        (torch.linspace(-3, 3, 70), torch.arange(-30, 40)),
    ),
    "reductions": (
        lambda x, i: (x.prod(1), x.argmin(0), i.cumsum(2), i.amax((0, 2)), x.softmax(1), x.sum()),
        (torch.linspace(-1, 1, 60).reshape(3, 4, 5), torch.arange(60).reshape(3, 4, 5)),
    ),
    "indices": (
        lambda x, p: (
            x.index_select(1, p),
            x[:2, p, p],
            x.index_put((p,), x[:, 0] * 2, accumulate=True),
            x.scatter_add(0, p.reshape(4, 1, 1).expand(4, 4, 5), x),
            x.flip(1).sort(2)[1],
        ),
        (torch.sin(torch.arange(80.0)).reshape(4, 4, 5), PLACES),
    ),
    "any-rank": (
        lambda x, b: (x.permute(0, 3, 5, 1, 2, 4), x * b, torch.cat([x, x * b], 3)[..., 1:3, :, :]),
        (torch.rand(2, 3, 2, 2, 3, 2), torch.rand(2, 1, 3, 1)),
    ),
    "results": (
        lambda x, y: (x, x, x.reshape(-1), y + 1, torch.arange(5), y),
        (torch.rand(2, 3), torch.tensor(2.0)),
    ),
}


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def check(module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], folder: Path) -> None:
    path = folder / "module.sglk"
    sglk.compile(module, tensors, output=path, dtype="fp32", selftest=False)
    with torch.no_grad():
        wanted = module(*tensors)
    with sglk.load_forward(path) as model:
        found = model(*(t.numpy() for t in tensors))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_torch(name: str, tmp_path: Path) -> None:
    function, tensors = FUNCTIONS[name]
    check(Module(function), tensors, tmp_path)


class Vision(torch.nn.Module):
    """Every form of convolution that kernels tell apart, pools, and a norm that is folded."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 10, 3, stride=2, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(10)
        self.grouped = torch.nn.Conv2d(10, 130, 5, padding=4, dilation=2, groups=2)
        self.point = torch.nn.Conv2d(130, 7, 1)
        self.up = torch.nn.ConvTranspose2d(7, 4, 3, stride=2, output_padding=1, groups=1)
        self.line = torch.nn.Conv1d(4, 3, 150)
        self.space = torch.nn.Conv3d(1, 2, 2, padding=1)
        with torch.no_grad():
            self.norm.running_mean.uniform_()  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.point(self.grouped(self.norm(self.first(x)).relu()))
        z = self.up(y)
        pooled = F.max_pool2d(z, 3, 2, 1, return_indices=True)
        means = F.avg_pool2d(z, 3, 2, 1), F.adaptive_avg_pool2d(z, (3, 5))
        resized = F.interpolate(y, scale_factor=2, mode="bilinear")
        return *pooled, *means, resized, self.line(z.flatten(2)), self.space(y[:, None, :3])


def test_convolutions_and_pools(tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(Vision().eval(), (torch.randn(2, 3, 19, 22),), tmp_path)
