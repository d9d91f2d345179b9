"""Attention written by hand, on the paired bf16 cache: numbers of the reference, equal bits in any
company."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.ir.dtype import round_bf16
from sglk.ir.ops.attention import PagedAttention
from sglk.ir.ops.rope import rotate
from sglk.targets.cpu.build import native_kernel
from sglk.targets.kernel import Kernel
from sglk.targets.tilec import KernelCache, build, isa_named
from sglk.targets.tilec.isa import isa_supported
from sglk.targets.tilec.run import Library, load

Array = NDArray[Any]
PAGE, SPLIT = 32, 512
SLICES = 64


@dataclass(frozen=True)
class Shape:
    kv_heads: int = 2
    group: int = 3
    dim: int = 64
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    narrow: bool = False
    """q and y are bf16."""

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    def constants(self) -> dict[str, int | bool | float]:
        return {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "D": self.dim,
            "WINDOW": self.window,
            "SOFTCAP": self.softcap,
            "SINKS": self.has_sinks,
            "SPLIT": SPLIT,
            "Q_BF16": self.narrow,
            "Y_BF16": self.narrow,
        }


SHAPES = [
    Shape(),
    Shape(kv_heads=1, group=4, dim=96, window=100, has_sinks=True),
    Shape(kv_heads=1, group=8, dim=128, softcap=5.0, narrow=True),
    Shape(kv_heads=1, group=1, dim=256, window=600, softcap=30.0, has_sinks=True),
]
LENGTHS = (1, 31, 32, 33, 300, 511, 512, 513, 600)


def narrow(values: Array) -> Array:
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widen(values: Array) -> Array:
    return (values.astype(np.uint32) << 16).view(np.float32)


def bits_of(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


@dataclass
class Native:
    """Kernels for one instruction set, built when first used."""

    isa: str
    built: dict[Kernel, tuple[str, Library]] = field(default_factory=dict)

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        missing = [kernel for kernel in kernels if kernel not in self.built]
        if missing:
            sources = [native_kernel(kernel) for kernel in missing]
            library = load(build(sources, isa_named(self.isa), cache=KernelCache()))
            self.built |= {kernel: (kernel.symbol, library) for kernel in missing}

    def __call__(
        self, kernel: Kernel, args: Sequence[Array | int], total: int, shares: int = 1
    ) -> None:
        """The programs in ``shares`` parts, last part first."""
        self.prepare([kernel])
        _, library = self.built[kernel]
        values = [arg.ctypes.data if isinstance(arg, np.ndarray) else arg for arg in args]
        source = native_kernel(kernel)
        numbers = type(source)(source.symbol, "", ("i64",) * len(values))
        for share in reversed(range(shares)):
            programs = (total * share // shares, total * (share + 1) // shares)
            library.launch(numbers, values, (total,), programs)


def kernel_of(name: str, constants: dict[str, Any]) -> Kernel:
    return Kernel(f"native.{name}", (), tuple(sorted(constants.items())))


def attention_kernels(shape: Shape) -> tuple[Kernel, Kernel]:
    constants = shape.constants()
    return kernel_of("paged_attention", constants), kernel_of("combine_attention", constants)


def write_kernel(shape: Shape) -> Kernel:
    return kernel_of("write_kv", {"KV_HEADS": shape.kv_heads, "D": shape.dim, "KV_BF16": False})


ISAS = ("x86_64_v4_amx", "x86_64_v4_bf16", "x86_64_v4")


@pytest.fixture(scope="module", params=ISAS)
def native(request: pytest.FixtureRequest) -> Native:
    if not isa_supported(request.param):
        pytest.skip(f"this machine runs no {request.param}")
    return Native(request.param)


@pytest.fixture(scope="module")
def best() -> Native:
    isa = next((name for name in ISAS if isa_supported(name)), None)
    if isa is None:
        pytest.skip("this machine has no AVX-512")
    return Native(isa)


@dataclass(frozen=True)
class Chunk:
    """Queries ``start`` to ``stop`` of a sequence whose keys up to ``stop`` are in the cache."""

    seq: int
    start: int
    stop: int


class Cache:
    """Sequences in pages of a poisoned cache; the first ``shared`` tokens are the same pages."""

    def __init__(
        self, native: Native, shape: Shape, lengths: Sequence[int], shared: int = 0
    ) -> None:
        rng = np.random.default_rng(len(lengths))
        self.native, self.shape, self.lengths = native, shape, lengths
        width = max(-(-length // PAGE) for length in lengths)
        order = 1 + rng.permutation(width * len(lengths))
        self.table = order.reshape(len(lengths), width).astype(np.int32)
        self.table[:, : shared // PAGE] = self.table[0, : shared // PAGE]
        pages = width * len(lengths) + 1
        tokens = [(length, shape.kv_heads, shape.dim) for length in lengths]
        self.q = [
            round_bf16(2 * rng.standard_normal((n, shape.heads, shape.dim), np.float32))
            for n in lengths
        ]
        self.sinks = rng.standard_normal(shape.heads, np.float32)
        self.k = np.full(pages * shape.kv_heads * shape.dim * PAGE, 0x7FC0, np.uint16)
        self.v = self.k.copy()
        self.state = np.zeros((1, 2, pages * PAGE, shape.kv_heads, shape.dim), np.float32)
        first = [rng.standard_normal((shared, *tokens[0][1:]), np.float32) for _ in range(2)]
        for seq, size in enumerate(tokens):
            self._write(seq, [rng.standard_normal(size, np.float32) for _ in range(2)], first)

    def _write(self, seq: int, kv: list[Array], first: list[Array]) -> None:
        shared = min(len(first[0]), self.lengths[seq])
        k, v = (np.concatenate([a[:shared], b[shared:]]) for a, b in zip(first, kv, strict=True))
        at = np.arange(len(k))
        slots = (self.table[seq][at // PAGE] * PAGE + at % PAGE).astype(np.int32)
        self.native(write_kernel(self.shape), [k, v, slots, self.k, self.v], len(k), shares=3)
        self.state[0, :, slots] = np.swapaxes(round_bf16(np.stack([k, v])), 0, 1)

    def _inputs(self, chunks: Sequence[Chunk]) -> tuple[Array, Array, Array, Array]:
        starts = np.cumsum([0, *(c.stop - c.start for c in chunks)]).astype(np.int32)
        lens = np.array([c.stop for c in chunks], np.int32)
        table = np.ascontiguousarray(self.table[[c.seq for c in chunks]])
        q = np.concatenate([self.q[c.seq][c.start : c.stop] for c in chunks])
        return q, starts, lens, table

    def attend(self, chunks: Sequence[Chunk], shares: int = 1) -> list[Array]:
        """The rows of each chunk."""
        shape = self.shape
        q, starts, lens, table = self._inputs(chunks)
        splits = -(-table.shape[1] * PAGE // SPLIT)
        partials = np.full((len(chunks), shape.heads, splits, shape.dim + 32), np.nan, np.float32)
        y = np.full(q.shape, 0x7FC0, np.uint16) if shape.narrow else np.full_like(q, np.nan)
        inputs = narrow(q) if shape.narrow else q
        arrays = [inputs, self.k, self.v, starts, lens, table, partials, y]
        numbers = [len(chunks), table.shape[1], bits_of(shape.dim**-0.5), self.sinks]
        for kernel in attention_kernels(shape):
            self.native(kernel, [*arrays, *numbers], SLICES, shares)
        return np.split(widen(y) if shape.narrow else y, starts[1:-1])

    def reference(self, chunks: Sequence[Chunk]) -> list[Array]:
        shape = self.shape
        q, starts, lens, table = self._inputs(chunks)
        op = PagedAttention(
            layer=0,
            scale=shape.dim**-0.5,
            page_size=PAGE,
            window=shape.window or None,
            softcap=shape.softcap or None,
            has_sinks=shape.has_sinks,
        )
        sinks = (self.sinks,) if shape.has_sinks else ()
        return np.split(op.reference(q, self.state, starts, lens, table, *sinks), starts[1:-1])


def whole(lengths: Sequence[int]) -> list[Chunk]:
    return [Chunk(seq, 0, length) for seq, length in enumerate(lengths)]


def prepare(native: Native, shapes: Sequence[Shape]) -> None:
    """All kernels at once: they compile in parallel."""
    kernels = [k for shape in shapes for k in (*attention_kernels(shape), write_kernel(shape))]
    native.prepare(list(dict.fromkeys(kernels)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill_equals_the_reference(best: Native, shape: Shape) -> None:
    """Weights round to bf16: 2^-9 each, less in a sum; a bf16 result rounds once more."""
    prepare(best, SHAPES)
    cache = Cache(best, shape, LENGTHS)
    chunks = whole(LENGTHS)
    for rows, wanted in zip(cache.attend(chunks), cache.reference(chunks), strict=True):
        error = np.linalg.norm(rows - wanted) / np.linalg.norm(wanted)
        assert error < (3e-3 if shape.narrow else 2e-3)
        assert np.abs(rows - wanted).max() < 0.03


def test_every_instruction_set_equals_the_reference(native: Native) -> None:
    cache = Cache(native, Shape(), (40, 530))
    chunks = [Chunk(0, 0, 40), Chunk(1, 500, 530), Chunk(1, 529, 530)]
    for rows, wanted in zip(cache.attend(chunks), cache.reference(chunks), strict=True):
        assert np.linalg.norm(rows - wanted) < 2e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_keep_their_bits_in_any_chunk(best: Native, shape: Shape) -> None:
    prepare(best, SHAPES)
    cache = Cache(best, shape, LENGTHS)
    full = cache.attend(whole(LENGTHS))
    for seq, length in enumerate(LENGTHS):
        for size in (7, 100):
            for start in range(0, length, size):
                chunk = Chunk(seq, start, min(start + size, length))
                (rows,) = cache.attend([chunk])
                np.testing.assert_array_equal(rows, full[seq][chunk.start : chunk.stop], str(chunk))
        for at in {0, length // 2, length - 2, length - 1} & set(range(length)):
            (row,) = cache.attend([Chunk(seq, at, at + 1)])
            np.testing.assert_array_equal(row[0], full[seq][at], f"token {at} of {length}")


def test_every_instruction_set_gives_the_same_bits(native: Native, best: Native) -> None:
    """AMX sums even and odd inputs apart; so do the vectors in its place."""
    chunks = [Chunk(0, 511, 512), Chunk(0, 512, 513), Chunk(0, 500, 530), Chunk(0, 0, 3)]
    for shape in (Shape(), SHAPES[1]):
        rows, wanted = (Cache(n, shape, (530,)).attend(chunks) for n in (native, best))
        for row, same in zip(rows, wanted, strict=True):
            np.testing.assert_array_equal(row, same)


@pytest.mark.parametrize("shared", [0, 64, 512, 544])
@pytest.mark.parametrize("order", [1, -1], ids=["as-they-come", "reversed"])
def test_a_shared_prefix_is_invisible(best: Native, shared: int, order: int) -> None:
    """Decode of many sequences over the same pages, with neighbours that share less or nothing."""
    lengths = [600, 545, 512 + 64, 33, 600, 513, 600, 1, 600, 70, 600, 600, 600]
    cache = Cache(best, Shape(), lengths, shared)
    chunks = [Chunk(seq, length - 1, length) for seq, length in enumerate(lengths)]
    chunks[4] = Chunk(4, 570, 600)
    alone = [cache.attend([chunk])[0] for chunk in chunks]
    for shares in (1, 2, 5):
        together = cache.attend(chunks[::order], shares)[::order]
        for rows, wanted in zip(together, alone, strict=True):
            np.testing.assert_array_equal(rows, wanted)


def test_more_sequences_than_a_window(best: Native) -> None:
    lengths = [40 + seq % 50 for seq in range(150)]
    cache = Cache(best, Shape(), lengths, shared=32)
    chunks = [Chunk(seq, length - 1, length) for seq, length in enumerate(lengths)]
    for rows, wanted in zip(cache.attend(chunks, 2), cache.reference(chunks), strict=True):
        assert np.linalg.norm(rows - wanted) < 3e-3 * np.linalg.norm(wanted)


@dataclass(frozen=True)
class Rope:
    heads: int
    kv_heads: int
    dim: int
    half: int
    interleaved: bool = False
    has_norms: bool = False
    narrow: bool = False

    def kernel(self) -> Kernel:
        constants = {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "D": self.dim,
            "HALF": self.half,
            "INTERLEAVED": self.interleaved,
            "NORMS": self.has_norms,
            "QKV_BF16": self.narrow,
            "Q_BF16": self.narrow,
        }
        return kernel_of("rope_write_kv", constants)


def normalized(x: Array, weight: Array) -> Array:
    scale = 1.0 / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(1e-6))
    return np.asarray(x * scale * weight, np.float32)


@pytest.mark.parametrize(
    "rope",
    [
        Rope(9, 3, 64, 32),
        Rope(4, 2, 96, 24, interleaved=True, narrow=True),
        Rope(4, 1, 128, 64, has_norms=True),
    ],
    ids=str,
)
def test_rope_write_kv_equals_the_reference(best: Native, rope: Rope) -> None:
    rng = np.random.default_rng(3)
    tokens, pages = 45, 4
    width = (rope.heads + 2 * rope.kv_heads) * rope.dim
    qkv = round_bf16(rng.standard_normal((tokens, width), np.float32))
    angle = rng.standard_normal((tokens, rope.half), np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    slots = (rng.permutation((pages - 1) * PAGE)[:tokens] + PAGE).astype(np.int32)
    weights = [rng.standard_normal(rope.dim, np.float32) for _ in range(2)]
    size = pages * rope.kv_heads * rope.dim * PAGE
    k_cache, v_cache = np.full(size, 0x7FC0, np.uint16), np.full(size, 0x7FC0, np.uint16)
    q = np.zeros((tokens, rope.heads, rope.dim), np.uint16 if rope.narrow else np.float32)
    inputs = [narrow(qkv) if rope.narrow else qkv, cos, sin, slots]
    args = [*inputs, q, k_cache, v_cache, bits_of(1e-6), *(weights if rope.has_norms else ())]
    best(rope.kernel(), args, tokens, shares=4)

    heads = qkv.reshape(tokens, -1, rope.dim)
    wanted_q, k, v = np.split(heads, [rope.heads, rope.heads + rope.kv_heads], 1)
    if rope.has_norms:
        wanted_q, k = normalized(wanted_q, weights[0]), normalized(k, weights[1])
    wanted_q, k = (rotate(x, cos, sin, rope.interleaved) for x in (wanted_q, k))
    shape = (pages, rope.kv_heads)
    keys = widen(k_cache).reshape(*shape, rope.dim // 2, PAGE, 2).transpose(0, 3, 1, 2, 4)
    values = widen(v_cache).reshape(*shape, PAGE // 2, rope.dim, 2).transpose(0, 2, 4, 1, 3)
    got_k = keys.reshape(pages * PAGE, rope.kv_heads, rope.dim)[slots]
    got_v = values.reshape(pages * PAGE, rope.kv_heads, rope.dim)[slots]
    np.testing.assert_array_equal(got_v, v)
    np.testing.assert_allclose(got_k, k, rtol=2**-8, atol=1e-5)
    np.testing.assert_allclose(
        widen(q) if rope.narrow else q, wanted_q, rtol=2**-8 if rope.narrow else 1e-5, atol=1e-5
    )
    assert np.isnan(widen(k_cache)).sum() == size - k.size  # nothing else was written
    assert np.isnan(widen(v_cache)).sum() == size - v.size
