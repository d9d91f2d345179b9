"""NumPy types of what goes into a program and comes out; bf16 travels as its raw 16 bits."""

from __future__ import annotations

import numpy as np

BORDER_TYPES: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(numpy)
    for name, numpy in {
        "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16,
        "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
        "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8, "bool": np.bool_,
    }.items()
}  # fmt: skip
