"""Programs beside a model's own, made by hand: tokens from logits, and weights from seeds.

    argmax        logits f32 [rows, vocab] -> ids i32 [rows]: greedy tokens
    sample        logits, top_k, temperature, lowest, top_p, uniform [rows] -> ids: random tokens
    place_tokens  token_ids i32 [tokens], ids: tokens that the step before chose go in their places
    fill_<dtype>  count, seed, step, mean -> weight [count]; the last three are 32 bits of numbers
    expand_<type> blocks u8 [count, bytes of a block] -> weight bf16: blocks as stored in a file

The device (device/recipes.py) runs the first three in one graph with the step: "logits" is the
step's output, "token_ids" its input, "ids" what the last step chose, "weight" any weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...errors import LoweringError
from ...ir.target import Target
from ..artifact.expand import BLOCKS
from ..artifact.fill import DTYPES, FILL_BLOCK
from ..artifact.program import Arg, Bucket, Buffer, Call, Program
from ..kernel import Kernel, argument_names
from ..kernels.packing import BLOCK_TYPES
from ..lowering import Lowering
from .compile import DEFAULTS
from .dependent import launch_options

ALIGNMENT = 256
"""Bytes: what buffers of the arena start at."""
ARGMAX_CHUNK = 2048
"""Logits that one program looks at: a row of 128,000 keeps 63 of them busy."""
DRAW_CHUNK, DRAW_TILE, DRAW_ROOM, DRAW_GROUP = 4096, 1024, 8192, 64
"""Constants of draw_rows.py; at most ROOM tokens survive the cuts of a usual top-p."""
PLACE_BLOCK = 256
MAX_ROWS = 1 << 30
"""The device checks where tokens point to; this is for kernels alone."""
FILLED = ("bf16", "f32")
EXPANDED_AT_ONCE = 2048
"""Elements that one program makes of blocks."""
_POINTERS = {"f32": "*fp32", "f64": "*fp64", "i32": "*i32", "bf16": "*bf16", "u8": "*u8"}
_ITEM_BYTES = {"f64": 8, "f32": 4, "i32": 4, "bf16": 2, "u8": 1}


@dataclass(frozen=True)
class Entry:
    """A program and the kernels it calls."""

    program: Program
    kernels: tuple[Kernel, ...]


def add_entries(lowering: Lowering, target: Target) -> None:
    """Add every program that fits the model: a decoder's logits become tokens on the device."""
    vocab_size = lowering.graph.outputs[0].type.shape[-1]
    entries = [fill(dtype, target) for dtype in FILLED]
    if isinstance(vocab_size, int) and lowering.graph.states:
        entries += [argmax(vocab_size, target), sample(vocab_size, target), place_tokens(target)]
    add_entries_of(lowering, entries)


def add_entries_of(lowering: Lowering, entries: Iterable[Entry]) -> None:
    """Add these programs and their kernels."""
    for entry in entries:
        lowering.entries.append(entry.program)
        lowering.kernels.update((kernel.symbol, kernel) for kernel in entry.kernels)


def argmax(vocab_size: int, target: Target) -> Entry:
    """The largest logit of each row; see argmax_rows.py."""
    parts = -(-vocab_size // ARGMAX_CHUNK)
    maker = _Maker(target)
    logits = maker.buffer("input", "logits", "f32", vocab_size)
    bests = maker.buffer("temp", "bests", "f32", parts)
    places = maker.buffer("temp", "places", "i32", parts)
    ids = maker.buffer("output", "ids", "i32")
    constants = {"VOCAB": vocab_size, "CHUNK": ARGMAX_CHUNK}
    memory = {"logits": logits, "bests": bests, "places": places}
    maker.call("argmax_rows.best_of_parts", (str(parts), "rows", "1"), memory, constants)
    memory = {"bests": bests, "places": places, "tokens": ids}
    constants = {"PARTS": parts, "BLOCK": _power_of_two(parts)}
    maker.call("argmax_rows.best_of_row", ("rows", "1", "1"), memory, constants, num_warps=1)
    return maker.entry("argmax")


def sample(vocab_size: int, target: Target) -> Entry:
    """A random token for each row; see draw_rows.py."""
    chunks = -(-vocab_size // DRAW_CHUNK)
    groups = chunks * DRAW_CHUNK // DRAW_GROUP
    maker = _Maker(target)
    logits = maker.buffer("input", "logits", "f32", vocab_size)
    parameters = {
        name: maker.buffer("input", name, dtype)
        for name, dtype in (
            ("top_k", "i32"), ("temperature", "f32"), ("lowest", "f32"), ("top_p", "f64"),
            ("uniform", "f64"),
        )
    }  # fmt: skip
    between = {
        "largest": maker.buffer("temp", "largest", "f32", groups),
        "mass": maker.buffer("temp", "mass", "f32", groups),
    }
    lists = maker.buffer("temp", "lists", "i32", groups + DRAW_ROOM)
    ids = maker.buffer("output", "ids", "i32")
    constants = {"VOCAB": vocab_size, "CHUNK": DRAW_CHUNK}
    few = {name: parameters[name] for name in ("top_k", "temperature")}
    maker.call(
        "draw_rows.group_rows", (str(chunks), "rows", "1"), {"logits": logits, **few, **between},
        constants, num_warps=8,
    )  # fmt: skip
    constants |= {"ROOM": DRAW_ROOM, "BLOCK": _power_of_two(groups), "TILE": DRAW_TILE}
    memory = {"logits": logits, **parameters, **between, "lists": lists, "tokens": ids}
    maker.call("draw_rows.draw_rows", ("rows", "1", "1"), memory, constants, num_warps=8)
    return maker.entry("sample")


def place_tokens(target: Target) -> Entry:
    """See step_inputs.py."""
    maker = _Maker(target, "tokens")
    memory = {
        "token_ids": maker.buffer("input", "token_ids", "i32"),
        "chosen": maker.buffer("input", "ids", "i32", size="1"),
    }
    grid = (f"cdiv(tokens, {PLACE_BLOCK})", "1", "1")
    numbers = {"tokens": Arg("i32", "tokens"), "rows": Arg("i32", str(MAX_ROWS))}
    constants = {"BLOCK": PLACE_BLOCK}
    maker.call("step_inputs.place_tokens", grid, memory, constants, numbers)
    return maker.entry("place_tokens")


def fill(dtype: str, target: Target) -> Entry:
    """See fill.py."""
    assert _ITEM_BYTES[dtype] == DTYPES[dtype]
    maker = _Maker(target, "count", "seed", "step", "mean")
    memory = {"weight": maker.buffer("output", "weight", dtype)}
    numbers = {"count": Arg("i64", "count")}
    numbers |= {name: Arg("i32", name) for name in ("seed", "step", "mean")}
    grid = (f"cdiv(count, {FILL_BLOCK})", "1", "1")
    constants = {"BLOCK": FILL_BLOCK}
    maker.call("fill.fill", grid, memory, constants, numbers, is_dependent=False)
    return maker.entry(f"fill_{dtype}")


def expand(name: str, target: Target) -> Entry:
    """See expand_blocks.py; ``name`` is a block type."""
    elements, size = BLOCKS[name]
    maker = _Maker(target, "count")
    memory = {
        "blocks": maker.buffer("input", "blocks", "u8", size),
        "weight": maker.buffer("output", "weight", "bf16", elements),
    }
    block = EXPANDED_AT_ONCE // elements
    grid = (f"cdiv(count, {block})", "1", "1")
    constants = {**BLOCK_TYPES[name].constants, "BLOCK": block}
    numbers = {"count": Arg("i32", "count")}
    maker.call("expand_blocks.expand_blocks", grid, memory, constants, numbers, is_dependent=False)
    return maker.entry(f"expand_{name}")


class _Maker:
    """Collects buffers and calls; sizes are multiples of the first symbol."""

    def __init__(self, target: Target, *symbols: str) -> None:
        self._target = target
        self._symbols = symbols or ("rows",)
        self._buffers: dict[str, Buffer] = {}
        self._calls: list[Call] = []
        self._kernels: list[Kernel] = []
        self._end = "0"

    def buffer(
        self, kind: str, name: str, dtype: str, columns: int = 1, size: str | None = None
    ) -> str:
        """Memory of ``columns`` elements for each row; returns its name."""
        rows = self._symbols[0] if size is None else size
        shape = (rows,) if columns == 1 else (rows, str(columns))
        num_bytes = f"{rows} * {columns * _ITEM_BYTES[dtype]}"
        offset = self._end if kind == "temp" else "0"
        if kind == "temp":
            self._end = f"{offset} + align({num_bytes}, {ALIGNMENT})"
        self._buffers[name] = Buffer(name, dtype, shape, kind, offset, num_bytes)
        return name

    def call(
        self,
        function: str,
        grid: tuple[str, str, str],
        memory: Mapping[str, str],
        constants: Mapping[str, object],
        numbers: Mapping[str, Arg] | None = None,
        *,
        num_warps: int = 4,
        is_dependent: bool = True,
    ) -> None:
        """Call a Triton function: ``memory`` maps its pointers to buffers."""
        numbers = numbers or {}
        extra, options = launch_options(self._target) if is_dependent else ({}, {})
        signature = {name: _POINTERS[self._buffers[at].dtype] for name, at in memory.items()}
        signature |= {name: arg.kind for name, arg in numbers.items()}
        order = [name for name in argument_names(function) if name in signature]
        if len(order) != len(signature):
            raise LoweringError(f"{function}: expected the arguments {order}, got {signature}")
        chosen = {**DEFAULTS, "num_warps": num_warps, **options, "aligned": tuple(sorted(memory))}
        kernel = Kernel(
            function,
            tuple((name, signature[name]) for name in order),
            tuple(sorted({**constants, **extra}.items())),
            tuple(sorted(chosen.items())),
        )
        arguments = [numbers[n] if n in numbers else Arg("buffer", memory[n]) for n in order]
        self._kernels.append(kernel)
        self._calls.append(Call(kernel.symbol, grid, tuple(arguments), function))

    def entry(self, name: str) -> Entry:
        """All of it as a program."""
        program = Program(
            entry=name,
            symbols=self._symbols,
            inputs=self._of("input"),
            outputs=self._of("output"),
            temps=self._of("temp"),
            states=(),
            arena_bytes=self._end,
            buckets=(Bucket(None, tuple(self._calls)),),
        )
        return Entry(program, tuple(self._kernels))

    def _of(self, kind: str) -> tuple[Buffer, ...]:
        return tuple(buffer for buffer in self._buffers.values() if buffer.kind == kind)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
