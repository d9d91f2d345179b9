"""paged_attention against dense attention in f64; rows keep their bits in any company."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels import attention

Launch = Callable[..., None]
Array = NDArray[Any]
PAGE = 32


@dataclass(frozen=True)
class Shape:
    kv_heads: int = 3
    group: int = 3
    dim: int = 64
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True)
class Request:
    """`length` tokens so far, the last `queries` of them in this step."""

    length: int
    queries: int
    seed: int

    def tensors(self, shape: Shape) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(self.seed)
        heads = shape.kv_heads * shape.group
        q = rng.standard_normal((self.length, heads, shape.dim), dtype=np.float32)
        kv = rng.standard_normal((2, self.length, shape.kv_heads, shape.dim), dtype=np.float32)
        return q, kv[0], kv[1]


def as_it_is(array: Array) -> Array:
    return array


def to_f16(array: Array) -> Array:
    half: Array = array.astype(np.float16)
    return half


def reference(
    request: Request,
    shape: Shape,
    sinks: Array | None = None,
    stored: Callable[[Array], Any] = as_it_is,
    asked: Callable[[Array], Any] = as_it_is,
) -> Array:
    """`stored` gives what the cache holds of K and V, `asked` what a product sees of q."""
    q, k, v = request.tensors(shape)
    q, k, v = (part.astype(np.float64) for part in (asked(q), stored(k), stored(v)))
    position = np.arange(request.length)
    seen = position[None, :] <= position[:, None]
    if shape.window:
        seen &= position[None, :] > position[:, None] - shape.window
    out = np.zeros(q.shape)
    for head in range(q.shape[1]):
        score = q[:, head] @ k[:, head // shape.group].T / np.sqrt(shape.dim)
        if shape.softcap:
            score = shape.softcap * np.tanh(score / shape.softcap)
        weight = np.where(seen, np.exp(score), 0.0)
        total = weight.sum(1) + (0.0 if sinks is None else np.exp(np.float64(sinks[head])))
        out[:, head] = weight @ v[:, head // shape.group] / total[:, None]
    return out[request.length - request.queries :]


def paged(requests: list[Request], shape: Shape, poison: float) -> dict[str, Array]:
    """The flat-token form; pages in random order, every unused cell poisoned."""
    pages = max([1, *(-(-request.length // PAGE) for request in requests)])
    order = iter(np.random.default_rng(5).permutation(np.arange(1, len(requests) * pages + 1)))
    table = np.zeros((len(requests), pages), np.int32)
    k_cache = np.full((len(requests) * pages + 1, shape.kv_heads, shape.dim, PAGE), poison)
    v_cache = np.full((len(requests) * pages + 1, shape.kv_heads, PAGE, shape.dim), poison)
    queries = []
    for row, request in enumerate(requests):
        q, k, v = request.tensors(shape)
        queries.append(q[request.length - request.queries :])
        for at in range(0, request.length, PAGE):
            page = table[row, at // PAGE] = next(order)
            part = slice(at, min(at + PAGE, request.length))
            k_cache[page, :, :, : part.stop - at] = k[part].transpose(1, 2, 0)
            v_cache[page, :, : part.stop - at] = v[part].transpose(1, 0, 2)
    starts = np.cumsum([0, *(request.queries for request in requests)])
    return {
        "q": np.concatenate(queries),
        "k_cache": k_cache.astype(np.float32),
        "v_cache": v_cache.astype(np.float32),
        "query_start": starts.astype(np.int32),
        "seq_lens": np.array([request.length for request in requests], np.int32),
        "page_table": table,
    }


MIXED = [Request(1, 1, 1), Request(40, 40, 2), Request(33, 1, 3), Request(97, 31, 4)]


def attention_call(
    requests: list[Request], shape: Shape, block_m: int, padding: int = 0, **given: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Kernel, constants and arguments; y and everything beyond the requests is poisoned."""
    arrays: dict[str, Any] = paged(requests, shape, float("nan"))
    convert = given.get("convert", as_it_is)
    arrays |= {name: convert(arrays[name]) for name in ("k_cache", "v_cache")}
    pad = np.full((padding, *arrays["q"].shape[1:]), np.nan, np.float32)
    arrays["q"] = np.concatenate([arrays["q"], pad])
    constants = {
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "D": shape.dim,
        "PAGE": PAGE,
        "WINDOW": shape.window,
        "SOFTCAP": shape.softcap,
        "BLOCK_M": block_m,
        "BLOCK_D": 1 << (shape.dim - 1).bit_length(),
        "BF16": given.get("rounds", False),
    }
    arguments = {
        **arrays,
        "sinks": given.get("sinks"),
        "y": np.full(arrays["q"].shape, np.nan, np.float32),
        "seqs": len(requests),
        "pages": arrays["page_table"].shape[1],
        "scale": shape.dim**-0.5,
    }
    return attention.paged_attention, constants, arguments


def attend(
    launch: Launch,
    requests: list[Request],
    shape: Shape,
    block_m: int,
    padding: int = 0,
    **given: Any,
) -> Array:
    kernel, constants, arguments = attention_call(requests, shape, block_m, padding, **given)
    y: Array = arguments["y"]
    tiles = len(y) * shape.group // block_m + len(requests)
    launch(kernel, (shape.kv_heads, tiles, 1), constants, **arguments)
    assert np.isnan(y[len(y) - padding :]).all()
    return y[: len(y) - padding]


OPTIONS = {
    "one-head": (Shape(kv_heads=1, group=1, dim=64), 1),
    "dim-80": (Shape(kv_heads=2, group=4, dim=80), 4),
    "window": (Shape(window=20), 16),
    "softcap": (Shape(softcap=2.0), 16),
}
SINKS = np.linspace(-2, 3, 9).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def all_variants(launch: Any, bf16: Callable[[Array], Any]) -> None:
    """Compiles them together, on all cores."""
    plain = [(Shape(), block_m) for block_m in (4, 16, 64)]
    calls = [attention_call(MIXED, *pair) for pair in (*plain, *OPTIONS.values())]
    calls += [attention_call(MIXED, Shape(), 16, convert=bf16)]
    calls += [attention_call(MIXED, Shape(), rows, convert=to_f16) for rows in (4, 16)]
    calls += [attention_call(MIXED, Shape(), 16, sinks=SINKS)]
    calls += [attention_call(MIXED, Shape(window=20), 4)]
    for rows in (4, 16, 64):
        calls += [attention_call(MIXED, Shape(), rows, convert=bf16, rounds=True)]
    launch.prepare(calls)


@pytest.mark.parametrize("block_m", [4, 16, 64])
@pytest.mark.parametrize(
    "requests",
    [
        [Request(1, 1, 0)],
        [Request(32, 1, 0)],
        [Request(70, 70, 0)],
        MIXED,
        [Request(5, 0, 1), Request(33, 2, 2), Request(0, 0, 3), Request(64, 3, 4)],
    ],
    ids=["first", "decode", "prefill", "mixed", "empty"],
)
def test_equals_dense_attention(launch: Launch, requests: list[Request], block_m: int) -> None:
    got = attend(launch, requests, Shape(), block_m, padding=3)
    expected = np.concatenate([reference(request, Shape()) for request in requests])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "block_m"), OPTIONS.values(), ids=OPTIONS)
def test_options(launch: Launch, shape: Shape, block_m: int) -> None:
    got = attend(launch, MIXED, shape, block_m)
    expected = np.concatenate([reference(request, shape) for request in MIXED])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_sinks_take_their_share(launch: Launch) -> None:
    got = attend(launch, MIXED, Shape(), 16, sinks=SINKS)
    expected = np.concatenate([reference(request, Shape(), SINKS) for request in MIXED])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_bf16_cache(launch: Launch, bf16: Callable[[Array], Any]) -> None:
    got = attend(launch, MIXED, Shape(), 16, convert=bf16)
    stored = [reference(r, Shape(), stored=lambda x: bf16(x).floats()) for r in MIXED]
    np.testing.assert_allclose(got, np.concatenate(stored), rtol=1e-5, atol=1e-6)


def test_products_of_bf16(launch: Launch, bf16: Callable[[Array], Any]) -> None:
    """q and the softmax's weights are rounded: each weight by up to 2^-9 of it."""

    def rounded(x: Array) -> Any:
        return bf16(x).floats()

    got = attend(launch, MIXED, Shape(), 16, convert=bf16, rounds=True)
    wanted = [reference(r, Shape(), stored=rounded, asked=rounded) for r in MIXED]
    error = got - np.concatenate(wanted)
    assert np.abs(error).max() < 4e-3
    unrounded = np.concatenate([reference(r, Shape(), stored=rounded) for r in MIXED])
    assert np.linalg.norm(got - unrounded) > 1.2 * np.linalg.norm(error), "q is rounded"
    for block_m in (4, 64):
        again = attend(launch, MIXED, Shape(), block_m, convert=bf16, rounds=True)
        assert np.array_equal(again, got)
    decode = attend(launch, [Request(97, 1, 4)], Shape(), 4, convert=bf16, rounds=True)
    assert np.array_equal(decode[0], got[-1])


def test_f16_cache(launch: Launch) -> None:
    got = attend(launch, MIXED, Shape(), 16, convert=to_f16)
    stored = [reference(request, Shape(), stored=to_f16) for request in MIXED]
    np.testing.assert_allclose(got, np.concatenate(stored), rtol=1e-5, atol=1e-6)
    assert np.array_equal(attend(launch, MIXED, Shape(), 4, convert=to_f16), got)
    decode = attend(launch, [Request(97, 1, 4)], Shape(), 4, convert=to_f16)
    assert np.array_equal(decode[0], got[-1])


@pytest.mark.parametrize("window", [0, 20])
def test_bits_do_not_depend_on_tile_chunk_or_company(launch: Launch, window: int) -> None:
    shape = Shape(window=window)
    whole = attend(launch, [Request(97, 97, 4)], shape, 16)
    for block_m in (4, 64) if not window else (4,):
        assert np.array_equal(attend(launch, [Request(97, 97, 4)], shape, block_m), whole)
    company = attend(launch, MIXED, shape, 16, padding=5)
    assert np.array_equal(company[-31:], whole[-31:])
    decode = attend(launch, [Request(97, 1, 4), Request(33, 1, 3)], shape, 4)
    assert np.array_equal(decode[0], whole[-1])
