"""Weights from their file layout [N, K] to the layout the CPU kernels read, and back (NumPy only).

A column block is 64 outputs side by side, so that a vector register holds 16 outputs for one k.
N is padded with zeros to a multiple of 64; nothing else grows: a packed weight has as many bytes as
its ggml blocks plus that padding and the alignment of its sections (64 bytes each).

    >>> block = BLOCK_TYPES["q4_1"]
    >>> raw = np.arange(64 * 2 * 20, dtype=np.uint8).reshape(64, 40)  # N = 64, K = 64
    >>> packed = pack_blocks(block, raw)
    >>> for name, part in sections(block, 64, 64).items():
    ...     print(name, part.offset, part.dtype, part.shape)
    q 0 u8 (1, 2, 16, 64)
    d 2048 f16 (1, 2, 64)
    m 2304 f16 (1, 2, 64)
    >>> bool((unpack_blocks(block, packed, 64, 64) == raw).all())
    True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import LoweringError

LANES = 64  # outputs of a column block
ALIGN = 64  # bytes, of each section: one cache line, one AVX-512 register

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class BlockType:
    """A ggml block type: `size` weights of one row in `bytes` bytes."""

    name: str
    size: int
    bytes: int
    bits: int
    group: int = 32
    has_min: bool = False
    zero: int = 0
    is_super: bool = False

    @property
    def constants(self) -> dict[str, int | bool]:
        """The constexprs that tell the kernels of `quant_linear.py` this type."""
        return {
            "BITS": self.bits,
            "GROUP": self.group,
            "HAS_MIN": self.has_min,
            "ZERO": self.zero,
            "SUPER": self.is_super,
        }


BLOCK_TYPES: Mapping[str, BlockType] = {
    block.name: block
    for block in (
        BlockType("q4_0", 32, 18, bits=4, zero=8),
        BlockType("q4_1", 32, 20, bits=4, has_min=True),
        BlockType("q5_0", 32, 22, bits=5, zero=16),
        BlockType("q5_1", 32, 24, bits=5, has_min=True),
        BlockType("q8_0", 32, 34, bits=8),
        BlockType("q4_k", 256, 144, bits=4, has_min=True, is_super=True),
        BlockType("q5_k", 256, 176, bits=5, has_min=True, is_super=True),
        BlockType("q6_k", 256, 210, bits=6, group=16, zero=32, is_super=True),
    )
}


@dataclass(frozen=True)
class Section:
    """One plane of a packed weight: where it lies in the blob, in bytes, and what it is."""

    offset: int
    bytes: int
    dtype: str  # u8, i8, f16
    shape: tuple[int, ...]


_NUMPY: dict[str, np.dtype[Any]] = {
    "u8": np.dtype(np.uint8),
    "i8": np.dtype(np.int8),
    "f16": np.dtype(np.float16),
}


def _planes(block: BlockType, blocks: int, k: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    groups = k // 32
    if block.bits == 8:
        yield "q", "i8", (blocks, groups, 32, LANES)
    else:
        yield "q", "u8", (blocks, groups, 16, LANES)
    if 4 < block.bits < 8:
        yield "h", "u8", (blocks, groups, 4 * (block.bits - 4), LANES)
    if block.is_super and block.has_min:
        yield "s", "u8", (blocks, k // 256, 12, LANES)
    elif block.is_super:
        yield "s", "i8", (blocks, k // 16, LANES)
    yield "d", "f16", (blocks, k // block.size, LANES)
    if block.has_min:
        yield "m", "f16", (blocks, k // block.size, LANES)


def sections(block: BlockType, n: int, k: int) -> dict[str, Section]:
    """Where each plane lies in the packed blob of a weight [n, k]."""
    if k % block.size or n < 1 or k < 1:
        what = f"K a positive multiple of {block.size} and N positive"
        raise LoweringError(f"pack {block.name}: expected {what}, got [N, K] = [{n}, {k}]")
    out: dict[str, Section] = {}
    offset = 0
    for name, dtype, shape in _planes(block, -(-n // LANES), k):
        size = prod(shape) * _NUMPY[dtype].itemsize
        out[name] = Section(offset, size, dtype, shape)
        offset += -(-size // ALIGN) * ALIGN
    return out


def packed_bytes(block: BlockType, n: int, k: int) -> int:
    last = list(sections(block, n, k).values())[-1]
    return last.offset + -(-last.bytes // ALIGN) * ALIGN


def pack_blocks(block: BlockType, raw: Bytes) -> Bytes:
    """ggml blocks, uint8 [N, K / size * bytes], as one packed blob, uint8 [packed_bytes]."""
    if raw.ndim != 2 or raw.dtype != np.uint8 or raw.shape[1] % block.bytes:
        expected = f"uint8 [N, multiple of {block.bytes}]"
        raise LoweringError(f"pack {block.name}: expected {expected}, got {raw.dtype} {raw.shape}")
    n, k = raw.shape[0], raw.shape[1] // block.bytes * block.size
    blob = np.zeros(packed_bytes(block, n, k), np.uint8)
    planes = _views(block, blob, n, k)
    for column in range(-(-n // LANES)):  # one column block at a time keeps the scratch small
        rows = raw[column * LANES : (column + 1) * LANES]
        tile = np.zeros((LANES, raw.shape[1]), np.uint8)
        tile[: len(rows)] = rows
        fields = split_blocks(block, tile)
        for name, field in fields.items():
            planes[name][column] = np.moveaxis(field, 0, -1)
    return blob


def unpack_blocks(block: BlockType, blob: Bytes, n: int, k: int) -> Bytes:
    """The exact inverse of `pack_blocks`."""
    if blob.dtype != np.uint8 or blob.shape != (packed_bytes(block, n, k),):
        expected = f"uint8 [{packed_bytes(block, n, k)}]"
        message = f"expected {expected} for [{n}, {k}], got {blob.dtype} {blob.shape}"
        raise LoweringError(f"unpack {block.name}: {message}")
    planes = _views(block, blob, n, k)
    raw = np.empty((-(-n // LANES) * LANES, k // block.size * block.bytes), np.uint8)
    for column in range(-(-n // LANES)):
        fields = {name: np.moveaxis(plane[column], -1, 0) for name, plane in planes.items()}
        rows = _join(block, fields)
        raw[column * LANES : (column + 1) * LANES] = rows.reshape(LANES, -1)
    return raw[:n]


def _views(block: BlockType, blob: Bytes, n: int, k: int) -> dict[str, Array]:
    return {
        name: blob[part.offset : part.offset + part.bytes]
        .view(_NUMPY[part.dtype])
        .reshape(part.shape)
        for name, part in sections(block, n, k).items()
    }


def split_blocks(block: BlockType, raw: Bytes) -> dict[str, Array]:
    """ggml blocks of 64 rows, uint8 [64, K / size * bytes], as planes with the rows first.

    q: low bits [64, K / 32, 16] (8 bits: [64, K / 32, 32]), h: the bits above 4, s: scales of
    super-blocks, d and m: f16 [64, K / size], as in `sections`.
    """
    return _split(block, raw.reshape(LANES, -1, block.bytes))


def _split(block: BlockType, raw: Array) -> dict[str, Array]:
    """ggml bytes [lanes, blocks, bytes] as the planes of one column block, lanes first."""
    return _split_super(block, raw) if block.is_super else _split_plain(block, raw)


def _join(block: BlockType, fields: dict[str, Array]) -> Array:
    return _join_super(block, fields) if block.is_super else _join_plain(block, fields)


def _split_plain(block: BlockType, raw: Array) -> dict[str, Array]:
    """Types of 32: d, [m], [4 bytes of high bits], quants, in the nibble order we keep."""
    at = 4 if block.has_min else 2
    fields: dict[str, Array] = {"d": _halfs(raw[..., :2])}
    if block.has_min:
        fields["m"] = _halfs(raw[..., 2:4])
    if block.bits == 5:
        fields["h"] = raw[..., at : at + 4]
        at += 4
    fields["q"] = raw[..., at:].view(np.int8) if block.bits == 8 else raw[..., at:]
    return fields


def _join_plain(block: BlockType, fields: dict[str, Array]) -> Array:
    order = ["d", *(["m"] if block.has_min else []), *(["h"] if block.bits == 5 else []), "q"]
    parts = [np.ascontiguousarray(fields[name]) for name in order]
    parts = [part[..., None] if part.dtype == np.float16 else part for part in parts]
    return np.concatenate([part.view(np.uint8) for part in parts], axis=-1)


def _split_super(block: BlockType, raw: Array) -> dict[str, Array]:
    if block.bits == 6:  # ql 128, qh 64, scales 16, d 2
        q = _k_bits(raw[..., :128], 4, 64) | _k_bits(raw[..., 128:192], 2, 32) << 4
        scales: Array = raw[..., 192:208].view(np.int8).reshape(LANES, -1)
        return {"q": _nibbles(q), "h": _high(q, 2), "s": scales, "d": _halfs(raw[..., 208:])}
    fields: dict[str, Array] = {"d": _halfs(raw[..., :2]), "m": _halfs(raw[..., 2:4])}
    fields["s"] = _split_scales(raw[..., 4:16])
    if block.bits == 5:  # scales 12, qh 32, ql 128
        q = _k_bits(raw[..., 48:], 4, 32) | _k_bits(raw[..., 16:48], 1, 32) << 4
        return {**fields, "q": _nibbles(q), "h": _high(q, 1)}
    return {**fields, "q": _nibbles(_k_bits(raw[..., 16:], 4, 32))}


def _join_super(block: BlockType, fields: dict[str, Array]) -> Array:
    q = _unnibbles(fields["q"])
    d = np.ascontiguousarray(fields["d"])[..., None].view(np.uint8)
    if block.bits == 6:
        q = q | _unhigh(fields["h"], 2) << 4
        scales = np.ascontiguousarray(fields["s"]).view(np.uint8).reshape(LANES, -1, 16)
        low, high = _k_bytes(q & 15, 4, 64), _k_bytes(q >> 4, 2, 32)
        return np.concatenate([low, high, scales, d], axis=-1)
    m = np.ascontiguousarray(fields["m"])[..., None].view(np.uint8)
    head = [d, m, _join_scales(fields["s"])]
    if block.bits == 5:
        head.append(_k_bytes(_unhigh(fields["h"], 1), 1, 32))
    return np.concatenate([*head, _k_bytes(q, 4, 32)], axis=-1)


def _halfs(raw: Array) -> Array:
    return np.ascontiguousarray(raw).view(np.float16)[..., 0]


def _k_bits(raw: Array, bits: int, run: int) -> Array:
    """Unpacks ggml's K order: `run` bytes hold 8/bits runs of `run` fields. [.., blocks, 256]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    runs = raw.reshape(*raw.shape[:-1], -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return runs.reshape(*raw.shape[:-1], 256)


def _k_bytes(fields: Array, bits: int, run: int) -> Array:
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    runs = fields.reshape(*fields.shape[:-1], -1, 8 // bits, run)
    masked = (runs & np.uint8((1 << bits) - 1)) << shifts
    packed: Array = np.bitwise_or.reduce(masked, axis=-2)
    return packed.reshape(*fields.shape[:-1], 256 * bits // 8)


def _nibbles(q: Array) -> Array:
    """[lanes, blocks, 256] quants as the low plane [lanes, groups, 16]."""
    halves = q.reshape(q.shape[0], -1, 2, 16) & np.uint8(15)
    low: Array = halves[:, :, 0] | halves[:, :, 1] << 4
    return low


def _unnibbles(low: Array) -> Array:
    halves = np.stack([low & np.uint8(15), low >> np.uint8(4)], axis=2)
    return halves.reshape(low.shape[0], -1, 256)


def _high(q: Array, bits: int) -> Array:
    """[lanes, blocks, 256] quants as the plane of the bits above 4, [lanes, groups, 4 bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (q.reshape(q.shape[0], -1, 4 * bits, 8 // bits) >> 4) << shifts
    plane: Array = np.bitwise_or.reduce(fields, axis=-1)
    return plane


def _unhigh(plane: Array, bits: int) -> Array:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = plane[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(plane.shape[0], -1, 256)


def _split_scales(raw: Array) -> Array:
    """ggml's 12 bytes of eight 6-bit pairs as ours (see quant_linear.py): no branch on j there."""
    first, second, third = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    sc = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=-1)
    mn = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=-1)
    low = (sc & 15) | (mn & 15) << 4
    high = (sc >> 4) | (mn >> 4) << 2
    return np.concatenate([low, high[..., ::2] | high[..., 1::2] << 4], axis=-1)


def _join_scales(plane: Array) -> Array:
    low, pairs = plane[..., :8], plane[..., 8:]
    high = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(low.shape)
    sc = (low & 15) | (high & 3) << 4
    mn = (low >> 4) | (high >> 2) << 4
    first = sc[..., :4] | (sc[..., 4:] >> 4) << 6
    second = mn[..., :4] | (mn[..., 4:] >> 4) << 6
    third = (sc[..., 4:] & 15) | (mn[..., 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=-1)


def pack_dense(weight: Array) -> Array:
    """[N, K] of any dtype (bf16 as uint16) in the layout n64: [cdiv(N, 64), K, 64].

    >>> pack_dense(np.arange(6, dtype=np.float32).reshape(3, 2))[0, 1, :4]
    array([1., 3., 5., 0.], dtype=float32)
    """
    if weight.ndim != 2:
        raise LoweringError(f"pack dense: expected a weight [N, K], got shape {weight.shape}")
    n, k = weight.shape
    packed = np.zeros((-(-n // LANES), k, LANES), weight.dtype)
    for column in range(len(packed)):
        rows = weight[column * LANES : (column + 1) * LANES]
        packed[column, :, : len(rows)] = rows.T
    return packed


def unpack_dense(packed: Array, n: int) -> Array:
    """The exact inverse of `pack_dense`."""
    return np.ascontiguousarray(packed.transpose(0, 2, 1)).reshape(-1, packed.shape[1])[:n]


def pad_rows(weight: Array) -> Array:
    """`weight` with zero rows up to a multiple of 64: what each part of a gated weight needs."""
    missing = -len(weight) % LANES
    return np.concatenate([weight, np.zeros((missing, *weight.shape[1:]), weight.dtype)])
