"""Programs beside a model's own, made by hand: tokens from logits, and weights from seeds.

    argmax        logits f32 [rows, vocab] -> ids i32 [rows]: greedy tokens, also for the host
    sample        logits, top_k, temperature, lowest, top_p, uniform [rows] -> ids: random tokens
    adjust_logits logits, lists of tokens for each of some rows: bias, penalties, forbidden tokens
    mask_logits   logits, masks i32 [masked, cdiv(vocab, 32)] of some rows: allowed tokens
    place_tokens  inputs of a step, ids: tokens that the step before chose go in their places
    fill_<dtype>  count, seed, step, mean -> weight [count]; the last three are 32 bits of numbers
    expand_<type> blocks u8 [count, bytes of a block] -> weight bf16: blocks as stored in a file

The device (device/recipes.py) runs "place_tokens" and one of the first two in one graph with the
step, or what changes and chooses after it (device/choices.py). "logits" is the step's output,
changed in place, "ids" what the last step chose, "turn" and "landing" as in step_inputs.py and
argmax_rows.py, "weight" any weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...errors import LoweringError
from ...ir.target import Target
from ..artifact.expand import BLOCKS
from ..artifact.fill import DTYPES, FILL_BLOCK
from ..artifact.program import Arg, Bucket, Buffer, Call, Program
from ..form_parts import part_dtypes
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
ADJUST_BLOCK, MASK_BLOCK = 256, 1024
"""Tokens of a list, and of the vocabulary, that a program changes at a time."""
PLACE_BLOCK = 256
TURN_WORDS = 8
"""Of "turn": six, to a whole sector."""
MAX_ROWS = 1 << 30
"""The device checks where tokens point to; this is for kernels alone."""
MOVED = ("token_ids", "positions", "slots", "seq_lens")
"""Inputs of a step that differ from those of the one before where all sequences decode."""
FILLED = ("bf16", "f32")
EXPANDED_AT_ONCE = 2048
"""Elements that one program makes of blocks."""
_POINTERS = {
    "f32": "*fp32", "f64": "*fp64", "i32": "*i32", "bf16": "*bf16", "f16": "*fp16", "u8": "*u8",
    "e4m3": "*fp8e4nv",
}  # fmt: skip
_ITEM_BYTES = {"f64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "u8": 1, "e4m3": 1}


@dataclass(frozen=True)
class Entry:
    """A program and the kernels it calls."""

    program: Program
    kernels: tuple[Kernel, ...]


def add_entries(lowering: Lowering, target: Target) -> None:
    """Add every program that fits the model: a decoder's logits become tokens on the device."""
    vocab_size = lowering.graph.outputs[0].type.shape[-1]
    parts = part_dtypes(value.type.dtype.form for value in lowering.graph.params)
    entries = [fill(dtype, target) for dtype in sorted(parts.union(FILLED))]
    if isinstance(vocab_size, int) and lowering.graph.states:
        entries += [argmax(vocab_size, target), sample(vocab_size, target), place_tokens(target)]
        entries += [adjust_logits(vocab_size, target), mask_logits(vocab_size, target)]
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
    memory = {"bests": bests, "places": places, "turn": maker.turn(), "tokens": ids}
    memory["landing"] = maker.buffer("input", "landing", "i32")  # of all slots; a step fills one
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


def adjust_logits(vocab_size: int, target: Target) -> Entry:
    """See `adjust_rows` of adjust_logits.py."""
    maker = _Maker(target, "changed", "biased", "seen", "forbidden")
    starts = "(changed + 1)"
    memory = {
        "logits": maker.buffer("input", "logits", "f32", vocab_size, size="1"),
        "rows": maker.buffer("input", "changed_rows", "i32"),
        "bias_starts": maker.buffer("input", "bias_starts", "i32", size=starts),
        "bias_ids": maker.buffer("input", "bias_ids", "i32", size="biased"),
        "bias": maker.buffer("input", "bias", "f32", size="biased"),
        "history_starts": maker.buffer("input", "history_starts", "i32", size=starts),
        "history_ids": maker.buffer("input", "history_ids", "i32", size="seen"),
        "counts": maker.buffer("input", "counts", "f32", size="seen"),
        "penalties": maker.buffer("input", "penalties", "f32", 3),
        "forbidden_starts": maker.buffer("input", "forbidden_starts", "i32", size=starts),
        "forbidden_ids": maker.buffer("input", "forbidden_ids", "i32", size="forbidden"),
    }
    constants = {"VOCAB": vocab_size, "BLOCK": ADJUST_BLOCK}
    maker.call("adjust_logits.adjust_rows", ("changed", "1", "1"), memory, constants)
    return maker.entry("adjust_logits")


def mask_logits(vocab_size: int, target: Target) -> Entry:
    """See `mask_rows` of adjust_logits.py."""
    maker = _Maker(target, "masked")
    memory = {
        "logits": maker.buffer("input", "logits", "f32", vocab_size, size="1"),
        "rows": maker.buffer("input", "masked_rows", "i32"),
        "masks": maker.buffer("input", "masks", "i32", -(-vocab_size // 32)),
    }
    grid = (str(-(-vocab_size // MASK_BLOCK)), "masked", "1")
    constants = {"VOCAB": vocab_size, "BLOCK": MASK_BLOCK}
    maker.call("adjust_logits.mask_rows", grid, memory, constants)
    return maker.entry("mask_logits")


def place_tokens(target: Target) -> Entry:
    """See step_inputs.py."""
    maker = _Maker(target, "tokens")
    memory = {name: maker.buffer("input", name, "i32") for name in MOVED[:-1]}
    memory |= {name: maker.buffer("input", name, "i32", size="1") for name in MOVED[-1:]}
    memory |= {"turn": maker.turn(), "chosen": maker.buffer("input", "ids", "i32", size="1")}
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

    def turn(self) -> str:
        """The input "turn" of step_inputs.py."""
        return self.buffer("input", "turn", "i32", TURN_WORDS, size="1")

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
