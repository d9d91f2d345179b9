"""From a `Program` to the flat int64 words that the C player walks (native/player.h has the form).

Each distinct size is encoded once; a temp becomes an offset into the arena, and every other buffer,
state and weight becomes a base, a memory region whose address the executable gives at each step.
"""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from ...artifact import Arg, Bucket, Buffer, Call, Program
from ...dim_code import parse

PLAN_VERSION = 1
MAX_BUCKETS = 64
ARENA = 0
"""Base number of the arena."""
ARG_POINTER, ARG_I32, ARG_I64, ARG_F32 = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True)
class PlanCode:
    """An encoded program and everything that it refers to by number."""

    entry: str
    words: NDArray[np.int64]
    symbols: tuple[str, ...]
    """Symbols in the order of the plan: those below, then those whose value is known at load."""
    own_symbols: tuple[str, ...]
    """Symbols whose values a step gives."""
    bases: tuple[tuple[str, str], ...]
    """(kind, name) of each memory region: ("arena", ""), ("input", name), ("weight", name), ..."""
    kernels: tuple[str, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    states: tuple[Buffer, ...]
    arena_bytes: str
    calls: tuple[tuple[tuple[str, str], ...], ...]
    """(kernel, op) of each call of each bucket, for people."""

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights that the calls read."""
        return tuple(name for kind, name in self.bases if kind == "weight")


def encode(program: Program) -> PlanCode:
    """Encode every bucket of `program`."""
    if len(program.buckets) > MAX_BUCKETS:
        raise DeviceError(
            f"program {program.entry}: expected at most {MAX_BUCKETS} buckets,"
            f" got {len(program.buckets)}"
        )
    return _Encoder(program).encode()


class _Encoder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.symbols = program.all_symbols
        self.exprs: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.temps = {buffer.name: buffer for buffer in program.temps}
        self.kernels = {name: index for index, name in enumerate(program.kernels)}
        self.buffers = {
            (buffer.kind, buffer.name): buffer
            for buffer in (*program.inputs, *program.outputs, *program.states)
        }
        names = [("arena", ""), *self.buffers, *(("weight", name) for name in program.weights)]
        self.bases = {name: index for index, name in enumerate(names)}

    def encode(self) -> PlanCode:
        arena = self.expr(self.program.arena_bytes)
        buckets = [word for bucket in self.program.buckets for word in self.bucket(bucket)]
        bounded = "tokens" in self.symbols
        body = [word for text in self.exprs for word in self.expr_words(text)] + buckets
        head = [
            PLAN_VERSION, 9 + len(body), len(self.symbols), len(self.exprs), len(self.bases),
            len(self.kernels), len(self.program.buckets),
            self.symbols.index("tokens") if bounded else -1, arena,
        ]  # fmt: skip
        return PlanCode(
            entry=self.program.entry,
            words=np.array(head + body, np.int64),
            symbols=self.symbols,
            own_symbols=self.program.symbols,
            bases=tuple(self.bases),
            kernels=tuple(self.kernels),
            inputs=self.program.inputs,
            outputs=self.program.outputs,
            states=self.program.states,
            arena_bytes=self.program.arena_bytes,
            calls=tuple(tuple((c.kernel, c.op) for c in b.calls) for b in self.program.buckets),
        )

    def expr(self, text: str) -> int:
        """Number of a size; equal sizes share one, however they are spelled."""
        if text not in self.numbers:
            canonical = str(parse(text, self.symbols))
            self.numbers[text] = self.exprs.setdefault(canonical, len(self.exprs))
        return self.numbers[text]

    def expr_words(self, text: str) -> list[int]:
        code = parse(text, self.symbols).encode(self.symbols)
        return [len(code), *code]

    def bucket(self, bucket: Bucket) -> list[int]:
        used = {arg.value for call in bucket.calls for arg in call.args if arg.kind == "buffer"}
        states = {arg.value for call in bucket.calls for arg in call.args if arg.kind == "state"}
        extents = [self.extent(buffer) for name, buffer in self.temps.items() if name in used]
        for (kind, name), buffer in self.buffers.items():
            if name in (states if kind == "state" else used):
                extents.append(self.extent(buffer))
        words = [-1 if bucket.tokens_max is None else bucket.tokens_max]
        words += [len(extents), len(bucket.calls)]
        words += [word for extent in extents for word in extent]
        return words + [word for call in bucket.calls for word in self.call(call)]

    def extent(self, buffer: Buffer) -> list[int]:
        base = ARENA if buffer.kind == "temp" else self.bases[buffer.kind, buffer.name]
        return [base, self.expr(buffer.offset), self.expr(buffer.bytes)]

    def call(self, call: Call) -> list[int]:
        words = [self.kernels[call.kernel], *map(self.expr, call.grid), len(call.args)]
        return words + [word for arg in call.args for word in self.arg(arg)]

    def arg(self, arg: Arg) -> list[int]:
        match arg.kind:
            case "i32":
                return [ARG_I32, self.expr(arg.value), 0]
            case "i64":
                return [ARG_I64, self.expr(arg.value), 0]
            case "f32":
                return [ARG_F32, int.from_bytes(struct.pack("<f", arg.number()), "little"), 0]
        base, offset = self.pointer(arg)
        return [ARG_POINTER, base, self.expr(offset)]

    def pointer(self, arg: Arg) -> tuple[int, str]:
        if arg.kind == "buffer" and arg.value in self.temps:
            start = self.temps[arg.value].offset
            return ARENA, start if arg.offset == "0" else f"({start}) + ({arg.offset})"
        if arg.kind == "buffer":
            kind = "input" if ("input", arg.value) in self.bases else "output"
            return self.bases[kind, arg.value], arg.offset
        return self.bases[arg.kind, arg.value], arg.offset
