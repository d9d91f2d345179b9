"""Packed weights: exact inverse, exact values, no growth."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from sglk.errors import LoweringError
from sglk.targets.kernels import packing
from sglk.targets.kernels.packing import BLOCK_TYPES, LANES, BlockType

TYPES = pytest.mark.parametrize("block", BLOCK_TYPES.values(), ids=lambda block: block.name)
SHAPES = pytest.mark.parametrize("n", [1, 63, 64, 65, 192])


def random_blocks(block: BlockType, n: int, k: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(n * 1000 + k)
    return rng.integers(0, 256, (n, k // block.size * block.bytes), dtype=np.uint8)


def dequantize_packed(block: BlockType, blob: NDArray[np.uint8], n: int, k: int) -> NDArray[Any]:
    """The values by the layout as documented, one plane at a time (an independent reading)."""
    part = {
        name: blob[s.offset : s.offset + s.bytes]
        .view({"u8": np.uint8, "i8": np.int8, "f16": np.float16}[s.dtype])
        .reshape(s.shape)
        for name, s in packing.sections(block, n, k).items()
    }
    q = np.zeros((-(-n // LANES), k, LANES), np.int32)
    scale, minimum = np.zeros(q.shape, np.float32), np.zeros(q.shape, np.float32)
    for at in range(k):
        g, r = divmod(at, 32)
        if block.bits == 8:
            q[:, at] = part["q"][:, g, r]
        else:
            q[:, at] = part["q"][:, g, r % 16] >> 4 * (r // 16) & 15
        if block.bits == 5:
            q[:, at] |= (part["h"][:, g, r // 8].astype(np.int32) >> r % 8 & 1) << 4
        if block.bits == 6:
            q[:, at] |= (part["h"][:, g, r // 4].astype(np.int32) >> 2 * (r % 4) & 3) << 4
        scale[:, at] = part["d"][:, at // block.size]
        if block.has_min:
            minimum[:, at] = part["m"][:, at // block.size]
        if block.name == "q6_k":
            scale[:, at] *= part["s"][:, at // 16].astype(np.float32)
        elif block.is_super:
            j = at % 256 // 32
            low = part["s"][:, at // 256, j].astype(np.int32)
            high = part["s"][:, at // 256, 8 + j // 2].astype(np.int32) >> 4 * (j % 2)
            scale[:, at] *= (low & 15 | (high & 3) << 4).astype(np.float32)
            minimum[:, at] *= -(low >> 4 | (high >> 2 & 3) << 4).astype(np.float32)
    w = scale * (q - block.zero).astype(np.float32) + minimum
    return w.transpose(0, 2, 1).reshape(-1, k)[:n]


@TYPES
@SHAPES
def test_unpacking_is_the_exact_inverse(block: BlockType, n: int) -> None:
    raw = random_blocks(block, n, 512)
    packed = packing.pack_blocks(block, raw)
    assert np.array_equal(packing.unpack_blocks(block, packed, n, 512), raw)


@TYPES
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")  # random f16 scales
def test_packed_values_equal_gguf(block: BlockType) -> None:
    raw = random_blocks(block, 70, 512)
    expected = dequantize(raw, GGMLQuantizationType[block.name.upper()])
    packed = packing.pack_blocks(block, raw)
    assert np.array_equal(dequantize_packed(block, packed, 70, 512), expected, equal_nan=True)


@TYPES
def test_nothing_grows(block: BlockType) -> None:
    assert packing.packed_bytes(block, 128, 512) == 128 * 512 // block.size * block.bytes
    parts = list(packing.sections(block, 70, 256).values())
    assert all(part.offset % packing.ALIGN == 0 for part in parts)
    grown = packing.packed_bytes(block, 70, 256) - 128 * 256 // block.size * block.bytes
    assert 0 <= grown < packing.ALIGN * len(parts)


@SHAPES
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_dense_round_trip(n: int, dtype: type) -> None:
    weight: NDArray[Any] = np.random.default_rng(n).integers(0, 1000, (n, 37)).astype(dtype)
    packed = packing.pack_dense(weight)
    assert packed.shape == (-(-n // 64), 37, 64)
    assert np.array_equal(packing.unpack_dense(packed, n), weight)
    assert not packed.transpose(0, 2, 1).reshape(-1, 37)[n:].any()


def test_parts_of_a_gated_weight_start_on_column_blocks() -> None:
    gate, up = np.ones((70, 8), np.float32), np.full((70, 8), 2, np.float32)
    packed = packing.pack_dense(np.concatenate([packing.pad_rows(gate), up]))
    assert np.array_equal(packed[2:], packing.pack_dense(up))


def test_bad_shapes_are_refused() -> None:
    block = BLOCK_TYPES["q4_k"]
    with pytest.raises(LoweringError, match=r"pack q4_k: expected K a positive multiple of 256"):
        packing.sections(block, 64, 128)
    with pytest.raises(LoweringError, match=r"expected uint8 \[N, multiple of 144\]"):
        packing.pack_blocks(block, np.zeros((2, 100), np.uint8))
    with pytest.raises(LoweringError, match=r"unpack q4_k: expected uint8 \[9216\]"):
        packing.unpack_blocks(block, np.zeros(7, np.uint8), 64, 256)


def test_examples_of_the_module_hold() -> None:
    assert doctest.testmod(packing).failed == 0
