"""A `Program` as tables of numbers, so that a new shape costs a few array operations, not a walk.

Every distinct size is kept once. The word of argument i of a bucket is

    base address[slot_bases[i]] + value of size[slot_sizes[i]] + slot_words[i]

where base NOTHING has address 0 and size 0 is "0": a number is a size, a temp is the arena plus its
offset, a float is its bits. Two words follow each call's arguments: Triton's scratch pointers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...artifact import Arg, Bucket, Buffer, Call, Program
from ...dim_code import DimExpr, parse
from .kernel_table import F32, I32, I64, POINTER

ARENA, NOTHING = 0, 1
"""Bases that every program has."""
NUM_SCRATCH_WORDS = 2
Base = tuple[str, str]
"""(kind, name) of a memory region: ("arena", ""), ("input", name), ("weight", name), ..."""
_NUMBERS = {"i32": I32, "i64": I64, "f32": F32}


@dataclass(frozen=True)
class Extent:
    """What a bucket uses of a base: bytes ``offset..offset+length``, as numbers of sizes."""

    base: int
    offset: int
    length: int


@dataclass(frozen=True)
class CallCode:
    """A call: its kernel, its grid as numbers of sizes, the place of its words."""

    kernel: str
    op: str
    grid: tuple[int, int, int]
    kinds: tuple[int, ...]
    first_slot: int

    @property
    def end_slot(self) -> int:
        """Place of the scratch words."""
        return self.first_slot + len(self.kinds)

    def slots(self, kind: int) -> list[int]:
        """Places of the arguments of one kind."""
        return [self.first_slot + place for place, k in enumerate(self.kinds) if k == kind]


@dataclass(frozen=True)
class BucketCode:
    """The calls for up to `tokens_max` tokens."""

    tokens_max: int | None
    calls: tuple[CallCode, ...]
    extents: tuple[Extent, ...]
    sizes: tuple[int, ...]
    """Numbers of the sizes that this bucket needs."""
    slot_bases: NDArray[np.int64]
    slot_sizes: NDArray[np.int64]
    slot_words: NDArray[np.int64]
    narrow_slots: NDArray[np.int64]
    """Places of the 32-bit numbers."""


@dataclass(frozen=True)
class ProgramCode:
    """An encoded program."""

    entry: str
    own_symbols: tuple[str, ...]
    sizes: tuple[DimExpr, ...]
    bases: tuple[Base, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    states: tuple[Buffer, ...]
    arena_bytes: int
    """Number of a size."""
    buckets: tuple[BucketCode, ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Symbols in order of first use."""
        return tuple(dict.fromkeys(c.kernel for b in self.buckets for c in b.calls))

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights that the calls read."""
        return tuple(name for kind, name in self.bases if kind == "weight")


def encode(program: Program) -> ProgramCode:
    """Encode every bucket of a program."""
    return _Encoder(program).encode()


class _Encoder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: dict[str, int] = {}
        self.sizes: dict[DimExpr, int] = {}
        self.size("0")
        self.temps = {buffer.name: buffer for buffer in program.temps}
        self.buffers = {
            (buffer.kind, buffer.name): buffer
            for buffer in (*program.inputs, *program.outputs, *program.states)
        }
        weights = (("weight", name) for name in program.weights)
        names = [("arena", ""), ("nothing", ""), *self.buffers, *weights]
        self.bases = {name: index for index, name in enumerate(names)}
        self.words: dict[Arg, tuple[int, int, int, int]] = {}

    def encode(self) -> ProgramCode:
        arena = self.size(self.program.arena_bytes)
        buckets = tuple(self.bucket(bucket) for bucket in self.program.buckets)
        return ProgramCode(
            entry=self.program.entry,
            own_symbols=self.program.symbols,
            sizes=tuple(self.sizes),
            bases=tuple(self.bases),
            inputs=self.program.inputs,
            outputs=self.program.outputs,
            states=self.program.states,
            arena_bytes=arena,
            buckets=buckets,
        )

    def size(self, text: str) -> int:
        """Number of a size; equal ones share it, however they are spelled."""
        number = self.numbers.get(text)
        if number is None:
            expr = parse(text, self.program.all_symbols)
            number = self.sizes.setdefault(expr, len(self.sizes))
            self.numbers[text] = number
        return number

    def bucket(self, bucket: Bucket) -> BucketCode:
        calls: list[CallCode] = []
        slots: list[tuple[int, int, int]] = []
        for call in bucket.calls:
            words = [self.word(arg) for arg in call.args]
            calls.append(self.call(call, tuple(word[0] for word in words), len(slots)))
            slots += [word[1:] for word in words]
            slots += [(NOTHING, 0, 0)] * NUM_SCRATCH_WORDS
        extents = tuple(self.extents(bucket))
        table = np.array(slots, np.int64).reshape(-1, 3)
        used = {0, *table[:, 1].tolist()}
        used.update(number for call in calls for number in call.grid)
        used.update(number for e in extents for number in (e.offset, e.length))
        return BucketCode(
            tokens_max=bucket.tokens_max,
            calls=tuple(calls),
            extents=extents,
            sizes=tuple(sorted(used)),
            slot_bases=np.ascontiguousarray(table[:, 0]),
            slot_sizes=np.ascontiguousarray(table[:, 1]),
            slot_words=np.ascontiguousarray(table[:, 2]),
            narrow_slots=np.array([s for c in calls for s in c.slots(I32)], np.int64),
        )

    def call(self, call: Call, kinds: tuple[int, ...], first_slot: int) -> CallCode:
        x, y, z = map(self.size, call.grid)
        return CallCode(call.kernel, call.op, (x, y, z), kinds, first_slot)

    def extents(self, bucket: Bucket) -> Sequence[Extent]:
        """Every buffer that the bucket touches, so that none reaches beyond its memory."""
        named = {arg.kind: set[str]() for arg in _memory_args(bucket)}
        for arg in _memory_args(bucket):
            named[arg.kind].add(arg.value)
        used, states = named.get("buffer", set()), named.get("state", set())
        found = [self.extent(ARENA, b) for name, b in self.temps.items() if name in used]
        for (kind, name), buffer in self.buffers.items():
            if name in (states if kind == "state" else used):
                found.append(self.extent(self.bases[kind, name], buffer))
        return found

    def extent(self, base: int, buffer: Buffer) -> Extent:
        return Extent(base, self.size(buffer.offset), self.size(buffer.bytes))

    def word(self, arg: Arg) -> tuple[int, int, int, int]:
        """(kind, base, size, word) of an argument; layers repeat most of them."""
        found = self.words.get(arg)
        if found is None:
            found = self.words[arg] = self._word(arg)
        return found

    def _word(self, arg: Arg) -> tuple[int, int, int, int]:
        if arg.kind == "f32":
            bits = int.from_bytes(struct.pack("<f", arg.number()), "little")
            return F32, NOTHING, 0, bits
        if arg.kind in _NUMBERS:
            return _NUMBERS[arg.kind], NOTHING, self.size(arg.value), 0
        if arg.kind == "buffer" and arg.value in self.temps:
            start = self.temps[arg.value].offset
            offset = start if arg.offset == "0" else f"({start}) + ({arg.offset})"
            return POINTER, ARENA, self.size(offset), 0
        if arg.kind == "buffer":
            kind = "input" if ("input", arg.value) in self.bases else "output"
            return POINTER, self.bases[kind, arg.value], self.size(arg.offset), 0
        return POINTER, self.bases[arg.kind, arg.value], self.size(arg.offset), 0


def _memory_args(bucket: Bucket) -> list[Arg]:
    return [a for c in bucket.calls for a in c.args if a.kind in ("buffer", "state")]
