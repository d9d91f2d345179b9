"""rope_attention: rotation, cache writes and attention of single tokens, against f64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.cuda.attention_tiles import DECODE_TILES, WIDE_DECODE, DecodeTile
from sglk.targets.kernels import decode_attention, rope_attention

Launch = Callable[..., None]
Array = NDArray[Any]
ToBF16 = Callable[[Array], Any]
pytestmark = pytest.mark.device
PAGE = 64
LENGTHS = (193, 0, 1, 64)
"""Of sequences, the new token included; 0 is padding."""


@dataclass(frozen=True)
class Shape:
    kv_heads: int = 2
    group: int = 3
    dim: int = 64
    window: int = 0
    softcap: float = 0.0
    has_norms: bool = False
    has_sinks: bool = False

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


@dataclass
class Case:
    arguments: dict[str, Any]
    wanted: Array
    """[S, H, D], NaN in rows of padding."""
    caches: tuple[Array, Array]
    """As they must be afterwards; NaN where nobody may write or read."""


def turn(x: Array, weight: Array | None, cos: Array, sin: Array) -> Array:
    """Heads [.., D] normalized and rotated by their token's row, in f64."""
    x = x.astype(np.float64)
    if weight is not None:
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q: Array, k: Array, v: Array, shape: Shape, sinks: Array | None) -> Array:
    """Heads [H, D] of one token against keys and values [length, KV_HEADS, D]."""
    if shape.window:
        k, v = k[-shape.window :], v[-shape.window :]
    keys, values = (np.repeat(x.astype(np.float64), shape.group, 1) for x in (k, v))
    score = np.einsum("hd,khd->hk", q, keys) * shape.dim**-0.5
    if shape.softcap:
        score = shape.softcap * np.tanh(score / shape.softcap)
    weight = np.exp(score)
    total = weight.sum(1) + (0 if sinks is None else np.exp(sinks.astype(np.float64)))
    result: Array = np.einsum("hk,khd->hd", weight, values) / total[:, None]
    return result


def case_of(lengths: tuple[int, ...], shape: Shape, bf16: ToBF16) -> Case:
    rng = np.random.default_rng(3)
    half, seqs = shape.dim // 2, len(lengths)
    pages = max(-(-length // PAGE) for length in lengths)
    cells = (seqs * pages + 1, shape.kv_heads, PAGE, shape.dim)
    caches = np.full((2, *cells), np.nan, np.float32)
    order = iter(rng.permutation(np.arange(1, cells[0])))
    table, slots = np.zeros((seqs, pages), np.int32), np.zeros(seqs, np.int32)
    width = (shape.heads + 2 * shape.kv_heads) * shape.dim
    qkv = bf16(rng.standard_normal((seqs, width))).floats()
    angle = rng.uniform(0, 6, (seqs, half))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    norms: list[Any] = [None, None]
    if shape.has_norms:
        norms = [rng.uniform(0.5, 2, shape.dim).astype(np.float32) for _ in range(2)]
    sinks = rng.standard_normal(shape.heads).astype(np.float32) if shape.has_sinks else None
    after = caches.copy()
    wanted = np.full((seqs, shape.heads, shape.dim), np.nan)
    for s, length in enumerate(lengths):
        if not length:
            continue
        kinds = np.split(qkv[s].reshape(-1, shape.dim), [shape.heads, shape.heads + shape.kv_heads])
        q, k = (turn(x, w, cos[s], sin[s]) for x, w in zip(kinds, norms, strict=False))
        q, k = (bf16(x).floats().astype(np.float64) for x in (q, k))
        old = bf16(rng.standard_normal((2, length - 1, *cells[1::2]))).floats()
        kv = [np.concatenate([x, new[None]]) for x, new in zip(old, (k, kinds[2]), strict=True)]
        wanted[s] = attend(q, kv[0], kv[1], shape, sinks)
        for at in range(0, length, PAGE):
            page = table[s, at // PAGE] = next(order)
            for number in range(2):
                rows = old[number, at : at + PAGE].swapaxes(0, 1)
                caches[number, page, :, : rows.shape[1]] = rows
                rows = kv[number][at : at + PAGE].swapaxes(0, 1)
                after[number, page, :, : rows.shape[1]] = rows
        slots[s] = table[s, (length - 1) // PAGE] * PAGE + (length - 1) % PAGE
    arguments = {
        "qkv": bf16(qkv), "cos": cos, "sin": sin, "q_norm": norms[0], "k_norm": norms[1],
        "slots": slots, "k_cache": bf16(caches[0]), "v_cache": bf16(caches[1]),
        "seq_lens": np.array(lengths, np.int32), "page_table": table, "sinks": sinks,
        "y": bf16(np.full(wanted.shape, np.nan, np.float32)), "pages": pages,
        "scale": shape.dim**-0.5, "eps": 1e-5,
    }  # fmt: skip
    return Case(arguments, wanted, (after[0], after[1]))


def run(
    launch: Launch, case: Case, shape: Shape, splits: int, ahead: int, **options: object
) -> None:
    seqs = len(case.wanted)
    partials = np.full(seqs * splits * shape.heads * (shape.dim + 4), np.nan, np.float32)
    given = {**case.arguments, "partials": partials, "splits": splits}
    constants = {
        "KV_HEADS": shape.kv_heads, "GROUP": shape.group, "D": shape.dim, "PAGE": PAGE,
        "WINDOW": shape.window, "SOFTCAP": shape.softcap, "LEAST": 1, "PDL": False,
        "BLOCK_M": 16, "AHEAD": ahead,
    }  # fmt: skip
    grid = (shape.kv_heads, seqs, splits)
    launch(rope_attention.rope_attention, grid, constants, options, **given)
    del constants["AHEAD"]
    combine = decode_attention.combine_attention
    constants |= {"HEADS": shape.heads, "BLOCK_N": PAGE, "BLOCK_D": shape.dim, "BLOCK_S": 2}
    constants |= {"SPLIT": 0}
    given["query_start"] = np.arange(seqs + 1, dtype=np.int32)
    names = combine.arg_names
    launch(
        combine, (shape.heads, seqs, 1), {n: constants[n] for n in names if n in constants},
        **{n: given[n] for n in names if n in given},
    )  # fmt: skip


def check(case: Case) -> None:
    got = case.arguments["y"].floats()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(case.wanted))
    error = np.nan_to_num(np.abs(got - case.wanted))
    assert error.max() < 2e-2
    assert np.linalg.norm(error) < 4e-3 * np.linalg.norm(np.nan_to_num(case.wanted))
    for name, wanted in zip(("k_cache", "v_cache"), case.caches, strict=True):
        found = case.arguments[name].floats()
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        # a product that is rounded the other way is one step of bf16 off
        np.testing.assert_allclose(np.nan_to_num(found), np.nan_to_num(wanted), 1e-2, 1e-5)


OPTIONS = {
    "plain": Shape(),
    "norms": Shape(has_norms=True, dim=32),
    "window": Shape(window=70),
    "softcap-sinks": Shape(softcap=3.0, has_sinks=True, kv_heads=1),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("splits", "ahead"), [(1, 0), (1, 4), (3, 2)])
def test_it_rotates_writes_and_attends(
    launch: Launch, bf16: ToBF16, name: str, splits: int, ahead: int
) -> None:
    case = case_of(LENGTHS, OPTIONS[name], bf16)
    run(launch, case, OPTIONS[name], splits, ahead)
    check(case)


SHAPES = {
    "32/8x128": Shape(8, 4, 128),
    "16/8x128-norms": Shape(8, 2, 128, has_norms=True),
    "8/4x256-softcap": Shape(4, 2, 256, softcap=30.0, window=500),
    "16/1x128-sinks": Shape(1, 16, 128, has_sinks=True),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("splits", [1, 9])
@pytest.mark.parametrize("tile", [tile for _, tile in DECODE_TILES])
def test_long_contexts(
    on_gpu: Launch, bf16: ToBF16, name: str, splits: int, tile: DecodeTile
) -> None:
    shape = SHAPES[name]
    if shape.dim > 128:
        tile = WIDE_DECODE
    case = case_of((5000, 1, 64, 0, 1024, 3333, 63), shape, bf16)
    run(on_gpu, case, shape, splits, tile.ahead, **tile.options())
    check(case)
