"""Converters of mathematics, reductions, indices and windows give what torch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sglk.errors import FrontendError
from sglk.frontend import load_model
from sglk.ir.interpret import interpret
from sglk.ir.verify import verify

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
WHOLE = torch.arange(-12, 12).reshape(2, 3, 4)
FLAGS = WHOLE % 3 == 0
IMAGE = torch.sin(torch.arange(2 * 3 * 7 * 6)).reshape(2, 3, 7, 6)
PLACES = torch.tensor([[2, 0, 1, 1], [0, 0, 2, 1]])

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "inverse": (lambda x: ((x / 2).acos(), (x / 2).asin(), x.atan(), (x / 3).atanh()), (X,)),
    "hyperbolic": (lambda x: (x.cosh(), x.sinh(), x.asinh(), (x + 3).acosh(), x.tan()), (X,)),
    "logarithms": (lambda x: (x.exp().log2(), x.exp().log10(), x.expm1(), (x + 3).log1p()), (X,)),
    "rounding": (lambda x: (x.ceil(), x.trunc(), x.round(), x.round(decimals=1), x.sign()), (X,)),
    "of-integers": (lambda i: (i.ceil(), i.round(), i.sign(), i.isnan(), ~i), (WHOLE,)),
    "tests": (lambda x: ((x / 0).isinf(), (x.sqrt()).isnan()), (X,)),
    "pairs": (
        lambda x, i: (x.atan2(x + 1), x.fmod(0.7), i.fmod(5), i.div(4, rounding_mode="trunc")),
        (X, WHOLE),
    ),
    "bits": (lambda i: (i & 6, i | 5, i ^ 3, i << 2, i >> 1, i.logical_xor(i + 1)), (WHOLE,)),
    "of-bools": (
        lambda b, c: (b + c, b * c, b < c, b.logical_xor(c), torch.maximum(b, c)),
        (FLAGS, ~FLAGS),
    ),
    "elu": (lambda x: (F.elu(x, 0.5), F.selu(x), F.celu(x, 2.0)), (X,)),
    "extremes": (
        lambda x: (x.amin((0, 2)), *x.min(1), x.argmin(), x.argmin(2, True), x.min()),
        (X,),
    ),
    "products": (lambda x, i: (x.prod(1), (i + 13).prod(2), x[0, 0, 0].sum(0)), (X, WHOLE)),
    "truth": (lambda b: (b.any(), b.all(1), b.any(2, keepdim=True)), (FLAGS,)),
    "spread": (lambda x: (x.var(), x.var((0, 2), correction=0), x.var(1, keepdim=True)), (X,)),
    "running": (lambda x, i: (x.cumsum(1), i.cumsum(0), x[0, 0, 0].cumsum(0)), (X, WHOLE)),
    "gathers": (lambda x, p: (x.gather(1, p[:, None]), x[0].gather(0, p), x[:, p, 0]), (X, PLACES)),
    "indices": (
        lambda x, p: (x[p[:, 1], p[:, 2]], x[:, p[0], p[1]], x[p[:, 1], :, p[:, 0] - 2]),
        (X, PLACES),
    ),
    "select": (lambda x, p: (x.index_select(1, p[0]), x.index_select(2, p[1])), (X, PLACES)),
    "puts": (
        lambda x, p: (
            x.index_put((p[:, 1], p[:, 0]), torch.ones(4)),
            x.index_put((p[:, 1],), x[:1], accumulate=True),
            x.masked_scatter(x > 0, x.abs()),
        ),
        (X, PLACES),
    ),
    "scatters": (
        lambda x, p: (
            x[0].scatter_add(0, p, x[1]),
            x[0].scatter_reduce(0, p, x[1], "mean", include_self=False),
            x[0].scatter_reduce(0, p, x[1], "amax"),
        ),
        (X, PLACES),
    ),
    "replaced": (
        lambda x: (x.select_scatter(x[:, 0], 1, 2), x.slice_scatter(x[..., :2], 2, 0, 4, 2)),
        (X,),
    ),
    "constant-places": (
        lambda x: (
            x.flip((0, 2)),
            x.diagonal(1, 1, 2),
            x.as_strided((2, 3), (1, 5)),
            x.unfold(2, 2, 1),
            x.roll(1, 2),
        ),
        (X,),
    ),
    "pads": (
        lambda x: (
            F.pad(x, (1, 2), value=3.0),
            F.pad(x, (1, -1, 2, 0)),
            F.pad(x, (2, 1), "reflect"),
            F.pad(x, (2, 3), "replicate"),
        ),
        (X,),
    ),
    "pools": (
        lambda x: (
            *F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 2, ceil_mode=True),
            F.adaptive_avg_pool2d(x, (3, 4)),
            F.adaptive_avg_pool2d(x, 1),
        ),
        (IMAGE,),
    ),
    "resize": (
        lambda x: (
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, (5, 9)),
            F.interpolate(x, (4, 11), mode="bilinear"),
            F.interpolate(x, (9, 9), mode="bilinear", align_corners=True),
        ),
        (IMAGE,),
    ),
    "norms": (
        lambda x: (
            F.group_norm(x, 3),
            F.layer_norm(x, (7, 6)),
            F.batch_norm(x, x[0, :, 0, 0], x[0, :, 0, 1].abs()),
        ),
        (IMAGE,),
    ),
    "distances": (lambda x: (torch.cdist(x, x + 1), torch.cdist(x[0], x[1], 1.0)), (X,)),
    "sampled": (
        lambda x, g: F.grid_sample(x, g.reshape(2, 1, 6, 2), align_corners=False),
        (IMAGE, X / 2),
    ),
    "bags": (
        lambda x, p: (F.embedding_bag(p, x[0], mode="mean"), F.embedding_bag(p, x[1], mode="max")),
        (X, PLACES),
    ),
    "attention": (
        lambda x, b: (
            F.scaled_dot_product_attention(x, x, x, b[..., :3]),
            F.scaled_dot_product_attention(x, x, x, is_causal=True),
        ),
        (X, WHOLE > -99),
    ),
    "convolutions": (
        lambda x, w: (
            F.conv2d(x, w, padding=1),
            F.conv1d(x[:, :, 0], w[:, :, 0], stride=2),
            F.conv_transpose2d(x, w, stride=2, output_padding=1),
        ),
        (IMAGE, IMAGE[0, :, :3, :3].expand(3, 3, 3, 3) * X[0, :, :3, None, None]),
    ),
}


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_torch(name: str) -> None:
    function, tensors = CASES[name]
    module = Module(function)
    graph = load_model(module, tensors).graph
    verify(graph)
    arrays = [t.numpy() if t.dtype != torch.int64 else t.int().numpy() for t in tensors]
    found = interpret(graph, dict(zip((v.name for v in graph.inputs), arrays, strict=True)))
    wanted = module(*tensors)
    for ours, theirs in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_indices_by_bools_are_refused() -> None:
    with pytest.raises(FrontendError, match=r"size|symbol|depend"):
        load_model(Module(lambda x: x[x > 0]), (X,))
