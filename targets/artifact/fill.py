"""Weights that are made on load from a seed: an artifact of any size without a checkpoint.

Element i of a fill, counted over the packed bytes of the weight (whatever its layout), in 32-bit
arithmetic that wraps, with lo and hi the halves of i:

    h = lo * 0x9E3779B1 + hi * 0x85EBCA77 + seed
    h ^= h >> 16;  h *= 0x21F0AAAD;  h ^= h >> 15;  h *= 0x735A2D97;  h ^= h >> 15
    value = f32(i32(h >> 8) - 2^23) * step + mean

so values are even over mean +- 2^23 * step, then rounded to the weight's dtype (u8: cut).
`fill_array` is the definition; a device may make the same values with a kernel of its own.
(Constants of the mixer: lowbias32, Chris Wellons, "Hash Function Prospector".)

>>> fill = Fill(seed=7, mean=1.0, step=2.0**-24)
>>> fill_array(fill, 3, "f32")
array([1.4196997 , 1.4197099 , 0.73227805], dtype=float32)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArtifactError
from .schema import as_int, as_record, shorten

FEATURE = "fills"
"""What an artifact with fills names in its manifest's ``features``."""
DTYPES = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "u8": 1}
"""Types that can be filled, and their bytes."""
_HELD_AS = {"f32": "f4", "f16": "f2", "bf16": "u2", "e4m3": "u1", "u8": "u1"}
HALF_RANGE = 1 << 23
FILL_BLOCK = 4096
"""Elements that one program of a device's fill kernel makes (targets/kernels/fill.py)."""
CHUNK = 1 << 20
"""Elements that are made at a time."""


@dataclass(frozen=True)
class Fill:
    """Numbers of one weight: ``seed`` is 32 bits, ``step`` the distance between two values."""

    seed: int
    mean: float
    step: float

    def to_json(self) -> dict[str, object]:
        return {"seed": self.seed, "mean": self.mean, "step": self.step}

    @staticmethod
    def from_json(where: str, value: object) -> Fill:
        """A checked fill, or `ArtifactError`."""
        record = as_record(where, value, ["seed", "mean", "step"], None)
        seed = as_int(f"{where}: seed", record["seed"], high=2**32 - 1)
        return Fill(seed, *(_as_float(f"{where}: {k}", record[k]) for k in ("mean", "step")))


def _as_float(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise ArtifactError(f"{where}: expected a number, got {shorten(value)}")
    return float(value)


def fill_for(name: str, mean: float, deviation: float) -> Fill:
    """A fill whose seed comes from the weight's name, even numbers with this deviation."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return Fill(seed, mean, float(np.float32(deviation * 3**0.5 / HALF_RANGE)))


def fill_array(fill: Fill, count: int, dtype: str) -> NDArray[Any]:
    """The first ``count`` elements in the dtype's own bytes (bf16 as uint16, e4m3 as uint8)."""
    out = np.empty(count, _HELD_AS[dtype])
    rounded = {"bf16": _bf16, "e4m3": _e4m3}.get(dtype)
    for at in range(0, count, CHUNK):
        values = _values(fill, at, min(CHUNK, count - at))
        out[at : at + len(values)] = rounded(values) if rounded else values
    return out


def _values(fill: Fill, start: int, count: int) -> NDArray[np.float32]:
    index = np.arange(start, start + count, dtype=np.uint64)
    h = index.astype(np.uint32) * np.uint32(0x9E3779B1)
    h += (index >> np.uint64(32)).astype(np.uint32) * np.uint32(0x85EBCA77)
    h += np.uint32(fill.seed)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x21F0AAAD)
    h ^= h >> np.uint32(15)
    h *= np.uint32(0x735A2D97)
    h ^= h >> np.uint32(15)
    steps = (h >> np.uint32(8)).astype(np.int32) - np.int32(HALF_RANGE)
    return steps.astype(np.float32) * np.float32(fill.step) + np.float32(fill.mean)


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even; fills have no NaN."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rounded to nearest, ties to even, to 4 bits of exponent and 3 of fraction; at most 448."""
    size = np.abs(values)
    bits = size.view(np.uint32)
    normal = ((bits + np.uint32(0x7FFFF) + ((bits >> 20) & np.uint32(1))) >> 20).astype(np.int32)
    small = np.rint(np.minimum(size, 1.0) * np.float32(512)).astype(np.int32)
    code = np.minimum(np.where(size < 2.0**-6, small, normal - (120 << 3)), 0x7E)
    signed: NDArray[np.uint8] = (code | np.signbit(values).astype(np.int32) << 7).astype(np.uint8)
    return signed
