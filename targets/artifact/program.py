"""Program: kernel calls on planned buffers, sizes and grids as texts of the dim language.

A program is valid once it exists: each dataclass checks its fields when made, `Program` checks the
names and sizes across them, and every fault is one `ArtifactError` sentence. `as_text` and `parse`
round-trip (see program_text.py), so do `to_json` and `from_json`.

Sizes of states may use `LOAD_SYMBOLS` only; all other sizes may use the program's own symbols too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
from collections.abc import Sequence

from ...errors import ArtifactError
from ..dim_code import parse as parse_dim
from .schema import (
    as_choice,
    as_int,
    as_list,
    as_name,
    as_record,
    as_text,
    load_json,
    shorten,
)

LOAD_SYMBOLS = ("num_pages", "num_slots")
"""Symbols whose value is fixed when the artifact is loaded on a device."""
_NUM_SLOTS = re.compile(r"\bnum_slots\b")
SLOTS = "state-slots"
"""What an artifact whose step program has slots names in its manifest's ``features``."""
BUFFER_KINDS = ("input", "output", "temp", "state", "const")
ARG_KINDS = ("buffer", "weight", "state", "i32", "i64", "f32")
POINTER_KINDS = ("buffer", "weight", "state")
MAX_CALLS = 1 << 20
MAX_RANK = 16


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Named memory. `offset` is in bytes from the arena's start (temps only), `bytes` its size."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    kind: str
    offset: str
    bytes: str

    def __post_init__(self) -> None:
        as_name("buffer", self.name)
        as_name(f"buffer {self.name}: dtype", self.dtype)
        as_choice(f"buffer {self.name}: kind", self.kind, BUFFER_KINDS)
        if len(self.shape) > MAX_RANK:
            raise ArtifactError(f"buffer {self.name}: expected at most {MAX_RANK} dimensions")
        if self.kind != "temp" and self.offset != "0":
            raise ArtifactError(
                f"buffer {self.name}: expected offset 0 for a {self.kind}, got {self.offset!r}"
            )


@dataclasses.dataclass(frozen=True)
class Arg:
    """One kernel argument: memory by name plus `offset` bytes, or a number.

    `value` is a name for buffer, weight and state, a dim text for i32 and i64, a float for f32.
    """

    kind: str
    value: str
    offset: str = "0"

    def __post_init__(self) -> None:
        as_choice("argument kind", self.kind, ARG_KINDS)
        if self.kind in POINTER_KINDS:
            as_name(f"{self.kind} argument", self.value)
        elif self.offset != "0":
            raise ArtifactError(
                f"{self.kind} argument: expected no offset for a number, got {self.offset!r}"
            )
        if self.kind == "f32":
            self.number()

    def number(self) -> float:
        """The value of an f32 argument."""
        try:
            value = float(as_text("f32 argument", self.value, limit=64))
        except ValueError as error:
            raise ArtifactError(
                f"f32 argument: expected a number, got {shorten(self.value)}"
            ) from error
        if math.isfinite(value) and abs(value) > 3.4028235677973366e38:
            raise ArtifactError(f"f32 argument: expected a value within f32, got {self.value}")
        return value


@dataclasses.dataclass(frozen=True)
class Call:
    """One kernel over a grid. `op` tells people which graph op it came from."""

    kernel: str
    grid: tuple[str, str, str]
    args: tuple[Arg, ...]
    op: str = ""

    def __post_init__(self) -> None:
        as_name("kernel", self.kernel)
        as_text(f"call {self.kernel}: op", self.op, limit=512)
        if not self.op.isprintable() or self.op != self.op.strip():
            raise ArtifactError(f"call {self.kernel}: expected op on one line, got {self.op!r}")
        if len(self.grid) != 3:
            raise ArtifactError(
                f"call {self.kernel}: expected a grid of 3 sizes, got {len(self.grid)}"
            )


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The calls for steps of up to `tokens_max` tokens (None: any number)."""

    tokens_max: int | None
    calls: tuple[Call, ...]

    def __post_init__(self) -> None:
        if self.tokens_max is not None:
            as_int("bucket: tokens_max", self.tokens_max, low=1)


@dataclasses.dataclass(frozen=True)
class Program:
    """All calls of one entry point, for every bucket."""

    entry: str
    symbols: tuple[str, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    temps: tuple[Buffer, ...]
    states: tuple[Buffer, ...]
    arena_bytes: str
    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        as_name("program", self.entry)
        self._check_symbols()
        self._check_buffers()
        self._check_dim("arena_bytes", self.arena_bytes)
        self._check_buckets()
        # Layers repeat the same sizes and arguments: each different one is checked once.
        sizes = {
            (call.kernel, text): None
            for b in self.buckets
            for call in b.calls
            for text in call.grid
        }
        args = {
            (call.kernel, arg): None for b in self.buckets for call in b.calls for arg in call.args
        }
        for kernel, text in sizes:
            self._check_dim(f"call {kernel} grid", text)
        for kernel, arg in args:
            self._check_arg(f"call {kernel}", arg)

    @functools.cached_property
    def _memory(self) -> frozenset[str]:
        return frozenset(b.name for b in (*self.inputs, *self.outputs, *self.temps))

    @functools.cached_property
    def _state_names(self) -> frozenset[str]:
        return frozenset(b.name for b in self.states)

    @functools.cached_property
    def all_symbols(self) -> tuple[str, ...]:
        """Symbols that sizes may use, in the order of the launch plan."""
        known = LOAD_SYMBOLS if self.has_slots else LOAD_SYMBOLS[:1]
        return (*self.symbols, *(s for s in known if s not in self.symbols))

    @functools.cached_property
    def has_slots(self) -> bool:
        """Whether a state has a size in num_slots. Other programs do not know the symbol."""
        return any(_NUM_SLOTS.search(state.bytes) for state in self.states)

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights that the calls read, in order of first use."""
        args = (a for b in self.buckets for c in b.calls for a in c.args if a.kind == "weight")
        return tuple(dict.fromkeys(arg.value for arg in args))

    @property
    def kernels(self) -> tuple[str, ...]:
        """Kernel symbols in order of first use."""
        return tuple(dict.fromkeys(c.kernel for b in self.buckets for c in b.calls))

    def as_text(self) -> str:
        """The program for people; `parse` reads it back."""
        from .program_text import print_program

        return print_program(self)

    @staticmethod
    def parse(text: str) -> Program:
        """Read what `as_text` wrote."""
        from .program_text import parse_program

        return parse_program(text)

    def to_json(self) -> bytes:
        """Compact JSON."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps(fields, separators=(",", ":"), default=_to_json).encode()

    @staticmethod
    def from_json(data: bytes, where: str = "program") -> Program:
        """Read `to_json` back, checking every field."""
        return _read_program(where, load_json(where, data))

    def _where(self, place: str) -> str:
        return f"program {self.entry}: {place}"

    def _check_symbols(self) -> None:
        for symbol in self.symbols:
            if not isinstance(symbol, str) or not symbol.isidentifier() or not symbol.isascii():
                raise ArtifactError(self._where(f"expected a symbol, got {shorten(symbol)}"))
        if len(set(self.symbols)) != len(self.symbols) or len(self.symbols) > 64:
            raise ArtifactError(
                self._where(f"expected up to 64 different symbols, got {self.symbols}")
            )

    def _check_dim(self, place: str, text: str, symbols: Sequence[str] | None = None) -> None:
        try:
            parse_dim(text, self.all_symbols if symbols is None else symbols)
        except ArtifactError as error:
            raise ArtifactError(f"{self._where(place)}: {error}") from error

    def _check_buffers(self) -> None:
        groups = {
            "input": self.inputs,
            "output": self.outputs,
            "temp": self.temps,
            "state": self.states,
        }
        seen: set[str] = set()
        for kind, buffers in groups.items():
            symbols = LOAD_SYMBOLS if kind == "state" else self.all_symbols
            for buffer in buffers:
                if buffer.kind != kind:
                    raise ArtifactError(
                        self._where(
                            f"{kind} {buffer.name}: expected kind {kind}, got {buffer.kind}"
                        )
                    )
                if buffer.name in seen:
                    raise ArtifactError(self._where(f"buffer {buffer.name} is declared twice"))
                seen.add(buffer.name)
                for text in (*buffer.shape, buffer.offset, buffer.bytes):
                    self._check_dim(f"{kind} {buffer.name}", text, symbols)

    def _check_buckets(self) -> None:
        if not self.buckets:
            raise ArtifactError(self._where("expected at least one bucket"))
        if sum(len(bucket.calls) for bucket in self.buckets) > MAX_CALLS:
            raise ArtifactError(self._where(f"expected at most {MAX_CALLS} calls"))
        bounds = [math.inf if b.tokens_max is None else b.tokens_max for b in self.buckets]
        if any(low >= high for low, high in itertools.pairwise(bounds)):
            raise ArtifactError(self._where(f"expected buckets of growing size, got {bounds}"))
        if bounds[0] != math.inf and "tokens" not in self.symbols:
            raise ArtifactError(self._where("bounded buckets need the symbol tokens"))

    def _check_arg(self, place: str, arg: Arg) -> None:
        if arg.kind == "buffer" and arg.value not in self._memory:
            raise ArtifactError(self._where(f"{place}: no buffer named {arg.value!r}"))
        if arg.kind == "state" and arg.value not in self._state_names:
            raise ArtifactError(self._where(f"{place}: no state named {arg.value!r}"))
        if arg.kind in ("i32", "i64"):
            self._check_dim(f"{place} argument", arg.value)
        self._check_dim(f"{place} argument", arg.offset)


def _texts(where: str, value: object) -> tuple[str, ...]:
    return tuple(as_text(where, item) for item in as_list(where, value))


def _read_buffer(where: str, value: object) -> Buffer:
    record = as_record(where, value, [f.name for f in dataclasses.fields(Buffer)])
    texts = {key: as_text(where, item) for key, item in record.items() if key != "shape"}
    return Buffer(shape=_texts(f"{where}: shape", record["shape"]), **texts)


def _to_json(item: object) -> object:
    if isinstance(item, Arg):
        return [item.kind, item.value, item.offset]
    assert isinstance(item, (Buffer, Bucket, Call))
    return {f.name: getattr(item, f.name) for f in dataclasses.fields(item)}


class _Args:
    """Makes each different argument once: layers repeat most of them."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], Arg] = {}

    def read(self, where: str, value: object) -> Arg:
        items = as_list(where, value, 3)
        kind, name, offset = items
        if isinstance(kind, str) and isinstance(name, str) and isinstance(offset, str):
            found = self.known.get((kind, name, offset))
            if found is not None:
                return found
        texts = [as_text(where, item) for item in items]
        return self.known.setdefault(tuple(texts), Arg(*texts))


def _read_call(where: str, value: object, known: _Args) -> Call:
    record = as_record(where, value, ["kernel", "grid", "args"], ["op"])
    kernel = as_name(where, record["kernel"])
    where = f"{where} ({kernel})"
    x, y, z = _texts(f"{where}: grid", as_list(f"{where}: grid", record["grid"], 3))
    place = f"{where}: args"
    args = tuple(known.read(place, arg) for arg in as_list(place, record["args"]))
    op = as_text(f"{where}: op", record.get("op", ""))
    return Call(kernel, (x, y, z), args, op)


def _read_bucket(where: str, value: object, known: _Args) -> Bucket:
    record = as_record(where, value, ["tokens_max", "calls"])
    bound = record["tokens_max"]
    tokens_max = None if bound is None else as_int(f"{where}: tokens_max", bound, low=1)
    calls = enumerate(as_list(f"{where}: calls", record["calls"]))
    return Bucket(tokens_max, tuple(_read_call(f"{where}: call {i}", c, known) for i, c in calls))


def _read_program(where: str, value: object) -> Program:
    record = as_record(where, value, [f.name for f in dataclasses.fields(Program)])

    def buffers(key: str) -> tuple[Buffer, ...]:
        items = as_list(f"{where}: {key}", record[key])
        return tuple(_read_buffer(f"{where}: {key} {i}", item) for i, item in enumerate(items))

    buckets = as_list(f"{where}: buckets", record["buckets"])
    known = _Args()
    return Program(
        entry=as_name(f"{where}: entry", record["entry"]),
        symbols=_texts(f"{where}: symbols", record["symbols"]),
        inputs=buffers("inputs"),
        outputs=buffers("outputs"),
        temps=buffers("temps"),
        states=buffers("states"),
        arena_bytes=as_text(f"{where}: arena_bytes", record["arena_bytes"]),
        buckets=tuple(
            _read_bucket(f"{where}: bucket {i}", b, known) for i, b in enumerate(buckets)
        ),
    )
