"""Block-quantized matrices, byte for byte as GGUF stores them, and their exact float values.

A row of K numbers is K / `elements` blocks of `bytes` bytes. `unpack` splits blocks into integers
and scales (what packing needs); `dequantize` multiplies them out in ggml's order of f32 operations.

>>> BLOCK_TYPES["q4_1"].bits_per_weight
5.0
>>> zeros = BlockArray("q8_0", (2, 32), np.zeros((2, 34), np.uint8))
>>> zeros.dequantize().shape
(2, 32)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import VerifyError
from .quantized import Quantized

_ROWS_BYTES = 1 << 22  # raw bytes decoded at a time: the temporaries stay near 100 MB


@dataclass(frozen=True)
class BlockType:
    """The facts of one block format; sources: ggml-common.h and gguf/quants.py."""

    name: str
    elements: int
    """Numbers per block."""
    layout: np.dtype[np.void]
    """The fields of a block, little endian, in file order."""
    bits: int
    """Bits of one quantized integer."""
    zero: int
    """Subtracted from the stored integer before scaling."""
    group: int
    """Numbers that share a scale: the block, or a part of a super-block."""

    @property
    def bytes(self) -> int:
        """Bytes per block."""
        return self.layout.itemsize

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per number, scales included."""
        return 8 * self.bytes / self.elements

    @property
    def has_min(self) -> bool:
        """Whether a value has an added part (d*q + m) beside the scaled one."""
        return bool({"m", "dmin"} & set(self.layout.names or ()))

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` numbers."""
        if columns % self.elements:
            raise VerifyError(
                f"{self.name}: expected rows of whole blocks of {self.elements}, got {columns} long"
            )
        return columns // self.elements * self.bytes


def _layout(*fields: tuple[str, str, int]) -> np.dtype[np.void]:
    """A packed struct; a count of 0 is a scalar."""
    return np.dtype(
        [(name, kind, (count,)) if count else (name, kind) for name, kind, count in fields]
    )


_D, _M, _DMIN = ("d", "<f2", 0), ("m", "<f2", 0), ("dmin", "<f2", 0)

BLOCK_TYPES: dict[str, BlockType] = {
    row.name: row
    for row in (
        BlockType("q4_0", 32, _layout(_D, ("ql", "u1", 16)), bits=4, zero=8, group=32),
        BlockType("q4_1", 32, _layout(_D, _M, ("ql", "u1", 16)), bits=4, zero=0, group=32),
        BlockType(
            "q5_0", 32, _layout(_D, ("qh", "u1", 4), ("ql", "u1", 16)), bits=5, zero=16, group=32
        ),
        BlockType(
            "q5_1", 32, _layout(_D, _M, ("qh", "u1", 4), ("ql", "u1", 16)), bits=5, zero=0, group=32
        ),
        BlockType("q8_0", 32, _layout(_D, ("q", "i1", 32)), bits=8, zero=0, group=32),
        BlockType(
            "q4_k",
            256,
            _layout(_D, _DMIN, ("scales", "u1", 12), ("ql", "u1", 128)),
            bits=4,
            zero=0,
            group=32,
        ),
        BlockType(
            "q5_k",
            256,
            _layout(_D, _DMIN, ("scales", "u1", 12), ("qh", "u1", 32), ("ql", "u1", 128)),
            bits=5,
            zero=0,
            group=32,
        ),
        BlockType(
            "q6_k",
            256,
            _layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D),
            bits=6,
            zero=32,
            group=16,
        ),
    )
}


@dataclass(frozen=True, eq=False)
class BlockParts:
    """Blocks taken apart. `scale` and `minimum` exist for super-blocks only.

    value = d*(q - zero) [+ m], or (d*scale)*(q - zero) [- dmin*minimum].
    """

    q: NDArray[np.uint8] | NDArray[np.int8]
    """[N, K], as stored: before `zero` is subtracted; int8 for q8_0, else uint8."""
    d: NDArray[np.float16]
    """[N, K / elements]."""
    m: NDArray[np.float16] | None = None
    """[N, K / elements]: added minimum, or the scale of `minimum`."""
    scale: NDArray[np.uint8] | NDArray[np.int8] | None = None
    """[N, K / group]."""
    minimum: NDArray[np.uint8] | None = None
    """[N, K / group]."""


@dataclass(frozen=True, eq=False)
class BlockArray(Quantized):
    """A matrix [N, K] of one block type; `raw` is uint8 [N, bytes per row], possibly a file map."""

    dtype: str
    shape: tuple[int, int]
    raw: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.dtype not in BLOCK_TYPES:
            raise VerifyError(
                f"block array: expected one of {', '.join(BLOCK_TYPES)}, got {self.dtype!r}"
            )
        if len(self.shape) != 2 or min(self.shape) < 0:
            raise VerifyError(f"{self.dtype}: expected a shape of two sizes, got {self.shape}")
        expected = (self.shape[0], self.type.row_bytes(self.shape[1]))
        if self.raw.dtype != np.uint8 or self.raw.shape != expected:
            raise VerifyError(
                f"{self.dtype} of {self.shape}: expected uint8 bytes of shape {expected}, "
                f"got {self.raw.dtype} of {self.raw.shape}"
            )

    @property
    def type(self) -> BlockType:
        """The facts of the block format."""
        return BLOCK_TYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return self.raw.nbytes

    def unpack(self) -> BlockParts:
        """Integers and scales of every block."""
        rows, kind = self.shape[0], self.type
        blocks = np.ascontiguousarray(self.raw).reshape(-1).view(kind.layout)
        parts = _UNPACK[self.dtype](blocks)

        def by_row(part: NDArray[np.generic] | None) -> NDArray[np.generic] | None:
            return None if part is None else part.reshape(rows, -1 if part.size else 0)

        return BlockParts(*(by_row(part) for part in parts))  # type: ignore[arg-type]

    def dequantize(self) -> NDArray[np.float32]:
        """Exact f32 values, bit-equal to ggml's."""
        out = np.empty(self.shape, np.float32)
        step = max(1, _ROWS_BYTES // max(1, self.raw.shape[1]))
        for start in range(0, self.shape[0], step):
            out[start : start + step] = self[start : start + step]._values()
        return out

    def __getitem__(self, rows: slice) -> BlockArray:
        """A range of rows, without a copy: ``blocks[8:16]``."""
        raw = self.raw[rows]
        return BlockArray(self.dtype, (raw.shape[0], self.shape[1]), raw)

    def _rows(self, index: NDArray[np.int64]) -> BlockArray:
        return BlockArray(self.dtype, (index.size, self.shape[1]), self.raw[index])

    def _stacked(self, others: Sequence[Quantized]) -> BlockArray:
        raw = [self.raw, *(other.raw for other in others if isinstance(other, BlockArray))]
        rows = sum(map(len, raw))
        return BlockArray(self.dtype, (rows, self.shape[1]), np.concatenate(raw))

    def _values(self) -> NDArray[np.float32]:
        """The product, without bound on temporaries. The order of operations is ggml's: keep it."""
        kind, parts = self.type, self.unpack()
        integers = parts.q.astype(np.int16) - np.int16(kind.zero)
        q = integers.astype(np.float32).reshape(self.shape[0], -1, kind.group)
        d = parts.d.astype(np.float32)
        m = None if parts.m is None else parts.m.astype(np.float32)
        if parts.scale is not None:
            d = _per_group(d, parts.scale)
        if parts.minimum is not None and m is not None:
            m = -_per_group(m, parts.minimum)
        scaled = d[..., None] * q
        return (scaled if m is None else scaled + m[..., None]).reshape(self.shape)


def _per_group(
    d: NDArray[np.float32], scale: NDArray[np.uint8] | NDArray[np.int8]
) -> NDArray[np.float32]:
    """Scale of the super-block times scale of each of its groups."""
    groups = scale.astype(np.float32).reshape(*d.shape, -1)
    return (d[..., None] * groups).reshape(d.shape[0], -1)


_Parts = tuple[NDArray[np.generic] | None, ...]


def _unpack_legacy(blocks: NDArray[np.void]) -> _Parts:
    """q4_0, q4_1, q5_0, q5_1: low nibbles are elements 0..15, high ones 16..31."""
    names = blocks.dtype.names or ()
    ql = blocks["ql"]
    q = np.concatenate([ql & 0x0F, ql >> 4], axis=1)
    if "qh" in names:
        q |= np.unpackbits(blocks["qh"], axis=1, bitorder="little") << 4
    return q, blocks["d"], blocks["m"] if "m" in names else None


def _unpack_q8_0(blocks: NDArray[np.void]) -> _Parts:
    return blocks["q"], blocks["d"]


def _unpack_q4_k(blocks: NDArray[np.void]) -> _Parts:
    """q4_k, q5_k: each 32 bytes of `ql` hold two groups of 32; bit g of `qh` belongs to group g."""
    ql = blocks["ql"].reshape(-1, 4, 1, 32)
    q = (ql >> np.array([0, 4], np.uint8).reshape(2, 1) & 0x0F).reshape(-1, 8, 32)
    if "qh" in (blocks.dtype.names or ()):
        bit = np.arange(8, dtype=np.uint8).reshape(8, 1)
        q = q | (blocks["qh"][:, None, :] >> bit & 1) << 4
    scale, minimum = _six_bit_scales(blocks["scales"])
    return q, blocks["d"], blocks["dmin"], scale, minimum


def _six_bit_scales(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Eight scales and eight minima of 6 bits in 12 bytes; the last four of each are split."""
    low, mid, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([low & 0x3F, high & 0x0F | low >> 2 & 0x30], axis=1)
    minimum = np.concatenate([mid & 0x3F, high >> 4 | mid >> 2 & 0x30], axis=1)
    return scale, minimum


def _unpack_q6_k(blocks: NDArray[np.void]) -> _Parts:
    """Two halves of 128; in a half 64 bytes of low nibbles and 32 bytes of four 2-bit tops."""
    ql = blocks["ql"].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(2, 1) & 0x0F
    qh = blocks["qh"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    q = ql.reshape(-1, 256) | qh.reshape(-1, 256) << 4
    return q, blocks["d"], None, blocks["scales"]


_UNPACK = {
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1"), _unpack_legacy),
    "q8_0": _unpack_q8_0,
    **dict.fromkeys(("q4_k", "q5_k"), _unpack_q4_k),
    "q6_k": _unpack_q6_k,
}
