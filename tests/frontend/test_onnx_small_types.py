"""Rounding to float8, float4 and four-bit integers: bit for bit what ml_dtypes has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto
from onnx.numpy_helper import to_float8e8m0
from sglk.errors import FrontendError
from sglk.frontend.onnx.registry import Node
from sglk.frontend.onnx.small_types import bounds, cast

T = TensorProto
FLOATS: dict[int, Any] = {
    T.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    T.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    T.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    T.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    T.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
}
INTEGERS: dict[int, Any] = {
    T.INT4: ml_dtypes.int4,
    T.UINT4: ml_dtypes.uint4,
    T.INT2: ml_dtypes.int2,
    T.UINT2: ml_dtypes.uint2,
}
NODE = Node("", "Cast", "", 25, {}, ("y",))


def numbers() -> np.ndarray:
    """Floats of any bits, every value of each small type, what lies between, and the ends."""
    rng = np.random.default_rng(0)
    found = [rng.integers(0, 1 << 32, 20_000, np.uint64).astype(np.uint32).view(np.float32)]
    found.append((rng.normal(size=20_000) * 2.0 ** rng.integers(-20, 18, 20_000)).astype("f4"))
    for kind in FLOATS.values():
        count = 16 if kind is ml_dtypes.float4_e2m1fn else 256
        values = np.arange(count).astype(np.uint8).view(kind).astype(np.float32)
        values = np.sort(values[np.isfinite(values)])
        found += [values, (values[1:] + values[:-1]) / 2, np.nextafter(values, np.float32(0))]
    ends = np.array([0, -0.0, np.inf, -np.inf, np.nan, 464, 465, -465, 61440, 61441], "f4")
    return np.concatenate([*found, ends])


def numbers_for(elem_type: int) -> np.ndarray:
    """What NaN becomes in a type that has none is not defined."""
    x = numbers()
    return x[~np.isnan(x)] if elem_type == T.FLOAT4E2M1 else x


def to(values: np.ndarray, elem_type: int, **how: object) -> np.ndarray:
    found = cast(NODE, torch.from_numpy(values), T.FLOAT, elem_type, **how)  # type: ignore[arg-type]
    return found.numpy()


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_array_equal(ours, theirs)
    real = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(ours[real]), np.signbit(theirs[real]))


@pytest.mark.parametrize("elem_type", FLOATS)
def test_floats_round_to_even_and_overflow_as_their_type_does(elem_type: int) -> None:
    x = numbers_for(elem_type)
    with np.errstate(all="ignore"):
        theirs = x.astype(FLOATS[elem_type]).astype(np.float32)
    same(to(x, elem_type, saturate=False), theirs)


@pytest.mark.parametrize("elem_type", FLOATS)
def test_saturated_floats_stay_finite(elem_type: int) -> None:
    x = numbers_for(elem_type)
    most = float(ml_dtypes.finfo(FLOATS[elem_type]).max)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        theirs = np.clip(x, -most, most).astype(FLOATS[elem_type]).astype(np.float32)
    same(to(x, elem_type), theirs)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_scales_are_powers_of_two(mode: str, saturate: bool) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        theirs = to_float8e8m0(x, saturate, mode).astype(np.float32)
    np.testing.assert_array_equal(to(x, T.FLOAT8E8M0, saturate=saturate, round_mode=mode), theirs)


@pytest.mark.parametrize("elem_type", INTEGERS)
def test_small_integers_keep_their_low_bits(elem_type: int) -> None:
    x = np.concatenate([np.arange(-40, 40), np.arange(-9, 9) + 0.7]).astype(np.float32)
    with np.errstate(all="ignore"):
        theirs = x.astype(np.int32).astype(INTEGERS[elem_type]).astype(np.int32)
    np.testing.assert_array_equal(to(x, elem_type), theirs)
    info = ml_dtypes.iinfo(INTEGERS[elem_type])  # type: ignore[no-untyped-call]
    assert bounds(elem_type) == (info.min, info.max)


@pytest.mark.parametrize("elem_type", [T.FLOAT16, T.BFLOAT16])
def test_half_precision_is_rounded_to(elem_type: int) -> None:
    x = numbers()
    kind = np.float16 if elem_type == T.FLOAT16 else ml_dtypes.bfloat16
    found = cast(NODE, torch.from_numpy(x), T.FLOAT, elem_type).float().numpy()
    with np.errstate(all="ignore"):
        same(found, x.astype(kind).astype(np.float32))


def test_texts_are_refused() -> None:
    with pytest.raises(FrontendError, match="expected numbers, got a cast to STRING"):
        to(np.ones(1, "f4"), T.STRING)
