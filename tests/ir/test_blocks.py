"""Block arrays: values equal ggml's bit for bit, and malformed ones are refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from numpy.typing import NDArray
from sglk.errors import VerifyError
from sglk.ir.blocks import BLOCK_TYPES, BlockArray
from sglk.ir.quantized import concat

TYPES = list(BLOCK_TYPES)


def random_blocks(dtype: str, rows: int, blocks: int, seed: int = 0) -> BlockArray:
    """Every bit random, except that scales are finite."""
    rng = np.random.default_rng(seed)
    kind = BLOCK_TYPES[dtype]
    raw: NDArray[np.uint8] = rng.integers(0, 256, (rows, blocks * kind.bytes), np.uint8)
    fields = raw.reshape(-1).view(kind.layout)
    for name in {"d", "m", "dmin"} & set(kind.layout.names or ()):
        fields[name] = rng.normal(0, 0.1, fields.shape).astype(np.float16)
    return BlockArray(dtype, (rows, blocks * kind.elements), raw)


@pytest.mark.parametrize("dtype", TYPES)
def test_sizes_agree_with_gguf(dtype: str) -> None:
    ggml = gguf.GGMLQuantizationType[dtype.upper()]
    assert (BLOCK_TYPES[dtype].elements, BLOCK_TYPES[dtype].bytes) == gguf.GGML_QUANT_SIZES[ggml]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [0, 1, 37])
def test_values_equal_ggml_bit_for_bit(dtype: str, rows: int) -> None:
    array = random_blocks(dtype, rows, blocks=3, seed=rows)
    got = array.dequantize()
    assert got.shape == array.shape
    if rows:
        expected = dequantize(array.raw, gguf.GGMLQuantizationType[dtype.upper()])
        np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dtype", TYPES)
def test_parts_have_the_documented_shapes(dtype: str) -> None:
    kind, array = BLOCK_TYPES[dtype], random_blocks(dtype, rows=5, blocks=2)
    parts = array.unpack()
    assert parts.q.shape == array.shape
    assert parts.q.dtype == (np.int8 if dtype == "q8_0" else np.uint8)
    assert dtype == "q8_0" or parts.q.max() < 1 << kind.bits
    assert parts.d.shape == (5, 2) and parts.d.dtype == np.float16
    assert (parts.m is not None) == kind.has_min
    if kind.elements == 256:
        assert parts.scale is not None and parts.scale.shape == (5, 2 * 256 // kind.group)


def test_rows_move_exactly() -> None:
    array = random_blocks("q4_1", rows=8, blocks=2)
    order = [7, 0, 3, 3]
    np.testing.assert_array_equal(array.take_rows(order).dequantize(), array.dequantize()[order])
    joined = concat([array[:3], array[3:]])
    assert isinstance(joined, BlockArray)
    np.testing.assert_array_equal(joined.raw, array.raw)


@pytest.mark.parametrize("dtype", TYPES)
def test_large_arrays_are_decoded_in_steps(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = random_blocks(dtype, rows=11, blocks=2)
    whole = array.dequantize()
    monkeypatch.setattr("sglk.ir.blocks._ROWS_BYTES", 3 * array.raw.shape[1])
    np.testing.assert_array_equal(array.dequantize(), whole)


def test_malformed_arrays_are_refused() -> None:
    raw = np.zeros((2, 34), np.uint8)
    with pytest.raises(VerifyError, match=r"expected one of q4_0.*got 'q3_k'"):
        BlockArray("q3_k", (2, 32), raw)
    with pytest.raises(VerifyError, match="whole blocks of 32, got 33"):
        BlockArray("q8_0", (2, 33), raw)
    with pytest.raises(VerifyError, match=r"shape \(3, 34\), got uint8 of \(2, 34\)"):
        BlockArray("q8_0", (3, 32), raw)
    with pytest.raises(VerifyError, match="got int8"):
        BlockArray("q8_0", (2, 32), raw.view(np.int8))
    with pytest.raises(VerifyError, match=r"indices in 0\.\.1, got -1\.\.1"):
        BlockArray("q8_0", (2, 32), raw).take_rows([1, -1])
    with pytest.raises(VerifyError, match="one type and K"):
        concat([BlockArray("q8_0", (2, 32), raw), random_blocks("q4_0", 1, 1)])
