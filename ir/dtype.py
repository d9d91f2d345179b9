"""Element types. A block type stores groups of values with shared scales (see `ir.blocks`).

NumPy has no bfloat16: reference arrays of dtype ``bf16`` are float32 arrays whose values are
rounded to bf16 (`round_bf16`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import VerifyError
from .forms import SLICE, GroupForm, form_named


@dataclass(frozen=True)
class DType:
    """``bits`` per element; a block type has ``block`` elements in ``block_bytes`` bytes."""

    name: str
    bits: float
    numpy: np.dtype[Any]
    block: int = 1
    block_bytes: int = 0
    form: GroupForm | None = None
    """What a matrix of few bits and scales beside them holds (`ir.forms`)."""

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @property
    def is_block(self) -> bool:
        return self.block > 1

    @property
    def is_float(self) -> bool:
        return self.name in ("f32", "f16", "bf16", "f64") or self.is_block

    @property
    def is_integer(self) -> bool:
        return self.numpy.kind in "iu" and not self.is_block

    @property
    def is_unsigned(self) -> bool:
        return self.numpy.kind == "u" and not self.is_block


def _plain(name: str, bits: int, numpy: type) -> DType:
    return DType(name, bits, np.dtype(numpy))


def _block(name: str, block: int, block_bytes: int) -> DType:
    """Sizes as in ggml's block structures."""
    return DType(name, 8 * block_bytes / block, np.dtype(np.uint8), block, block_bytes)


F64 = _plain("f64", 64, np.float64)
F32 = _plain("f32", 32, np.float32)
F16 = _plain("f16", 16, np.float16)
BF16 = _plain("bf16", 16, np.float32)
I64 = _plain("i64", 64, np.int64)
I32 = _plain("i32", 32, np.int32)
I16 = _plain("i16", 16, np.int16)
I8 = _plain("i8", 8, np.int8)
U64 = _plain("u64", 64, np.uint64)
U32 = _plain("u32", 32, np.uint32)
U16 = _plain("u16", 16, np.uint16)
U8 = _plain("u8", 8, np.uint8)
BOOL = _plain("bool", 8, np.bool_)
Q4_0 = _block("q4_0", 32, 18)
Q4_1 = _block("q4_1", 32, 20)
Q5_0 = _block("q5_0", 32, 22)
Q5_1 = _block("q5_1", 32, 24)
Q8_0 = _block("q8_0", 32, 34)
Q4_K = _block("q4_k", 256, 144)
Q5_K = _block("q5_k", 256, 176)
Q6_K = _block("q6_k", 256, 210)

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        F64,
        F32,
        F16,
        BF16,
        I64,
        I32,
        I16,
        I8,
        U64,
        U32,
        U16,
        U8,
        BOOL,
        Q4_0,
        Q4_1,
        Q5_0,
        Q5_1,
        Q8_0,
        Q4_K,
        Q5_K,
        Q6_K,
    )
}


def dtype(name: str) -> DType:
    """The type of that name; an unknown one raises `VerifyError`."""
    if name not in DTYPES and (form := form_named(name)) is not None:
        return form_dtype(form)
    if name not in DTYPES:
        raise VerifyError(f"dtype: expected one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def form_dtype(form: GroupForm) -> DType:
    """The dtype of a group form; any combination has one.

    >>> dtype("i4_g128_f16_z").bits
    4.1875
    """
    return DType(form.name, form.bits_per_weight, np.dtype(np.uint8), SLICE, form=form)


def round_bf16(x: np.ndarray) -> np.ndarray:
    """Round float32 values to bfloat16, ties to even; NaN stays NaN.

    >>> float(round_bf16(np.float32([1.00390625]))[0])
    1.0
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32)).reshape(np.shape(x))
