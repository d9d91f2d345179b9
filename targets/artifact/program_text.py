"""The text form of a program.

::

    program step(tokens, seqs) {
      arena tokens * 256
      input  token_ids: i32[tokens] bytes tokens * 4
      output logits: f32[rows, 100] bytes rows * 400
      temp   t0: f32[tokens, 64] bytes tokens * 256 at 0
      state  kv: f32[num_pages, 64] bytes num_pages * 256
      bucket tokens <= 16 {
        embed[tokens, 1, 1](buffer token_ids, weight embed + 64, buffer t0, i32 tokens)  # take
      }
      bucket {
      }
    }
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...errors import ArtifactError
from .program import Arg, Bucket, Buffer, Call, Program
from .schema import shorten

_HEAD = re.compile(r"program (?P<entry>\S+)\((?P<symbols>[^()]*)\) \{")
_BUFFER = re.compile(
    r"(?P<kind>input|output|temp|state) +(?P<name>[^\s\[\]]+): (?P<dtype>[^\s\[\]]+)"
    r"\[(?P<shape>[^\[\]]*)\] bytes (?P<bytes>.+?)( at (?P<offset>.+))?"
)
_BUCKET = re.compile(r"bucket (?:tokens <= (?P<bound>\d{1,18}) )?\{")
_CALL = re.compile(r"(?P<kernel>[^\s\[\]]+)\[(?P<grid>[^\[\]]*)\]\((?P<args>.*)\)")


def print_program(program: Program) -> str:
    """What `Program.as_text` returns."""
    buffers = (*program.inputs, *program.outputs, *program.temps, *program.states)
    lines = [
        f"program {program.entry}({', '.join(program.symbols)}) {{",
        f"  arena {program.arena_bytes}",
        *(f"  {_print_buffer(buffer)}" for buffer in buffers),
    ]
    for bucket in program.buckets:
        bound = "" if bucket.tokens_max is None else f"tokens <= {bucket.tokens_max} "
        lines.append(f"  bucket {bound}{{")
        lines.extend(f"    {_print_call(call)}" for call in bucket.calls)
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _print_buffer(buffer: Buffer) -> str:
    shape = ", ".join(buffer.shape)
    text = f"{buffer.kind:6} {buffer.name}: {buffer.dtype}[{shape}] bytes {buffer.bytes}"
    return f"{text} at {buffer.offset}" if buffer.kind == "temp" else text


def _print_call(call: Call) -> str:
    args = ", ".join(_print_arg(arg) for arg in call.args)
    text = f"{call.kernel}[{', '.join(call.grid)}]({args})"
    return f"{text}  # {call.op}" if call.op else text


def _print_arg(arg: Arg) -> str:
    offset = "" if arg.offset == "0" else f" + {arg.offset}"
    return f"{arg.kind} {arg.value}{offset}"


class _Lines:
    """The lines that are not empty, each with its number for errors."""

    def __init__(self, text: str) -> None:
        self.lines: Iterator[tuple[int, str]] = (
            (number, line.strip())
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        )
        self.number = 0
        self.line = ""

    def advance(self) -> str:
        self.number, self.line = next(self.lines, (self.number, "the end"))
        return self.line

    def fail(self, expected: str) -> ArtifactError:
        return ArtifactError(
            f"program text line {self.number}: expected {expected}, got {shorten(self.line)}"
        )


def parse_program(text: str) -> Program:
    """What `Program.parse` does."""
    lines = _Lines(text)
    head = _HEAD.fullmatch(lines.advance())
    if head is None:
        raise lines.fail("'program NAME(SYMBOLS) {'")
    if not lines.advance().startswith("arena "):
        raise lines.fail("'arena BYTES'")
    arena_bytes = lines.line.removeprefix("arena ").strip()
    buffers: dict[str, list[Buffer]] = {"input": [], "output": [], "temp": [], "state": []}
    while (match := _BUFFER.fullmatch(lines.advance())) is not None:
        buffers[match["kind"]].append(_read_buffer(match))
    buckets = []
    while (bucket := _BUCKET.fullmatch(lines.line)) is not None:
        buckets.append(_read_bucket(bucket, lines))
        lines.advance()
    if lines.line != "}" or lines.advance() != "the end":
        raise lines.fail("a buffer, a bucket or '}' at the end")
    return Program(
        entry=head["entry"],
        symbols=tuple(_split(head["symbols"])),
        inputs=tuple(buffers["input"]),
        outputs=tuple(buffers["output"]),
        temps=tuple(buffers["temp"]),
        states=tuple(buffers["state"]),
        arena_bytes=arena_bytes,
        buckets=tuple(buckets),
    )


def _read_buffer(match: re.Match[str]) -> Buffer:
    return Buffer(
        name=match["name"],
        dtype=match["dtype"],
        shape=tuple(_split(match["shape"])),
        kind=match["kind"],
        offset=match["offset"] or "0",
        bytes=match["bytes"],
    )


def _read_bucket(match: re.Match[str], lines: _Lines) -> Bucket:
    calls = []
    while lines.advance() != "}":
        calls.append(_read_call(lines))
    bound = match["bound"]
    return Bucket(None if bound is None else int(bound), tuple(calls))


def _read_call(lines: _Lines) -> Call:
    text, _, op = lines.line.partition("  # ")
    match = _CALL.fullmatch(text.strip())
    if match is None:
        raise lines.fail("'KERNEL[X, Y, Z](ARGUMENTS)' or '}'")
    grid = _split(match["grid"])
    if len(grid) != 3:
        raise lines.fail("a grid of 3 sizes")
    args = tuple(_read_arg(item) for item in _split(match["args"]))
    return Call(match["kernel"], (grid[0], grid[1], grid[2]), args, op.strip())


def _read_arg(text: str) -> Arg:
    kind, _, rest = text.partition(" ")
    if kind in ("buffer", "weight", "state"):
        value, _, offset = rest.strip().partition(" + ")
        return Arg(kind, value, offset or "0")
    return Arg(kind, rest.strip())


def _split(text: str) -> list[str]:
    """Items between commas that stand outside parentheses."""
    items, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            items.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    return [*items, last] if items or last else []
