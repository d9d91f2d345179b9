"""flash_attention and decode_attention against dense attention in f64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels import decode_attention, flash_attention

Launch = Callable[..., None]
Array = NDArray[Any]
ToBF16 = Callable[[Array], Any]
pytestmark = pytest.mark.device
PAGE = 64
FREE = 3  # rows of padding


@dataclass(frozen=True)
class Shape:
    kv_heads: int = 1
    group: int = 3
    dim: int = 64
    window: int = 0
    softcap: float = 0.0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def constants(self) -> dict[str, Any]:
        return {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "D": self.dim,
            "PAGE": PAGE,
            "WINDOW": self.window,
            "SOFTCAP": self.softcap,
            "BLOCK_D": 1 << (self.dim - 1).bit_length(),
            "PDL": False,
        }


@dataclass(frozen=True)
class Request:
    """`length` tokens so far, the last `queries` of them in this step."""

    length: int
    queries: int


@dataclass
class Batch:
    """Requests in pages of random order; every unused cell and row is NaN."""

    requests: list[Request]
    shape: Shape
    sinks: Array | None
    arguments: dict[str, Any]
    expected: Array
    """[T, H, D], NaN in rows of padding."""

    @property
    def tokens(self) -> int:
        return len(self.expected)

    def got(self) -> Array:
        values: Array = self.arguments["y"].floats()
        return values


def attend(q: Array, k: Array, v: Array, shape: Shape, sinks: Array | None) -> Array:
    """Rows of q [queries, H, D], the last of k, v [length, KV_HEADS, D], in f64."""
    position = np.arange(len(k) - len(q), len(k))[:, None]
    key = np.arange(len(k))[None, :]
    seen = key <= position
    if shape.window:
        seen &= key > position - shape.window
    wide = (np.repeat(x.astype(np.float64), shape.group, axis=1) for x in (k, v))
    keys, values = (x.swapaxes(0, 1) for x in wide)
    # matrix products, not einsum: a batch of long prompts takes seconds, not minutes
    score = q.astype(np.float64).swapaxes(0, 1) @ keys.swapaxes(1, 2) * shape.dim**-0.5
    if shape.softcap:
        score = shape.softcap * np.tanh(score / shape.softcap)
    weight = np.where(seen, np.exp(score), 0.0)
    total = weight.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64))[:, None, None]
    rows: Array = (weight / total @ values).swapaxes(0, 1)
    return rows


def batch_of(requests: list[Request], shape: Shape, bf16: ToBF16, has_sinks: bool = False) -> Batch:
    rng = np.random.default_rng(7)
    pages = max(1, *(-(-request.length // PAGE) for request in requests))
    cells = (len(requests) * pages + 1, shape.kv_heads, PAGE, shape.dim)
    caches = np.full((2, *cells), np.nan, np.float32)
    order = iter(rng.permutation(np.arange(1, cells[0])))
    table = np.zeros((len(requests), pages), np.int32)
    starts = np.cumsum([0, *(request.queries for request in requests)]).astype(np.int32)
    q = np.full((starts[-1] + FREE, shape.heads, shape.dim), np.nan, np.float32)
    expected = q.astype(np.float64)
    sinks = rng.standard_normal(shape.heads).astype(np.float32) if has_sinks else None
    for s, request in enumerate(requests):
        rng = np.random.default_rng([7, s])  # a request is the same in any company
        rows = slice(starts[s], starts[s + 1])
        wanted = (request.queries, shape.heads, shape.dim)
        q[rows] = bf16(rng.standard_normal(wanted)).floats()
        kv = bf16(rng.standard_normal((2, request.length, *cells[1::2]))).floats()
        expected[rows] = attend(q[rows], kv[0], kv[1], shape, sinks)
        for at in range(0, request.length, PAGE):
            page = table[s, at // PAGE] = next(order)
            part = kv[:, at : at + PAGE]
            caches[:, page, :, : part.shape[1]] = part.swapaxes(1, 2)
    arguments = {
        "q": bf16(q),
        "k_cache": bf16(caches[0]),
        "v_cache": bf16(caches[1]),
        "query_start": starts,
        "seq_lens": np.array([request.length for request in requests], np.int32),
        "page_table": table,
        "sinks": sinks,
        "y": bf16(np.full(q.shape, np.nan, np.float32)),
        "seqs": len(requests),
        "pages": pages,
        "scale": shape.dim**-0.5,
    }
    return Batch(requests, shape, sinks, arguments, expected)


def run_flash(
    launch: Launch,
    batch: Batch,
    rows: int,
    keys: int,
    ahead: bool = False,
    options: dict[str, int] | None = None,
    **more: Any,
) -> None:
    constants = {"BLOCK_M": rows, "BLOCK_N": keys, "AHEAD": ahead, "LOADS": "pointers"}
    constants |= {"MIN_QUERIES": 1, **batch.shape.constants, **more}
    tiles = batch.tokens * batch.shape.group // rows + len(batch.requests)
    grid = (batch.shape.kv_heads, tiles, 1)
    launch(flash_attention.flash_attention, grid, constants, options, **batch.arguments)


def run_decode(
    launch: Launch,
    batch: Batch,
    splits: int,
    keys: int = PAGE,
    split: int = 0,
    merge: str = "combine",
    programs: int = 0,
) -> None:
    shape = batch.shape
    rows = len(batch.requests) * splits * shape.heads * (shape.dim + 4)
    counters = np.zeros(len(batch.requests) * shape.kv_heads, np.int32)
    given = {
        **batch.arguments,
        "partials": np.full(rows, np.nan, np.float32),
        "counters": counters if merge == "last" else None,
        "splits": splits,
    }
    constants = {"BLOCK_N": keys, "SPLIT": split, "LEAST": 1, "BLOCK_S": 2, **shape.constants}
    tile = max(16, 1 << (shape.group - 1).bit_length())
    launch(
        decode_attention.decode_attention,
        (shape.kv_heads, len(batch.requests), programs or splits),
        {**constants, "BLOCK_M": tile, "MERGE": merge},
        **given,
    )
    if merge == "combine":
        combine = decode_attention.combine_attention
        names = {"HEADS": shape.heads, **constants}
        grid = (shape.heads, len(batch.requests), 1)
        launch(
            combine,
            grid,
            {name: names[name] for name in combine.arg_names if name in names},
            **{name: given[name] for name in combine.arg_names if name in given},
        )
    assert not counters.any()


def assert_close(got: Array, expected: Array) -> None:
    """bf16 rounds to 2^-9 of a value; weights are rounded to bf16 too."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    error = np.nan_to_num(np.abs(got - expected))
    assert error.max() < 2e-2
    assert np.linalg.norm(error) < 4e-3 * np.linalg.norm(np.nan_to_num(expected))


MIXED = [Request(1, 1), Request(70, 40), Request(90, 1), Request(193, 20)]
STEP = [Request(300, 1), Request(0, 0), Request(1, 1), Request(65, 1)]
OPTIONS = {
    "plain": (Shape(kv_heads=2), False),
    "group-of-one-dim-80": (Shape(kv_heads=2, group=1, dim=80), False),
    "dim-128": (Shape(group=4, dim=128), False),
    "window": (Shape(window=70), False),
    "softcap-sinks": (Shape(softcap=3.0), True),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_flash_equals_dense_attention(launch: Launch, bf16: ToBF16, name: str) -> None:
    shape, has_sinks = OPTIONS[name]
    batch = batch_of(MIXED, shape, bf16, has_sinks)
    run_flash(launch, batch, 64, 64)
    assert_close(batch.got(), batch.expected)


@pytest.mark.parametrize("window", [0, 90])
def test_flash_ahead_and_two_pages_a_block(launch: Launch, bf16: ToBF16, window: int) -> None:
    batch = batch_of(MIXED, Shape(window=window), bf16)
    run_flash(launch, batch, 128, 128, ahead=True)
    assert_close(batch.got(), batch.expected)


@pytest.mark.parametrize("name", OPTIONS)
def test_decode_equals_dense_attention(launch: Launch, bf16: ToBF16, name: str) -> None:
    shape, has_sinks = OPTIONS[name]
    batch = batch_of(STEP, shape, bf16, has_sinks)
    run_decode(launch, batch, 3)
    assert_close(batch.got(), batch.expected)


@pytest.mark.parametrize("merge", ["combine", "last"])
def test_decode_merges_parts(launch: Launch, bf16: ToBF16, merge: str) -> None:
    batch = batch_of([Request(400, 1), Request(129, 1)], Shape(), bf16, has_sinks=True)
    run_decode(launch, batch, 3, keys=2 * PAGE, merge=merge)
    assert_close(batch.got(), batch.expected)


def test_decode_of_fixed_parts_does_not_depend_on_the_grid(launch: Launch, bf16: ToBF16) -> None:
    results = []
    for programs, requests in ((1, STEP), (3, STEP[:1])):
        batch = batch_of(requests, Shape(window=200), bf16)
        run_decode(launch, batch, 3, split=2, merge="last", programs=programs)
        assert_close(batch.got(), batch.expected)
        results.append(batch.got()[0])
    assert np.array_equal(results[0], results[1])


def test_each_kernel_leaves_the_rows_of_the_other(launch: Launch, bf16: ToBF16) -> None:
    batch = batch_of(MIXED, Shape(), bf16)
    is_single = np.zeros(batch.tokens, bool)
    starts = batch.arguments["query_start"]
    for s, request in enumerate(MIXED):
        is_single[starts[s]] = request.queries == 1
    run_decode(launch, batch, 2)
    assert_close(batch.got(), np.where(is_single[:, None, None], batch.expected, np.nan))
    run_flash(launch, batch, 64, 64, MIN_QUERIES=2)
    assert_close(batch.got(), batch.expected)


def test_flash_rows_keep_their_bits_in_any_chunk(launch: Launch, bf16: ToBF16) -> None:
    """With MIN_QUERIES = 1: a prompt at once, its tail with company, its last token alone."""
    whole = batch_of([Request(131, 131)], Shape(group=1), bf16)
    run_flash(launch, whole, 64, 64)
    for queries in (37, 1):
        tail = batch_of([Request(131, 131), Request(20, 20)], Shape(group=1), bf16)
        tail.arguments["query_start"] = np.array([0, queries, queries + 20], np.int32)
        bits = tail.arguments["q"].bits
        bits[:queries] = bits[131 - queries : 131].copy()
        run_flash(launch, tail, 64, 64)
        assert np.array_equal(tail.got()[:queries], whole.got()[131 - queries : 131])


LONG = [Request(1300, 1300), Request(1, 1), Request(4096, 1), Request(3000, 129), Request(777, 64)]
SHAPES = {
    "32/8x128": Shape(kv_heads=8, group=4, dim=128),
    "9/3x64": Shape(kv_heads=3, group=3, dim=64),
    "4/4x96-window": Shape(kv_heads=4, group=1, dim=96, window=500),
    "8/4x256-softcap": Shape(kv_heads=4, group=2, dim=256, softcap=30.0),
    "16/1x192": Shape(kv_heads=1, group=16, dim=192),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("loads", ["pointers", "maps"])
@pytest.mark.parametrize("ahead", [False, True])
def test_flash_on_long_batches(
    on_gpu: Launch, bf16: ToBF16, name: str, loads: str, ahead: bool
) -> None:
    batch = batch_of(LONG, SHAPES[name], bf16, has_sinks=True)
    options = {"num_warps": 8, "num_stages": 2}
    with allocations():
        run_flash(on_gpu, batch, 128, 64, ahead, LOADS=loads, options=options)
    assert_close(batch.got(), batch.expected)
    if loads == "pointers" and SHAPES[name].dim <= 128:
        batch.arguments["y"].bits[...] = 0x7FFF
        run_flash(on_gpu, batch, 128, 128, ahead, options=options)
        assert_close(batch.got(), batch.expected)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("merge", ["combine", "last"])
def test_decode_on_long_batches(on_gpu: Launch, bf16: ToBF16, name: str, merge: str) -> None:
    requests = [Request(length, 1) for length in (1, 63, 64, 65, 5000, 1024, 3333)]
    batch = batch_of(requests, SHAPES[name], bf16, has_sinks=True)
    results = []
    for _ in range(20):  # whichever program comes last, the bits are the same
        batch.arguments["y"].bits[...] = 0x7FFF
        run_decode(on_gpu, batch, 9, merge=merge)
        results.append(batch.got().copy())
    assert_close(results[0], batch.expected)
    assert all(np.array_equal(result, results[0], equal_nan=True) for result in results)


@contextlib.contextmanager
def allocations() -> Iterator[None]:
    """Memory for tensor maps that are made in a kernel."""
    import torch
    import triton

    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8).cuda())
    yield


def test_splits_fill_the_chip() -> None:
    assert decode_attention.splits_for(8, 1, 132) == 33
    assert decode_attention.splits_for(8, 64, 132) == decode_attention.splits_for(1, 999, 132) == 2
