"""What a kernel needs of a chip with local memories: parameters and memory, found before it runs.

TTIR knows no memory spaces, so local and shared memory use is our model of the vendor's lowering:
loaded, carried and reduced tiles, products, and tiles on their way out have a place from where they
are made to their last reader. Without tt.dot a tile's last dimension is spread over the cores of a
cluster; with it a tile lies in a matrix engine, in aligned rows, twice where a loop loads it.
"""

from __future__ import annotations

import dataclasses
import math

from .ir import Function, Op, Pointer, Scalar, Tensor, Value, element_of
from .memory_model import MemoryModel
from .nest import roots

_HELD = frozenset(("tt.load", "tt.dot", "tt.reduce", "tt.scan", "tt.gather", "tt.histogram"))
GRID_BYTES = 12
"""Three i32 after the user's parameters."""


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes by memory; `parts` says what is alive where most is."""

    on_engine: bool
    """The kernel has tt.dot: it runs on the matrix engines."""
    params: int
    lm: int = 0
    sm: int = 0
    uni_sram: int = 0
    parts: tuple[str, ...] = ()


def footprint(function: Function, model: MemoryModel) -> Footprint:
    """The use of each memory."""
    on_engine = any(op.name == "tt.dot" for op in function.walk())
    params = parameter_bytes(function, model)
    peak, parts = _peak(function, model, on_engine)
    if on_engine:
        return Footprint(True, params, uni_sram=peak, parts=parts)
    lm = peak + model.lm_stack_bytes
    return Footprint(False, params, lm=lm, sm=_shared(function, model), parts=parts)


def parameter_sizes(function: Function) -> list[int]:
    """Bytes of each parameter: narrow numbers and floats travel as four bytes."""
    return [8 if _is_wide(arg) else 4 for arg in function.args]


def _is_wide(arg: Value) -> bool:
    element = arg.element
    return isinstance(element, Pointer) or (element.bits == 64)


def parameter_bytes(function: Function, model: MemoryModel) -> int:
    """The whole block, the grid included."""
    at = 0
    for size in parameter_sizes(function):
        align = model.pointer_align if size == 8 else 4
        at = -(-at // align) * align + size
    return at + GRID_BYTES


def tile_bytes(type_: Tensor, model: MemoryModel, on_engine: bool) -> int:
    """One tile: bytes of a core's share, or of rows in a matrix engine."""
    rows, columns = math.prod(type_.shape[:-1]), type_.shape[-1]
    element = type_.element
    size = 8 if isinstance(element, Pointer) else max(1, element.bits // 8)
    if on_engine:
        wide = 4 if element == Scalar("bf16") else size
        return rows * _align(columns * wide, model.uni_row_align)
    return _align(rows * -(-columns // model.cores) * size, model.lm_align)


def _align(value: int, step: int) -> int:
    return -(-value // step) * step


def _shared(function: Function, model: MemoryModel) -> int:
    """Partial results that the cores of a cluster exchange: four bytes per core and row."""
    largest = 0
    for op in function.walk():
        if op.name in ("tt.reduce", "tt.scan"):
            rows = math.prod(op.operands[0].shape) // op.operands[0].shape[-1]
            wide = sum(8 if _is_wide(v) else 4 for v in op.operands)
            largest = max(largest, _align(rows * model.cores * wide, model.lm_align))
    return largest


def _peak(function: Function, model: MemoryModel, on_engine: bool) -> tuple[int, tuple[str, ...]]:
    """Most bytes alive at once, and the tiles that are."""
    order = {op: number for number, op in enumerate(function.walk())}
    spans = _spans(function, order, model, on_engine)
    best, at = 0, -1
    for number in {start for start, _, _, _ in spans}:
        total = sum(size for start, end, size, _ in spans if start <= number <= end)
        if total > best:
            best, at = total, number
    alive = sorted((s for s in spans if s[0] <= at <= s[1]), key=lambda s: -s[2])
    return best, tuple(f"{size} {what}" for _, _, size, what in alive[:8])


Span = tuple[int, int, int, str]
"""First and last operation, bytes, and what it is."""


def _spans(
    function: Function, order: dict[Op, int], model: MemoryModel, on_engine: bool
) -> list[Span]:
    loops = _loops(function)
    spans: list[Span] = []

    def hold(value: Value, first: int, last: int, copies: int, what: str) -> None:
        if isinstance(value.type, Tensor) and not isinstance(element_of(value.type), Pointer):
            size = copies * tile_bytes(value.type, model, on_engine)
            spans.append((first, last, size, f"{what} {value.type}"))

    for op, around in loops.items():
        if op.name in _HELD:
            copies = model.uni_buffers if on_engine and around and op.name == "tt.load" else 1
            for value in op.results:
                hold(value, order[op], _last(value, op, loops, order), copies, op.name)
        elif op.name in ("scf.for", "scf.while", "scf.if"):
            end = max(order[inner] for inner in op.walk())
            for value in op.results:
                hold(value, order[op], max(end, _last(value, op, loops, order)), 1, "carried")
        elif op.name == "tt.store" and not _is_held(op.operands[1]):
            hold(op.operands[1], order[op], order[op], 1, op.name)
    return spans


def _is_held(value: Value) -> bool:
    return value.op is None or value.op.name in _HELD or value.op.name.startswith("scf.")


def _last(value: Value, op: Op, loops: dict[Op, tuple[Op, ...]], order: dict[Op, int]) -> int:
    """Where a value is read last; a loop that it was made before reads it until its end."""
    last = order[op]
    for reader in roots(value):
        fresh = [loop for loop in loops[reader] if loop not in loops[op] and loop is not op]
        last = max(last, order[reader], *(max(order[o] for o in loop.walk()) for loop in fresh))
    return last


def _loops(function: Function) -> dict[Op, tuple[Op, ...]]:
    """Every operation outside the regions of reductions, with the loops around it."""
    found: dict[Op, tuple[Op, ...]] = {}

    def visit(op: Op, around: tuple[Op, ...]) -> None:
        found[op] = around
        if op.name in ("tt.reduce", "tt.scan"):
            return
        inner = (*around, op) if op.name in ("scf.for", "scf.while") else around
        for region in op.regions:
            for child in region.ops:
                visit(child, inner)

    for op in function.body.ops:
        visit(op, ())
    return found
