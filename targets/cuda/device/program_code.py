"""A `Program` as tables of numbers, so that a new shape costs a few array operations, not a walk.

Every distinct size is kept once. The word of argument i of a bucket is

    address of its base + value of its size + its own word

where base NOTHING has address 0 and size 0 is "0": a number is a size, a temp is the arena plus its
offset, a float is its bits. Two words follow each call's arguments: Triton's scratch pointers.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...artifact import LOAD_SYMBOLS, Arg, Bucket, Buffer, Program
from ...dim_code import parse
from .kernel_table import F32, I32, I64, POINTER

ARENA, NOTHING = 0, 1
"""Bases that every program has."""
NUM_CALL_WORDS, NUM_EXTENT_WORDS, NUM_SLOT_WORDS = 6, 3, 4
NUM_SCRATCH_WORDS = 2
SCRATCH_WORD = (POINTER, NOTHING, 0, 0)
Ints = NDArray[np.int64]
Base = tuple[str, str]
"""(kind, name) of a memory region: ("arena", ""), ("input", name), ("weight", name), ..."""
_NUMBERS = {"i32": I32, "i64": I64, "f32": F32}


@dataclass(frozen=True)
class BucketCode:
    """The calls for up to `tokens_max` tokens, as tables."""

    tokens_max: int | None
    calls: Ints
    """[calls, 6]: kernel, op, numbers of the three sizes of its grid, place of its first word."""
    extents: Ints
    """[extents, 3]: base, and numbers of sizes: bytes offset..offset+length of it are used."""
    slots: Ints
    """[words, 4]: kind, base, number of a size, word."""

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Numbers of the sizes that this bucket needs."""
        used = (self.calls[:, 2:5], self.extents[:, 1:], self.slots[:, 2])
        numbers: list[int] = np.unique(np.concatenate([part.reshape(-1) for part in used])).tolist()
        return numbers

    @functools.cached_property
    def narrow_slots(self) -> Ints:
        """Places of the 32-bit numbers."""
        return np.flatnonzero(self.slots[:, 0] == I32)

    @functools.cached_property
    def ends(self) -> Ints:
        """Where the scratch words of each call are."""
        return np.append(self.calls[1:, 5], len(self.slots)) - NUM_SCRATCH_WORDS

    @functools.cached_property
    def kinds(self) -> list[tuple[int, ...]]:
        """Kinds of the arguments of each call."""
        kinds, spans = self.slots[:, 0].tolist(), zip(self.calls[:, 5], self.ends, strict=True)
        return [tuple(kinds[start:end]) for start, end in spans]


@dataclass(frozen=True)
class ProgramCode:
    """An encoded program."""

    entry: str
    own_symbols: tuple[str, ...]
    sizes: tuple[str, ...]
    """Each different size, as `dim_code` spells it."""
    bases: tuple[Base, ...]
    kernels: tuple[str, ...]
    ops: tuple[str, ...]
    """For people: what calls came from."""
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    states: tuple[Buffer, ...]
    arena_bytes: int
    """Number of a size."""
    buckets: tuple[BucketCode, ...]

    @property
    def all_symbols(self) -> tuple[str, ...]:
        """Symbols that sizes may use."""
        return (*self.own_symbols, *(s for s in LOAD_SYMBOLS if s not in self.own_symbols))

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
        self.sizes: dict[str, int] = {}
        self.size("0")
        self.temps = {buffer.name: buffer for buffer in program.temps}
        self.buffers = {
            (buffer.kind, buffer.name): buffer
            for buffer in (*program.inputs, *program.outputs, *program.states)
        }
        weights = (("weight", name) for name in program.weights)
        names = [("arena", ""), ("nothing", ""), *self.buffers, *weights]
        self.bases = {name: index for index, name in enumerate(names)}
        self.kernels = {name: index for index, name in enumerate(program.kernels)}
        self.ops: dict[str, int] = {}
        self.words: dict[Arg, tuple[int, int, int, int]] = {}

    def encode(self) -> ProgramCode:
        arena = self.size(self.program.arena_bytes)
        buckets = tuple(self.bucket(bucket) for bucket in self.program.buckets)
        return ProgramCode(
            entry=self.program.entry,
            own_symbols=self.program.symbols,
            sizes=tuple(self.sizes),
            bases=tuple(self.bases),
            kernels=tuple(self.kernels),
            ops=tuple(self.ops),
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
            spelled = str(parse(text, self.program.all_symbols))
            number = self.sizes.setdefault(spelled, len(self.sizes))
            self.numbers[text] = number
        return number

    def bucket(self, bucket: Bucket) -> BucketCode:
        calls: list[tuple[int, ...]] = []
        slots: list[tuple[int, int, int, int]] = []
        for call in bucket.calls:
            op = self.ops.setdefault(call.op, len(self.ops))
            grid = [self.size(text) for text in call.grid]
            calls.append((self.kernels[call.kernel], op, *grid, len(slots)))
            slots += [self.word(arg) for arg in call.args]
            slots += [SCRATCH_WORD] * NUM_SCRATCH_WORDS
        return BucketCode(
            tokens_max=bucket.tokens_max,
            calls=np.array(calls, np.int64).reshape(-1, NUM_CALL_WORDS),
            extents=np.array(self.extents(bucket), np.int64).reshape(-1, NUM_EXTENT_WORDS),
            slots=np.array(slots, np.int64).reshape(-1, NUM_SLOT_WORDS),
        )

    def extents(self, bucket: Bucket) -> list[tuple[int, int, int]]:
        """Every buffer that the bucket touches, so that none reaches beyond its memory."""
        args = [a for c in bucket.calls for a in c.args if a.kind in ("buffer", "state")]
        used = {arg.value for arg in args if arg.kind == "buffer"}
        states = {arg.value for arg in args if arg.kind == "state"}
        found = [self.extent(ARENA, b) for name, b in self.temps.items() if name in used]
        for (kind, name), buffer in self.buffers.items():
            if name in (states if kind == "state" else used):
                found.append(self.extent(self.bases[kind, name], buffer))
        return found

    def extent(self, base: int, buffer: Buffer) -> tuple[int, int, int]:
        return base, self.size(buffer.offset), self.size(buffer.bytes)

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
