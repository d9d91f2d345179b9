"""Op references against torch on random operands: whoever misread an op twice is caught here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sglk.ir.dtype import BF16, BOOL, F16, F32, I8, I32, I64, U8, DType, round_bf16
from sglk.ir.op import Array, Op
from sglk.ir.ops import elementwise as ew
from sglk.ir.ops.attention import Attention, PagedAttention, RopeWriteKv
from sglk.ir.ops.linear import GatedLinear, Linear, MatMul
from sglk.ir.ops.moe import MoeRoute
from sglk.ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from sglk.ir.ops.reduce import Argmax, Max, Mean, Softmax, Sum
from sglk.ir.ops.rope import Rope, RopeTable
from sglk.ir.ops.sparse import Embedding, GatherRows
from sglk.ir.testing import assert_close, random_blocks

Floats = NDArray[np.float32]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def t(x: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x))


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, np.float32)


# Element by element ---------------------------------------------------------------------------

UNARY: dict[type[Op], Callable[..., torch.Tensor]] = {
    ew.Neg: torch.neg,
    ew.Abs: torch.abs,
    ew.Exp: torch.exp,
    ew.Log: torch.log,
    ew.Sqrt: torch.sqrt,
    ew.Rsqrt: torch.rsqrt,
    ew.Reciprocal: torch.reciprocal,
    ew.Sin: torch.sin,
    ew.Cos: torch.cos,
    ew.Tanh: torch.tanh,
    ew.Erf: torch.erf,
    ew.Sigmoid: torch.sigmoid,
    ew.Silu: F.silu,
    ew.Gelu: F.gelu,
    ew.GeluTanh: lambda x: F.gelu(x, approximate="tanh"),
    ew.Relu: torch.relu,
    ew.Floor: torch.floor,
}
BINARY: dict[type[Op], Callable[..., torch.Tensor]] = {
    ew.Add: torch.add,
    ew.Sub: torch.sub,
    ew.Mul: torch.mul,
    ew.Div: torch.div,
    ew.FloorDiv: torch.floor_divide,
    ew.Mod: torch.remainder,
    ew.Maximum: torch.maximum,
    ew.Minimum: torch.minimum,
    ew.Eq: torch.eq,
    ew.Ne: torch.ne,
    ew.Lt: torch.lt,
    ew.Le: torch.le,
    ew.Gt: torch.gt,
    ew.Ge: torch.ge,
}
SPECIAL = np.array([0, -0.0, 1, -1, 88, -88, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)


def same(got: Array, wanted: torch.Tensor, rtol: float = 2e-6) -> None:
    assert got.shape == tuple(wanted.shape)
    assert got.dtype == wanted.numpy().dtype
    np.testing.assert_allclose(got, wanted.numpy(), rtol=rtol, atol=1e-7, equal_nan=True)


def test_every_elementwise_op_is_compared() -> None:
    rest = {ew.Not, ew.And, ew.Or, ew.Pow, ew.Bitcast}
    named = {c for c in vars(ew).values() if isinstance(c, type) and issubclass(c, Op) and c.name}
    assert named - {ew.Where, ew.Cast} == {*UNARY, *BINARY, *rest}


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.name)
def test_unary(op: type[Op], rng: np.random.Generator) -> None:
    x = normal(rng, 300) * 4
    same(op().reference(x), UNARY[op](t(x).double()).float())
    # torch reduces the argument 1e30 otherwise, and its vectorised gelu makes NaN of infinity.
    special = SPECIAL[: {"sin": 6, "cos": 6, "gelu": 8}.get(op.name)]
    same(op().reference(special), UNARY[op](t(special)))


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.name)
def test_binary_with_broadcast(op: type[Op], rng: np.random.Generator) -> None:
    a, b = normal(rng, 3, 1, 50), normal(rng, 4, 1)
    same(op().reference(a, b), BINARY[op](t(a), t(b)))
    same(op().reference(np.rint(a), np.rint(a)), BINARY[op](t(np.rint(a)), t(np.rint(a))))


@pytest.mark.parametrize("op", [ew.Maximum, ew.Minimum, ew.Eq, ew.Lt, ew.Add, ew.Mul])
def test_binary_with_special_values(op: type[Op]) -> None:
    a, b = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    same(op().reference(a, b), BINARY[op](t(a), t(b)))


@pytest.mark.parametrize("op", [ew.Add, ew.Sub, ew.Mul, ew.FloorDiv, ew.Mod, ew.Maximum, ew.Lt])
def test_binary_on_integers(op: type[Op], rng: np.random.Generator) -> None:
    a, b = (rng.integers(-9, 9, 200).astype(np.int32) for _ in range(2))
    b[b == 0] = 5
    np.testing.assert_array_equal(op().reference(a, b), BINARY[op](t(a), t(b)).numpy())


def test_pow(rng: np.random.Generator) -> None:
    a, b = np.abs(normal(rng, 99)), normal(rng, 99)
    same(ew.Pow().reference(a, b), torch.pow(t(a), t(b)), 1e-5)


def test_logic(rng: np.random.Generator) -> None:
    a, b = (rng.integers(0, 2, 30).astype(bool) for _ in range(2))
    np.testing.assert_array_equal(ew.And().reference(a, b), (t(a) & t(b)).numpy())
    np.testing.assert_array_equal(ew.Or().reference(a, b), (t(a) | t(b)).numpy())
    np.testing.assert_array_equal(ew.Not().reference(a), (~t(a)).numpy())
    x, y = normal(rng, 4, 30), normal(rng, 1)
    same(ew.Bitcast(I32).reference(x), t(x).view(torch.int32))
    np.testing.assert_array_equal(ew.Where().reference(a, x, y), torch.where(t(a), t(x), t(y)))


TORCH = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16, I8: torch.int8}
TORCH |= {U8: torch.uint8, I32: torch.int32, I64: torch.int64, BOOL: torch.bool}


@pytest.mark.parametrize("to", TORCH, ids=str)
@pytest.mark.parametrize("source", [F32, F16, I32, BOOL], ids=str)
def test_cast(source: DType, to: DType, rng: np.random.Generator) -> None:
    x = np.abs(rng.standard_normal(500) * 50).astype(source.numpy)
    got = ew.Cast(to).reference(x)
    wanted = t(x).to(TORCH[to])
    wanted = wanted.float() if to == BF16 else wanted
    np.testing.assert_array_equal(got, wanted.numpy())


def test_rounding_to_bf16_on_ties_edges_and_random_bits(rng: np.random.Generator) -> None:
    bits = rng.integers(0, 2**32, 200_000, np.uint64).astype(np.uint32)
    ties = (rng.integers(0, 2**16, 5_000, np.uint64).astype(np.uint32) << 16) | 0x8000
    edges = np.array([0, 1, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0x7FC00000], np.uint32)
    for case in (bits, ties, edges):
        x = case.view(np.float32)
        got, wanted = round_bf16(x), t(x).bfloat16().float().numpy()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        real = ~np.isnan(wanted)
        np.testing.assert_array_equal(got[real].view(np.uint32), wanted[real].view(np.uint32))


# Reductions, norms, rows ----------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(axis: int, keepdim: bool, rng: np.random.Generator) -> None:
    x = normal(rng, 4, 7, 33)
    same(Sum(axis, keepdim).reference(x), t(x).sum(axis, keepdim=keepdim), 1e-5)
    same(Mean(axis, keepdim).reference(x), t(x).mean(axis, keepdim=keepdim), 1e-5)
    same(Max(axis, keepdim).reference(x), t(x).amax(axis, keepdim=keepdim), 0)
    same(Softmax(axis).reference(x * 9), t(x * 9).softmax(axis), 1e-5)
    wanted = t(x).argmax(axis, keepdim=keepdim).int()
    np.testing.assert_array_equal(Argmax(axis, keepdim).reference(x), wanted)


def test_argmax_takes_the_first_of_equals() -> None:
    x = np.array([[1, 3, 3, 2], [5, 5, 5, 5]], np.float32)
    np.testing.assert_array_equal(Argmax().reference(x), [1, 0])


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.1])
def test_norms(eps: float, rng: np.random.Generator) -> None:
    x, r, w, b = normal(rng, 5, 64), normal(rng, 5, 64), normal(rng, 64), normal(rng, 64)
    assert_close(RmsNorm(eps).reference(x, w), F.rms_norm(t(x), (64,), t(w), eps), 2e-6)
    wanted = F.layer_norm(t(x), (64,), t(w), t(b), eps)
    assert_close(LayerNorm(eps).reference(x, w, b), wanted, 2e-6)
    total, normed = AddRmsNorm(eps).reference(x, r, w)
    assert_close(total, t(x) + t(r), 0)
    assert_close(normed, F.rms_norm(t(x) + t(r), (64,), t(w), eps), 2e-6)


def test_rows(rng: np.random.Generator) -> None:
    table, ids = normal(rng, 11, 6), rng.integers(0, 11, (2, 5)).astype(np.int32)
    assert_close(Embedding().reference(table, ids), F.embedding(t(ids).long(), t(table)), 0)
    assert_close(GatherRows().reference(table, ids[0]), t(table)[t(ids[0]).long()], 0)
    blocks = random_blocks("q4_1", (11, 64), rng)
    wanted = F.embedding(t(ids).long(), t(blocks.dequantize()))
    assert_close(Embedding().reference(blocks, ids), wanted, 0)


# Products -------------------------------------------------------------------------------------

TORCH_ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("name", ew.ACTIVATIONS)
def test_linear_and_gated_linear(name: str, rng: np.random.Generator) -> None:
    act = TORCH_ACTIVATIONS[name]
    x, w, b, r = normal(rng, 3, 9, 32), normal(rng, 10, 32), normal(rng, 10), normal(rng, 3, 9, 10)
    got = Linear(has_bias=True, has_residual=True, activation=name).reference(x, w, b, r)
    assert_close(got, act(F.linear(t(x), t(w), t(b))) + t(r), 2e-6)
    gate, up = t(x) @ t(w[:5]).T, t(x) @ t(w[5:]).T
    assert_close(GatedLinear(name).reference(x, w), act(gate) * up, 2e-6)


def test_linear_on_blocks_uses_their_exact_values(rng: np.random.Generator) -> None:
    x, w = normal(rng, 4, 64), random_blocks("q5_1", (12, 64), rng)
    assert_close(Linear().reference(x, w), F.linear(t(x), t(w.dequantize())), 2e-6)


def test_matmul(rng: np.random.Generator) -> None:
    a, b = normal(rng, 2, 1, 5, 16), normal(rng, 3, 16, 7)
    assert_close(MatMul().reference(a, b), t(a) @ t(b), 2e-6)
    half = MatMul().reference(a.astype(np.float16), b.astype(np.float16))
    assert_close(half, (t(a).half() @ t(b).half()).float(), 1e-3)


@pytest.mark.parametrize("renormalize", [True, False])
def test_moe_routing(renormalize: bool, rng: np.random.Generator) -> None:
    logits = normal(rng, 20, 8)
    ids, weights = MoeRoute(3, renormalize).reference(logits)
    chosen, wanted_ids = torch.topk(t(logits).softmax(-1), 3)
    if renormalize:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    np.testing.assert_array_equal(ids, wanted_ids.int())
    assert_close(weights, chosen, 2e-6)


# Rotary embedding -----------------------------------------------------------------------------


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """transformers' modeling_llama.py."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def test_rope_table_and_rope_as_transformers_computes_them(rng: np.random.Generator) -> None:
    inv_freq = (10000.0 ** (-np.arange(0, 16, 2) / 16)).astype(np.float32)
    positions = np.array([0, 1, 5, 2047, 131071], np.int32)
    freqs = t(positions).float()[:, None] * t(inv_freq)[None]
    cos, sin = RopeTable(1.25).reference(positions, inv_freq)
    assert_close(cos, freqs.cos() * 1.25, 1e-6)
    assert_close(sin, freqs.sin() * 1.25, 1e-6)
    x = normal(rng, 5, 3, 16)
    emb = torch.cat((freqs, freqs), -1)[:, None]
    wanted = (t(x) * emb.cos() + rotate_half(t(x)) * emb.sin()) * 1.25
    assert_close(Rope().reference(x, cos, sin), wanted, 2e-6)


def test_interleaved_rope_is_multiplication_of_complex_numbers(rng: np.random.Generator) -> None:
    x, angle = normal(rng, 4, 2, 8), normal(rng, 4, 3)
    pairs = torch.view_as_complex(t(x[..., :6]).reshape(4, 2, 3, 2))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones(4, 3), t(angle))[:, None])
    wanted = torch.cat((turned.reshape(4, 2, 6), t(x[..., 6:])), -1)
    got = Rope(interleaved=True).reference(x, np.cos(angle), np.sin(angle))
    assert_close(got, wanted, 2e-6)


# Attention ------------------------------------------------------------------------------------


def torch_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    seen: torch.Tensor,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """[H, T, D] with f64 scores, written as gpt-oss and Gemma 2 do in transformers."""
    k, v = (x.double().repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    scores = q.double() @ k.transpose(-1, -2) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is None:
        return scores.softmax(-1) @ v
    column = sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ v


def causal(tokens: int, window: int | None = None) -> torch.Tensor:
    behind = torch.arange(tokens)[:, None] - torch.arange(tokens)[None]
    return (behind >= 0) & (behind < (window or tokens))


def qkv(rng: np.random.Generator, batch: int = 2, tokens: int = 9) -> tuple[Floats, ...]:
    return tuple(normal(rng, batch, heads, tokens, 8) for heads in (4, 2, 2))


@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_causal_attention_equals_sdpa(window: int | None, rng: np.random.Generator) -> None:
    q, k, v = qkv(rng)
    got = Attention(scale=0.3, window=window).reference(q, k, v)
    mask = causal(9, window)
    wanted = F.scaled_dot_product_attention(
        t(q), t(k), t(v), attn_mask=mask, scale=0.3, enable_gqa=True
    )
    assert_close(got, wanted.transpose(1, 2), 2e-6)


def test_attention_that_is_not_causal_equals_sdpa(rng: np.random.Generator) -> None:
    q, k, v = qkv(rng)
    got = Attention(scale=0.3, causal=False).reference(q, k[:, :, :5], v[:, :, :5])
    wanted = F.scaled_dot_product_attention(
        t(q), t(k[:, :, :5]), t(v[:, :, :5]), scale=0.3, enable_gqa=True
    )
    assert_close(got, wanted.transpose(1, 2), 2e-6)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_with_softcap_and_sinks(
    softcap: float | None, with_sinks: bool, rng: np.random.Generator
) -> None:
    q, k, v = qkv(rng, batch=1)
    sinks = [normal(rng, 4) * 3] if with_sinks else []
    op = Attention(scale=0.5, softcap=softcap, window=5, has_sinks=with_sinks)
    wanted = torch_attention(
        *map(t, (q[0], k[0], v[0])),
        scale=0.5,
        seen=causal(9, 5),
        softcap=softcap,
        sinks=t(sinks[0]) if sinks else None,
    )
    assert_close(op.reference(q, k, v, *sinks)[0], wanted.transpose(0, 1), 2e-6)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_paged_attention_equals_plain_attention(
    window: int | None, softcap: float | None, with_sinks: bool, rng: np.random.Generator
) -> None:
    """Three sequences: a prefill, a chunk after 6 cached tokens, a decode step."""
    lengths, fresh, page_size = [7, 11, 5], [7, 5, 1], 4
    table = np.array([[9, 2, 0], [4, 7, 1], [3, 8, 0]], np.int32)
    state = normal(rng, 2, 2, 40, 2, 8)
    sinks = [normal(rng, 4)] if with_sinks else []
    start = np.cumsum([0, *fresh]).astype(np.int32)
    q = normal(rng, int(start[-1]) + 2, 4, 8)  # two padded rows at the end
    op = PagedAttention(1, 0.4, page_size, window=window, softcap=softcap, has_sinks=with_sinks)
    got = op.reference(q, state, start, np.array(lengths, np.int32), table, *sinks)
    assert not got[start[-1] :].any()
    for s, (length, new) in enumerate(zip(lengths, fresh, strict=True)):
        slots = [table[s, i // page_size] * page_size + i % page_size for i in range(length)]
        k, v = (t(state[1, i, slots]).transpose(0, 1) for i in (0, 1))
        rows = slice(start[s], start[s + 1])
        wanted = torch_attention(
            t(q[rows]).transpose(0, 1),
            k,
            v,
            scale=0.4,
            seen=causal(length, window)[length - new :],
            softcap=softcap,
            sinks=t(sinks[0]) if sinks else None,
        )
        assert_close(got[rows], wanted.transpose(0, 1), 2e-6, f"sequence {s}")


@pytest.mark.parametrize("kv_dtype", [F32, BF16], ids=str)
def test_rope_write_kv_splits_rotates_and_stores(kv_dtype: DType, rng: np.random.Generator) -> None:
    qkv, angle = normal(rng, 3, 8 * 8), normal(rng, 3, 4)
    state, slots = np.zeros((2, 2, 16, 2, 8), np.float32), np.array([5, 2, 9], np.int32)
    cos, sin = np.cos(angle), np.sin(angle)
    q, after = RopeWriteKv(4, 1, kv_dtype).reference(qkv, cos, sin, state, slots)
    parts = t(qkv).reshape(3, 8, 8)
    emb = [torch.cat((x, x), -1)[:, None] for x in (t(cos), t(sin))]
    turned = parts * emb[0] + rotate_half(parts) * emb[1]
    assert_close(q, turned[:, :4], 2e-6)
    stored = after[1][:, slots]
    rtol = 2e-6 if kv_dtype == F32 else 4e-3
    assert_close(stored[0], turned[:, 4:6], rtol)
    assert_close(stored[1], parts[:, 6:], rtol)
    if kv_dtype == BF16:
        np.testing.assert_array_equal(after, round_bf16(after))
    assert not after[0].any() and not state.any()
