"""A `ProgramCode` as a member of the artifact: made when the model is compiled, not at each load.

    8 bytes      version, little endian
    8 bytes      length of the head
    head         JSON: names, sizes and how long each bucket's tables are
    zeros        up to a multiple of 8
    tables       int64, little endian: of each bucket calls, extents and slots

The program's JSON stays beside it: `sglk show` prints it, and a plan follows from it.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator

import numpy as np

from ....errors import ArtifactError
from ...artifact import Artifact, Buffer
from ...artifact.schema import as_int, as_list, as_name, as_record, as_text, load_json
from ...dim_code import parse
from .program_code import (
    NUM_CALL_WORDS,
    NUM_EXTENT_WORDS,
    NUM_SCRATCH_WORDS,
    NUM_SLOT_WORDS,
    BucketCode,
    Ints,
    ProgramCode,
    encode,
)

VERSION = 1
_START = struct.Struct("<QQ")
_MAX_HEAD = 1 << 28
_TABLES = {"calls": NUM_CALL_WORDS, "extents": NUM_EXTENT_WORDS, "slots": NUM_SLOT_WORDS}
_TEXTS = ("own_symbols", "sizes", "kernels", "ops")
_BUFFERS = ("inputs", "outputs", "states")
_HEAD = ("entry", "arena_bytes", "bases", "buckets", *_TEXTS, *_BUFFERS)
_BUFFER = tuple(field.name for field in dataclasses.fields(Buffer))


def code_of(artifact: Artifact, entry: str) -> ProgramCode:
    """The tables of an entry: as the artifact has them, else made from its program."""
    member = artifact.plans.get(entry)
    if member is None:
        return encode(artifact.program(entry))
    where = f"{artifact.path}: {member}"
    code = from_bytes(artifact.view(member), where)
    missing = [name for name in code.weights if name not in artifact.weights]
    if code.entry != entry or missing:
        what = f"no weight {missing[0]!r}" if missing else f"it calls itself {code.entry!r}"
        raise ArtifactError(f"{where}: the plan does not fit: {what}")
    return code


def to_bytes(code: ProgramCode) -> bytes:
    """The member's content."""
    head: dict[str, object] = {name: getattr(code, name) for name in _HEAD}
    for name in _BUFFERS:
        head[name] = [dataclasses.asdict(buffer) for buffer in getattr(code, name)]
    head["buckets"] = [
        [bucket.tokens_max, *(len(getattr(bucket, name)) for name in _TABLES)]
        for bucket in code.buckets
    ]
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    tables = [getattr(b, name).astype("<i8").tobytes() for b in code.buckets for name in _TABLES]
    return b"".join([_START.pack(VERSION, len(text)), text, *tables])


def from_bytes(data: bytes | memoryview, where: str = "plan") -> ProgramCode:
    """Read what `to_bytes` wrote, checking every number against what it counts on."""
    view = memoryview(data)
    version, length = _START.unpack_from(view) if len(view) >= _START.size else (0, 0)
    end = _START.size + length
    if version != VERSION or length > _MAX_HEAD or end > len(view) or (len(view) - end) % 8:
        raise ArtifactError(
            f"{where}: expected a plan of version {VERSION}, got version {version} and"
            f" {len(view)} bytes (compile the model again)"
        )
    value = load_json(where, bytes(view[_START.size : end]))
    head = as_record(where, value, _HEAD)
    texts = {n: tuple(as_text(f"{where}: {n}", t) for t in as_list(where, head[n])) for n in _TEXTS}
    buffers = {n: tuple(_buffer(where, item) for item in as_list(where, head[n])) for n in _BUFFERS}
    words = np.frombuffer(view[end:], "<i8").astype(np.int64, copy=False)
    code = ProgramCode(
        entry=as_name(f"{where}: entry", head["entry"]),
        arena_bytes=as_int(f"{where}: arena_bytes", head["arena_bytes"]),
        bases=tuple(_base(f"{where}: bases", item) for item in as_list(where, head["bases"])),
        buckets=tuple(_buckets(where, head["buckets"], words)),
        own_symbols=texts["own_symbols"],
        sizes=texts["sizes"],
        kernels=texts["kernels"],
        ops=texts["ops"],
        inputs=buffers["inputs"],
        outputs=buffers["outputs"],
        states=buffers["states"],
    )
    _check(code, where)
    return code


def _buckets(where: str, value: object, words: Ints) -> Iterator[BucketCode]:
    """Each bucket's tables, cut off the words in order."""
    at = 0
    for item in as_list(f"{where}: buckets", value):
        bound, *counts = as_list(f"{where}: bucket", item, 1 + len(_TABLES))
        tables = {}
        for (name, width), number in zip(_TABLES.items(), counts, strict=True):
            count = as_int(f"{where}: bucket: {name}", number, high=1 << 32) * width
            if at + count > len(words):
                raise ArtifactError(f"{where}: expected {at + count} words, got {len(words)}")
            tables[name] = words[at : at + count].reshape(-1, width)
            at += count
        tokens_max = None if bound is None else as_int(f"{where}: tokens_max", bound, low=1)
        yield BucketCode(tokens_max, **tables)
    if at != len(words):
        raise ArtifactError(f"{where}: expected {at} words, got {len(words)}")


def _check(code: ProgramCode, where: str) -> None:
    """Every number in the tables has its name, size or place; sizes know their symbols."""
    for text in code.sizes:
        parse(text, code.all_symbols)
    sizes, bases = len(code.sizes), len(code.bases)
    named = {(b.kind, b.name) for b in (*code.inputs, *code.outputs, *code.states)}
    is_sound = (
        code.arena_bytes < sizes
        and code.bases[:2] == (("arena", ""), ("nothing", ""))
        and len(set(code.bases)) == bases
        and named <= set(code.bases)
        and bool(code.buckets)
        and all(_is_bucket_sound(bucket, code) for bucket in code.buckets)
    )
    if not is_sound:
        raise ArtifactError(f"{where}: the plan contradicts itself (compile the model again)")


def _is_bucket_sound(bucket: BucketCode, code: ProgramCode) -> bool:
    sizes, bases = len(code.sizes), len(code.bases)
    calls, extents, slots = bucket.calls, bucket.extents, bucket.slots
    columns = (
        (calls[:, 0], len(code.kernels)), (calls[:, 1], len(code.ops)), (calls[:, 2:5], sizes),
        (extents[:, 0], bases), (extents[:, 1:], sizes), (slots[:, 0], 4), (slots[:, 1], bases),
        (slots[:, 2], sizes),
    )  # fmt: skip
    starts = np.append(calls[:, 5], len(slots))
    return all(bool(((c >= 0) & (c < limit)).all()) for c, limit in columns) and (
        starts[0] == 0 and bool((np.diff(starts) >= NUM_SCRATCH_WORDS).all())
    )


def _base(where: str, value: object) -> tuple[str, str]:
    kind, name = as_list(where, value, 2)
    return as_name(where, kind), as_text(where, name)


def _buffer(where: str, value: object) -> Buffer:
    record = as_record(where, value, _BUFFER)
    texts = {key: as_text(where, item) for key, item in record.items() if key != "shape"}
    shape = tuple(as_text(where, item) for item in as_list(where, record["shape"]))
    return Buffer(shape=shape, **texts)
