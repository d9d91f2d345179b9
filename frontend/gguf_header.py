"""The header of a GGUF file, read with every count and offset checked before it is used.

``gguf.GGUFReader`` trusts counts and multiplies dims in wrapping integers, and takes seconds for a
vocabulary; so the walk is ours and the package gives the tables (types and block sizes). Layout:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import FrontendError
from ..ir.blocks import BLOCK_TYPES
from .weights import FLOAT_BYTES, map_file

VERSIONS = (2, 3)
_MAX_DIMS = 4  # GGML_MAX_DIMS
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL = 7


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies: `shape` row-major (the reverse of the file's), `start` from byte 0."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class GgufHeader:
    """Metadata and tensor table; `data` is the whole file, mapped."""

    path: Path
    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]
    data: NDArray[np.uint8]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, a view of the mapped file."""
        tensor = self.tensors[name]
        return self.data[tensor.start : tensor.start + tensor.nbytes]


def read_header(path: Path) -> GgufHeader:
    """Parse and check the header of `path`; anything amiss raises one `FrontendError`."""
    cursor = _Cursor(path, map_file(path))
    tensor_count, metadata_count = _read_start(cursor)
    metadata = _read_metadata(cursor, metadata_count)
    entries = _read_table(cursor, tensor_count)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment: expected a power of two, got {alignment!r}")
    begin = -(-cursor.position // alignment) * alignment
    tensors = _place(cursor, entries, begin, alignment)
    return GgufHeader(path, metadata, {tensor.name: tensor for tensor in tensors}, cursor.data)


@dataclass
class _Cursor:
    """A position in the file that never moves past the end."""

    path: Path
    data: NDArray[np.uint8]
    position: int = 0

    def error(self, text: str) -> FrontendError:
        return FrontendError(f"{self.path}: {text} (the file is damaged or incomplete)")

    def need(self, count: int, what: str) -> None:
        left = self.data.size - self.position
        if count > left:
            raise self.error(
                f"{what}: expected {count} bytes at byte {self.position}, got {left} until the end"
            )

    def take(self, count: int, what: str) -> NDArray[np.uint8]:
        self.need(count, what)
        self.position += count
        return self.data[self.position - count : self.position]

    def integer(self, nbytes: int, what: str) -> int:
        """An unsigned integer."""
        return int.from_bytes(self.take(nbytes, what).tobytes(), "little")

    def string(self, what: str) -> str:
        raw = self.take(self.integer(8, what), what).tobytes()
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what}: expected UTF-8 text, got {raw[:20]!r}") from error


def _read_start(cursor: _Cursor) -> tuple[int, int]:
    """Magic, version, number of tensors, number of metadata keys."""
    if cursor.data[:4].tobytes() != b"GGUF":
        raise FrontendError(
            f"{cursor.path}: expected a GGUF file, got one that starts with "
            f"{cursor.data[:4].tobytes()!r} (give a .gguf file or a Hugging Face folder)"
        )
    cursor.position = 4
    version = cursor.integer(4, "version")
    if version not in VERSIONS:
        raise FrontendError(
            f"{cursor.path}: expected little-endian GGUF of version 2 or 3, got version {version} "
            "(convert the model again with a current llama.cpp)"
        )
    tensor_count, metadata_count = cursor.integer(8, "counts"), cursor.integer(8, "counts")
    # The least that an entry takes: name length, dim count, a dim, type, offset; key length, type,
    # value.
    cursor.need(tensor_count * 32 + metadata_count * 13, "tensor and metadata tables")
    return tensor_count, metadata_count


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(count):
        key = cursor.string("metadata key")
        if key in metadata:
            raise cursor.error(f"metadata: expected each key once, got {key!r} twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: _Cursor, key: str) -> object:
    """A number, bool or text, or a list of them."""
    kind = cursor.integer(4, key)
    if kind == _STRING:
        return cursor.string(key)
    if kind in _SCALARS:
        return _read_numbers(cursor, kind, 1, key)[0]
    if kind != _ARRAY:
        raise cursor.error(f"{key}: expected a metadata type of 0 to 12, got {kind}")
    kind, count = cursor.integer(4, key), cursor.integer(8, key)
    if kind == _STRING:
        cursor.need(count * 8, key)
        return [cursor.string(key) for _ in range(count)]
    if kind in _SCALARS:
        return _read_numbers(cursor, kind, count, key)
    raise cursor.error(f"{key}: expected an array of numbers or texts, got element type {kind}")


def _read_numbers(cursor: _Cursor, kind: int, count: int, key: str) -> list[object]:
    """Scalars as Python values; f32 as the shortest decimal that is the same f32 (1e-05)."""
    dtype = np.dtype(_SCALARS[kind])
    values = cursor.take(count * dtype.itemsize, key).view(dtype)
    if kind == _BOOL:
        return [bool(value) for value in values]
    return [float(str(value)) for value in values] if dtype == np.float32 else values.tolist()


@dataclass(frozen=True)
class _Entry:
    """A line of the tensor table, its numbers not yet believed."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int


def _read_table(cursor: _Cursor, count: int) -> list[_Entry]:
    entries = []
    for _ in range(count):
        name = cursor.string("tensor name")
        dim_count = cursor.integer(4, name)
        if not 1 <= dim_count <= _MAX_DIMS:
            raise cursor.error(f"{name}: expected 1 to {_MAX_DIMS} dims, got {dim_count}")
        dims = tuple(cursor.integer(8, name) for _ in range(dim_count))
        entries.append(_Entry(name, dims[::-1], cursor.integer(4, name), cursor.integer(8, name)))
    names = Counter(entry.name for entry in entries)
    if repeated := sorted(name for name, times in names.items() if times > 1):
        raise cursor.error(f"tensor table: expected each name once, got {repeated} more than once")
    return entries


def _place(
    cursor: _Cursor, entries: Sequence[_Entry], begin: int, alignment: int
) -> list[GgufTensor]:
    """Tensors with checked sizes and offsets."""
    dtypes = _supported_types(cursor.path, entries)
    tensors = []
    for entry, dtype in zip(entries, dtypes, strict=True):
        nbytes = _tensor_bytes(cursor, entry, dtype)
        start = begin + entry.offset
        if entry.offset % alignment or start + nbytes > cursor.data.size:
            raise cursor.error(
                f"{entry.name}: expected its {nbytes} bytes inside the file of "
                f"{cursor.data.size} bytes at a multiple of {alignment}, got offset {start}"
            )
        tensors.append(GgufTensor(entry.name, dtype, entry.dims, start, nbytes))
    ordered = sorted(tensors, key=lambda tensor: tensor.start)
    for first, second in itertools.pairwise(ordered):
        if first.start + first.nbytes > second.start:
            raise cursor.error(f"expected tensors apart, got {first.name} over {second.name}")
    return tensors


def _tensor_bytes(cursor: _Cursor, entry: _Entry, dtype: str) -> int:
    """Bytes of a tensor in exact integers; sizes of zero and broken blocks are refused."""
    elements = 1 if dtype in FLOAT_BYTES else BLOCK_TYPES[dtype].elements
    if min(entry.dims) < 1 or entry.dims[-1] % elements:
        raise cursor.error(
            f"{entry.name}: expected positive sizes and rows of whole {dtype} blocks ({elements}), "
            f"got shape {list(entry.dims)}"
        )
    size = FLOAT_BYTES[dtype] if dtype in FLOAT_BYTES else BLOCK_TYPES[dtype].bytes
    return math.prod(entry.dims) // elements * size


def _supported_types(path: Path, entries: Sequence[_Entry]) -> list[str]:
    """Our names of the tensor types; the others are refused together, each by its ggml name."""
    from gguf import GGMLQuantizationType

    ggml = {int(kind): kind.name.lower() for kind in GGMLQuantizationType}
    names = [ggml.get(entry.kind, f"type {entry.kind}") for entry in entries]
    refused = Counter(name for name in names if name not in FLOAT_BYTES and name not in BLOCK_TYPES)
    if refused:
        listed = ", ".join(f"{name} ({count} tensors)" for name, count in sorted(refused.items()))
        raise FrontendError(
            f"{path}: expected tensors of {', '.join([*FLOAT_BYTES, *BLOCK_TYPES])}, got {listed} "
            "(quantize the model to one of the known types)"
        )
    return names
