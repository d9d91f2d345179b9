"""Element types, tensor types, broadcasting."""

from __future__ import annotations

import numpy as np
import pytest
from sglk.errors import VerifyError
from sglk.ir.blocks import BLOCK_TYPES
from sglk.ir.dim import cdiv, dim
from sglk.ir.dtype import BF16, BOOL, DTYPES, F32, I32, Q4_1, Q6_K, dtype, round_bf16
from sglk.ir.parser import parse_type
from sglk.ir.types import TensorType, broadcast_shapes

T = dim("tokens")


def test_block_sizes_agree_with_the_block_formats() -> None:
    blocks = {d.name: (d.block, d.block_bytes) for d in DTYPES.values() if d.is_block}
    assert blocks == {b.name: (b.elements, b.bytes) for b in BLOCK_TYPES.values()}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_found_by_name_and_are_of_one_kind(name: str) -> None:
    found = dtype(name)
    assert str(found) == repr(found) == name
    assert found.is_float + found.is_integer + (found == BOOL) == 1
    assert found.bits == (8 * found.block_bytes / found.block if found.is_block else found.bits)


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(VerifyError, match=r"expected one of f64, .*q6_k, got 'q3_k'"):
        dtype("q3_k")


def test_bytes_are_symbolic_and_count_whole_blocks() -> None:
    assert TensorType(F32, (T, 576)).bytes == T * 2304
    assert TensorType(BF16, (3, 5)).bytes == 30
    assert TensorType(BOOL, ()).bytes == 1
    assert TensorType(Q4_1, (T, 64)).bytes == T * 40
    assert TensorType(Q6_K, (4, 512)).bytes == 4 * 2 * 210


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(VerifyError, match=r"f32\[2, -1\]: expected sizes of at least 0"):
        TensorType(F32, (2, -1))
    with pytest.raises(VerifyError, match=r"q4_1\[2, 33\]: expected rows of whole blocks of 32"):
        TensorType(Q4_1, (2, 33))


@pytest.mark.parametrize(
    "text", ["f32[]", "i32[tokens]", "q4_1[49152, 576]", "bool[1, 1, tokens + 1, 2 * seqs]"]
)
def test_type_text_reads_back(text: str) -> None:
    assert parse_type(str(parse_type(text))) == parse_type(text)


@pytest.mark.parametrize("text", ["f32", "f32[", "f33[2]", "f32[2", "f32[2.5]", "[2]", "f32[a b]"])
def test_bad_type_text_is_refused(text: str) -> None:
    with pytest.raises(VerifyError):
        parse_type(text)


def test_types_substitute_and_become_concrete() -> None:
    type = TensorType(F32, (cdiv(T, 16), 4))
    assert type.substitute({"tokens": 33}) == TensorType(F32, (3, 4))
    assert type.concrete({"tokens": 32}) == (2, 4)
    assert type.with_shape(2).with_dtype(I32) == TensorType(I32, (2,))


@pytest.mark.parametrize(
    "shapes", [[(3, 1), (4,)], [(), (2, 2)], [(1, 5, 1), (2, 1, 3)], [(0,), (1,)]]
)
def test_broadcasting_is_numpy_s(shapes: list[tuple[int, ...]]) -> None:
    assert broadcast_shapes("t", *shapes) == np.broadcast_shapes(*shapes)


def test_broadcasting_refuses_what_it_cannot_prove_equal() -> None:
    assert broadcast_shapes("t", (T, 1), (1, 4)) == (T, 4)
    with pytest.raises(VerifyError, match="t: expected equal dims or 1, got tokens and 4"):
        broadcast_shapes("t", (T,), (4,))


def test_rounding_to_bf16_keeps_shape_and_zero_size() -> None:
    assert round_bf16(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert round_bf16(np.array(1.2, np.float32)).shape == ()
