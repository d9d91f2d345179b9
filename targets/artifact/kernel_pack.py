"""All kernels of one chip architecture in one member of the artifact (``kernels/<arch>.pack``).

    8 bytes      b"sglkpack"
    8 bytes      version, uint64, little endian
    8 bytes      length of the index in bytes
    index        JSON: {"kernels": {symbol: {"meta": {...}, "offset": n, "bytes": n}}}
    blobs        each at a multiple of 64 bytes from the start of the pack; equal blobs once

What `meta` holds is between the compile-time and the run-time face of a target; here it is JSON.

>>> pack = write_pack({"add": PackedKernel({"num_warps": 4}, b"code")})
>>> read_pack(pack)["add"].meta
{'num_warps': 4}
>>> bytes(read_pack(pack)["add"].data)
b'code'
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ArtifactError
from .schema import as_dict, as_int, as_name, as_record, load_json

MAGIC = b"sglkpack"
VERSION = 1
ALIGNMENT = 64
"""Bytes; where a blob starts within the pack."""
MAX_INDEX = 1 << 28
_HEAD = struct.Struct("<8sQQ")


@dataclass(frozen=True)
class PackedKernel:
    """A kernel: what a loader must know to launch it, and its code."""

    meta: Mapping[str, object]
    """JSON."""
    data: bytes | memoryview


def write_pack(kernels: Mapping[str, PackedKernel]) -> bytes:
    """The member's content; equal kernels in any order give equal bytes."""
    offsets: dict[bytes, int] = {}
    blobs: list[bytes] = []
    records: dict[str, dict[str, object]] = {}
    end = 0
    for symbol, kernel in sorted(kernels.items()):
        as_name("kernel pack: symbol", symbol)
        data = bytes(kernel.data)
        digest = hashlib.sha256(data).digest()
        if digest not in offsets:
            offsets[digest] = end
            blobs.append(data + bytes(-len(data) % ALIGNMENT))
            end += len(blobs[-1])
        records[symbol] = {
            "meta": dict(kernel.meta), "offset": offsets[digest], "bytes": len(data),
        }  # fmt: skip
    text = json.dumps({"kernels": records}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(_HEAD.size + len(text)) % ALIGNMENT)
    return b"".join([_HEAD.pack(MAGIC, VERSION, len(text)), text, *blobs])


def read_pack(data: bytes | memoryview, where: str = "kernel pack") -> dict[str, PackedKernel]:
    """Kernels by symbol, their code as views of `data`; anything wrong is an `ArtifactError`."""
    view = memoryview(data).cast("B")
    start = _index_end(view, where)
    index = load_json(f"{where}: index", bytes(view[_HEAD.size : start]))
    record = as_record(f"{where}: index", index, ["kernels"], None)
    return {
        as_name(f"{where}: symbol", symbol): _kernel(f"{where}: {symbol}", item, view[start:])
        for symbol, item in as_dict(f"{where}: kernels", record["kernels"]).items()
    }


def _index_end(view: memoryview, where: str) -> int:
    """Where the blobs start: their offsets count from there."""
    if len(view) < _HEAD.size or bytes(view[:8]) != MAGIC:
        raise ArtifactError(f"{where}: expected a kernel pack, got {bytes(view[:8])!r}")
    _, version, length = _HEAD.unpack_from(view)
    if version != VERSION:
        raise ArtifactError(f"{where}: expected version {VERSION}, got {version} (upgrade sglk)")
    if length > MAX_INDEX or _HEAD.size + length > len(view):
        raise ArtifactError(f"{where}: expected an index within {len(view)} bytes, got {length}")
    return int(_HEAD.size + length)


def _kernel(where: str, item: object, blobs: memoryview) -> PackedKernel:
    record = as_record(where, item, ["meta", "offset", "bytes"], None)
    offset = as_int(f"{where}: offset", record["offset"])
    size = as_int(f"{where}: bytes", record["bytes"])
    if offset + size > len(blobs):
        raise ArtifactError(
            f"{where}: expected code within {len(blobs)} bytes, got {offset} + {size}"
        )
    return PackedKernel(as_dict(f"{where}: meta", record["meta"]), blobs[offset : offset + size])
