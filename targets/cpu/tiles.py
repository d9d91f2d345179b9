"""Weights in tiles: the layout of the kernels written by hand, ``native/kernels/tiles.h``.

16 outputs side by side and 32 inputs deep; the scales of a tile lie beside its integers, so that a
product reads one stream. Packing is exact: no value changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import LoweringError
from ..kernels.packing import BlockType, pad_rows, split_blocks

LANES, DEPTH = 16, 32
Array = NDArray[Any]
Bytes = NDArray[np.uint8]


def record_bytes(block: BlockType) -> int:
    """One tile with its scales."""
    planes = 8 if block.bits == 8 else block.bits
    return 64 * planes + (64 if block.has_min and not block.is_super else 32)


def header_bytes(block: BlockType) -> int:
    """What precedes the eight tiles of a super-block: its f16 scales."""
    return (64 if block.has_min else 32) if block.is_super else 0


def tiles_bytes(block: BlockType, n: int, k: int) -> int:
    """Bytes of a packed weight [n, k]."""
    groups = k // DEPTH
    per_block = groups * record_bytes(block) + groups // 8 * header_bytes(block)
    return -(-n // LANES) * per_block


def pack_tiles(block: BlockType, raw: Bytes) -> Bytes:
    """ggml blocks, uint8 [N, K / size * bytes], as one blob, uint8 [tiles_bytes]."""
    n, k = raw.shape[0], raw.shape[1] // block.bytes * block.size
    if k % DEPTH:
        raise LoweringError(f"pack tiles: expected K a multiple of {DEPTH}, got [{n}, {k}]")
    blocks = -(-n // LANES)
    out = np.zeros((blocks, tiles_bytes(block, LANES, k)), np.uint8)
    rows = 4 * LANES  # what `split_blocks` takes at a time
    for at in range(0, n, rows):
        part = np.zeros((rows, raw.shape[1]), np.uint8)
        part[: len(raw[at : at + rows])] = raw[at : at + rows]
        fields = split_blocks(block, part)
        packed = np.concatenate(_records(block, fields), axis=-1)
        packed = packed.reshape(4, -1)
        first = at // LANES
        out[first : first + 4] = packed[: blocks - first]
    return out.reshape(-1)


def _records(block: BlockType, fields: dict[str, Array]) -> list[Array]:
    """Header and records of 64 rows, uint8 [4, super-blocks or groups, bytes] to be joined."""
    planes = _planes(block, _integers(block, fields))
    scales = _scales(block, fields)
    records = np.concatenate([*planes, *scales], axis=-1)
    if not block.is_super:
        return [records]
    grouped = records.reshape(4, records.shape[1] // 8, -1)
    header = [_half_lanes(fields["d"])]
    if block.has_min:
        header.append(_half_lanes(fields["m"]))
    return [*header, grouped]


def _integers(block: BlockType, fields: dict[str, Array]) -> Array:
    """The stored integers, uint8 [64, groups, 32]; 8-bit ones plus 128."""
    q = fields["q"]
    if block.bits == 8:
        signed = q.reshape(q.shape[0], -1, DEPTH).astype(np.int16)
        return (signed + 128).astype(np.uint8)
    q = q.reshape(q.shape[0], -1, 16)
    whole: Array = np.concatenate([q & 15, q >> 4], axis=-1)
    if block.bits > 4:
        bits = block.bits - 4
        high = fields["h"].reshape(q.shape[0], q.shape[1], -1)
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        fine = high[..., None] >> shifts & np.uint8((1 << bits) - 1)
        whole = whole | fine.reshape(whole.shape) << 4
    return whole


def _planes(block: BlockType, whole: Array) -> list[Array]:
    """[64, groups, 32] as the vectors of a record, uint8 [4, groups, 64] each."""
    wide = whole.astype(np.uint32)
    if block.bits == 8:
        orders = [[8 * z + 2 * odd + i for i in (0, 4, 1, 5)] for z in range(4) for odd in (0, 1)]
        return [_lanes(_combine(wide, order, (0, 8, 16, 24))) for order in orders]
    shifts = (0, 4, 8, 12, 16, 20, 24, 28)
    order = [2 * i + odd for odd in (0, 1) for i in range(4)]
    low = [_lanes(_combine(wide[..., 8 * z : 8 * z + 8] & 15, order, shifts)) for z in range(4)]
    if block.bits == 4:
        return low
    bits, top = block.bits - 4, wide >> 4
    per_half = 16 // bits
    high = []
    for first in range(0, 16, per_half):
        pairs = [2 * (first + i) + odd for odd in (0, 1) for i in range(per_half)]
        places = [16 * odd + bits * i for odd in (0, 1) for i in range(per_half)]
        high.append(_lanes(_combine(top, pairs, places)))
    return [*low, *high]


def _combine(values: Array, order: Any, shifts: Any) -> Array:
    """uint32 [64, groups]: the values of some inputs, each at its place."""
    total = np.zeros(values.shape[:2], np.uint32)
    for k, shift in zip(order, shifts, strict=True):
        total |= values[..., k] << np.uint32(shift)
    return total


def _lanes(values: Array) -> Array:
    """[64, groups] of 4, 2 or 1 bytes as uint8 [4, groups, 16 lanes together]."""
    blocks = values.reshape(4, LANES, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks).view(np.uint8)


def _half_lanes(values: Array) -> Array:
    return _lanes(np.ascontiguousarray(values, np.float16))


def _scales(block: BlockType, fields: dict[str, Array]) -> list[Array]:
    if not block.is_super:
        names = ("d", "m") if block.has_min else ("d",)
        return [_half_lanes(fields[name]) for name in names]
    if not block.has_min:  # two scales per record: groups of 16
        pairs = fields["s"].reshape(4 * LANES, -1, 2)
        return [_lanes(np.ascontiguousarray(pairs[..., half])) for half in (0, 1)]
    plane = fields["s"].reshape(4 * LANES, -1, 12)
    low, pairs = plane[..., :8], plane[..., 8:]
    high = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(low.shape)
    scale = (low & 15) | (high & 3) << 4
    minimum = (low >> 4) | (high >> 2) << 4
    return [_lanes(field.reshape(4 * LANES, -1)) for field in (scale, minimum)]


def pack_dense_tiles(weight: Array) -> Array:
    """bf16 bits, uint16 [N, K], as [cdiv(N, 16), K / 32, 16 pairs, 16, 2]."""
    n, k = weight.shape
    if k % DEPTH:
        raise LoweringError(f"pack tiles: expected K a multiple of {DEPTH}, got [{n}, {k}]")
    padded = pad_rows(weight)[: -(-n // LANES) * LANES]
    pairs = padded.reshape(-1, LANES, k // DEPTH, DEPTH // 2, 2)
    return np.ascontiguousarray(pairs.transpose(0, 2, 3, 1, 4))
