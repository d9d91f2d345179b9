"""Each converter with its op's NumPy reference gives what torch gives, at other sizes too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sglk.frontend import load_model
from sglk.frontend.attention import attention
from sglk.frontend.experts import expert_linear
from sglk.ir.interpret import interpret
from sglk.ir.rewrite import clone
from sglk.ir.verify import verify

Make = Callable[[int], torch.Tensor]
N = "n"


def f(*shape: Any) -> Make:
    """Normal floats; "n" stands for the symbolic size."""
    return lambda n: torch.randn([n if s == N else s for s in shape])


def p(*shape: Any) -> Make:
    """Floats between 0.1 and 1.1."""
    return lambda n: torch.rand([n if s == N else s for s in shape]) + 0.1


def i(*shape: Any) -> Make:
    """Integers from -5 to 5."""
    return lambda n: torch.randint(-5, 6, [n if s == N else s for s in shape])


def rows(*shape: Any) -> Make:
    """Indices into a table of 4 rows."""
    return lambda n: torch.randint(0, 4, [n if s == N else s for s in shape])


def b(*shape: Any) -> Make:
    return lambda n: torch.rand([n if s == N else s for s in shape]) > 0.5


CASES: dict[str, tuple[Callable[..., Any], list[Make]]] = {
    "signs": (lambda x: (-x, x.abs(), x.relu(), x.floor()), [f(N, 4)]),
    "signs-int": (lambda x: (-x, x.abs(), x.floor()), [i(N, 4)]),
    "exponentials": (lambda x: (x.exp(), x.sigmoid(), x.tanh(), x.erf()), [f(N, 4)]),
    "roots": (lambda x: (x.sqrt(), x.rsqrt(), x.reciprocal(), x.log()), [p(N, 4)]),
    "waves": (lambda x: (x.sin(), x.cos()), [f(N, 4)]),
    "of-int": (lambda x: (x.exp(), x.cos(), x.sigmoid()), [i(N, 4)]),
    "activations": (
        lambda x: (F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.relu(x)),
        [f(N, 4)],
    ),
    "add": (lambda x, y: (x + y, x + 1, 2.5 + y, torch.add(x, y, alpha=3)), [f(N, 4), f(4)]),
    "add-mixed": (lambda x, y: (x + y, y + 1, y + 0.5), [f(N, 4), i(N, 4)]),
    "sub": (lambda x, y: (x - y, 1 - x, torch.sub(x, y, alpha=2)), [f(N, 4), f(N, 1)]),
    "mul": (lambda x, y: (x * y, 3 * x, y * True), [f(N, 4), i(N, 4)]),
    "div": (lambda x, y: (x / y, 1 / x, y / 2, y // 2, y % 3), [p(N, 4), i(N, 4)]),
    "pow": (lambda x: (x**2, x**3, x**0.5, x**-0.5, x**1.7, 2.0**x), [p(N, 4)]),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=0.5), [f(N, 6), f(N, 6)]),
    "square": (lambda x: (x.square(), x * x), [f(N, 4)]),
    "clamp": (lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0.5)), [f(N, 4)]),
    "max-min": (lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)), [f(N, 4), f(N, 4)]),
    "compare": (lambda x, y: (x < y, x <= y, x > 0, x >= 0.5), [f(N, 4), f(4)]),
    "compare-int": (lambda x, y: (x == y, x != 2, x < y, x > 1.5), [i(N, 4), i(N, 4)]),
    "logic": (lambda x, y: (x & y, x | y, ~x, x.logical_and(y)), [b(N, 4), b(N, 4)]),
    "where": (
        lambda c, x, y: (torch.where(c, x, y), torch.where(c, x, 0.0), x.masked_fill(c, -1.0)),
        [b(N, 4), f(N, 4), f(4)],
    ),
    "casts": (
        lambda x, y, c: (x.to(torch.int32), y.float() / 2, c.float(), y.to(torch.int64), y.bool()),
        [f(N, 4), i(N, 4), b(N, 4)],
    ),
    "half-is-f32": (lambda x: x.to(torch.float64).float() + x.type_as(x), [f(N, 4)]),
    "copies": (lambda x: (x.clone() + 1, x.contiguous() + 2, x.detach() + 3), [f(N, 4)]),
    "view": (lambda x: (x.view(-1, 2, 2), x.reshape(-1), x.flatten(1)), [f(N, 4)]),
    "squeeze": (lambda x: (x.unsqueeze(1), x.unsqueeze(-1).squeeze(-1) + 0), [f(N, 4)]),
    "expand": (lambda x, y: (x.expand(-1, 4), x[:, None].expand_as(y)), [f(N, 1), f(N, 3, 1)]),
    "permute": (lambda x: (x.permute(2, 0, 1), x.transpose(-1, 0), x[0].t()), [f(N, 3, 4)]),
    "slice": (lambda x: (x[:, 1:3], x[:, ::2], x[:, 1::2], x[:, -2:], x[:, :-1]), [f(N, 6)]),
    "slice-n": (lambda x: (x[-1:], x[:1], x[:]), [f(N, 3)]),
    "select": (lambda x: (x[:, 0], x[:, -1], x[0], x[-1]), [f(N, 3)]),
    "cat": (lambda x, y: (torch.cat((x, y)), torch.cat((x, x, x), -1)), [f(N, 3), f(2, 3)]),
    "stack": (lambda x: (torch.stack((x, -x)), torch.stack((x, -x), -1)), [f(N, 3)]),
    "split": (lambda x: (*x.split(2, -1), *x.chunk(2, 1), *x.split([1, 5], 1)), [f(N, 6)]),
    "unbind": (lambda x: x.unbind(1), [f(N, 3)]),
    "repeat": (lambda x: (x.repeat(2, 3), x.repeat(2, 1, 1)), [f(N, 3)]),
    "repeat-interleave": (
        lambda x: (x.repeat_interleave(2, -1), x.repeat_interleave(3, 0)),
        [f(N, 3)],
    ),
    "filled": (
        lambda x: (
            torch.zeros_like(x) + x,
            torch.ones(x.shape[0], 2),
            x.new_full((2, 2), 0.5),
            torch.full_like(x, 7),
        ),
        [f(N, 3)],
    ),
    "arange": (
        lambda x: (
            torch.arange(x.shape[0]) + 0,
            torch.arange(3, 3 + x.shape[0]),
            torch.arange(0, 8, 2) * x.sum(),
            torch.arange(x.shape[0], dtype=torch.float32) * 0.5,
        ),
        [f(N, 3)],
    ),
    "linear": (
        lambda x, w, c: (F.linear(x, w), F.linear(x, w, c), F.linear(x[0], w)),
        [f(N, 4), f(3, 4), f(3)],
    ),
    "matmul": (
        lambda x, y, z: (x @ y, x @ z, z @ y, x[0] @ y, torch.mm(x, y)),
        [f(N, 4), f(4, 5), f(4)],
    ),
    "bmm": (lambda x, y: (x @ y, torch.bmm(x, y[0].expand(2, -1, -1))), [f(2, N, 4), f(2, 4, 3)]),
    "addmm": (
        lambda c, x, y: (torch.addmm(c, x, y), torch.addmm(c, x, y, beta=0.5, alpha=2)),
        [f(5), f(N, 4), f(4, 5)],
    ),
    "embedding": (lambda t, r: (F.embedding(r, t), t[r]), [f(4, 3), rows(2, N)]),
    "index-select": (lambda t, r: t.index_select(0, r), [f(4, 3), rows(N)]),
    "layer-norm": (
        lambda x, w: (F.layer_norm(x, (8,)), F.layer_norm(x, (8,), w, w, 1e-3)),
        [f(N, 8), f(8)],
    ),
    "rms-norm": (
        lambda x, w: (F.rms_norm(x, (8,)), F.rms_norm(x, (8,), w, 1e-3)),
        [f(N, 8), f(8)],
    ),
    "reductions": (
        lambda x: (x.sum(), x.sum(-1), x.mean(-1, True), x.mean((0, 2)), x.amax(1), x.max()),
        [f(N, 3, 4)],
    ),
    "max-dim": (lambda x: (*x.max(-1), x.argmax(-1), x.argmax(0, True)), [f(N, 5)]),
    "sum-int": (lambda x, c: (x.sum(-1), c.sum(-1)), [i(N, 5), b(N, 5)]),
    "variance": (lambda x: (x.var(-1), x.var(1, correction=0, keepdim=True)), [f(N, 5)]),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(-1)), [f(N, 5)]),
    "top-k": (
        lambda x: (*x.topk(2), *x.topk(2, 1, largest=False), *x.sort(), *x.sort(1, True)),
        [f(N, 5)],
    ),
    "argsort": (lambda x: (x.argsort(-1), x.argsort(1, descending=True)), [f(N, 5)]),
    "gather": (lambda x, r: (x.gather(1, r), x[0].gather(0, r[0])), [f(N, 4), rows(N, 3)]),
    "scatter": (
        lambda x, r: (x.scatter(1, r, 2.0), x.scatter(1, r.topk(1)[0], x + 1)),
        [f(N, 4), rows(N, 3)],
    ),
    "cumsum": (
        lambda x, r: (x.cumsum(-1), r.cumsum(1), torch.ones_like(x).cumsum(0)),
        [f(N, 4), i(N, 3)],
    ),
    "triangles": (lambda x: (x.tril(), x.triu(), x.tril(1), x.triu(-2)), [f(2, N, 4)]),
    "one-hot": (lambda r: F.one_hot(r, 4), [rows(N, 3)]),
    "index-constant": (
        lambda x: (x[..., [-1], :], x[:, [0, 2, 3]], x.index_select(1, torch.tensor([1, 0]))),
        [f(N, 4, 2)],
    ),
    "softplus": (
        lambda x: (F.softplus(x), F.softplus(40 * x, 0.5), x.exp().log1p(), x.expm1()),
        [f(N, 5)],
    ),
    "experts": (lambda x, w, r: expert_linear(x, w, r), [f(N, 4), f(4, 3, 4), rows(N, 2)]),
    "experts-apart": (
        lambda x, w, r: expert_linear(x, w, r),
        [f(N, 2, 4), f(4, 3, 4), rows(N, 2)],
    ),
    "complex": (
        lambda x, a: torch.view_as_real(
            torch.view_as_complex(x).unsqueeze(1)
            * (torch.polar(torch.ones_like(a), a) * 0.5)[:, None]
        ),
        [f(N, 3, 2), f(N, 3)],
    ),
    "dropout-eval": (lambda x: F.dropout(x, 0.5, training=False) + 1, [f(N, 5)]),
    "sdpa": (
        lambda q, k: (
            F.scaled_dot_product_attention(q, k, k),
            F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3),
        ),
        [f(1, 4, N, 8), f(1, 4, N, 8)],
    ),
    "attention": (
        lambda q, k, s: (
            attention(q, k, k, 0.3, True, None, None, None),
            attention(q, k, k, 0.3, True, 3, None, None),
            attention(q, k, k, 0.3, True, None, 2.0, s),
            attention(q, k, k, 0.3, False, None, None, None),
        ),
        [f(1, 4, N, 8), f(1, 2, N, 8), f(4)],
    ),
    # In-place ops and the rest arrive through decomposition.
    "in-place": (lambda x: (x + 1).mul_(2).add_(x), [f(N, 4)]),
    "assign-slice": (lambda x: _assigned(x), [f(N, 6)]),
    "decomposed": (lambda x: (F.relu6(x), F.leaky_relu(x), x.std(-1), x.diff(dim=1)), [f(N, 6)]),
}


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[:, :2] = x[:, 4:]
    y[:, 2:] = 1.0
    return y


class Call(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> Any:
        return self.function(*operands)


@pytest.mark.parametrize("case", CASES)
def test_converter_and_reference_agree_with_torch(case: str) -> None:
    function, makers = CASES[case]
    torch.manual_seed(0)
    example = [make(7) for make in makers]
    graph = load_model(Call(function), example, dims=_dims(makers)).graph
    verify(graph)
    for size in (1, 5):
        operands = [make(size) for make in makers]
        wanted = function(*operands)
        arrays = {v.name: _array(t) for v, t in zip(graph.inputs, operands, strict=True)}
        results = interpret(clone(graph, {N: size}), arrays)
        wanted = wanted if isinstance(wanted, tuple | list) else (wanted,)
        assert len(results) == len(wanted)
        for got, tensor in zip(results, wanted, strict=True):
            _compare(np.asarray(got), _array(tensor))


def _dims(makers: list[Make]) -> dict[str, dict[int, str]]:
    """Which axes follow n, found by asking for two sizes; operands are called operands_0, ..."""
    sizes = [(make(11).shape, make(13).shape) for make in makers]
    return {
        f"operands_{index}": {
            axis: N for axis, (a, c) in enumerate(zip(*pair, strict=True)) if a != c
        }
        for index, pair in enumerate(sizes)
    }


def _array(tensor: torch.Tensor) -> np.ndarray:
    array = tensor.detach().numpy()
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _compare(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if got.dtype == np.float32:
        scale = max(float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)), 1e-30)
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6 * scale)
    else:
        np.testing.assert_array_equal(got, wanted)
