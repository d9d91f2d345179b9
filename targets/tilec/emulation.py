"""The emulation of a chip with local memories: checks of every access, and counts of what runs.

Tile arithmetic is that of `lower`; each tt.load, tt.store and atomic is preceded by a check of the
addresses of its whole tile: one for a tile of even strides, one per row of a tile whose rows lie
anywhere, one per element otherwise. What a block of the source costs is known here, so kernels
only count how often each block runs.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

from .context import Context
from .expr import Expr, constant
from .footprint import Footprint
from .index import Index
from .ir import I32, Block, Function, Op, Pointer, Scalar, Tensor, Value
from .limits import contiguous_axis
from .memory_model import MemoryModel
from .reduce import element_nest
from .strides import constant_of, step

HEADERS = Path(__file__).parent / "emulation_include"
ACCESSES = frozenset(("tt.load", "tt.store", "tt.atomic_rmw"))
_MASK = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}
COSTS = (
    "gm_read", "gm_written", "lm", "sm", "uni_sram", "descriptors", "scalars", "macs", "lanes",
)  # fmt: skip
"""Fields of `tilec::Counters`, in order, but for the programs."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run of a block costs."""

    gm_read: int = 0
    gm_written: int = 0
    lm: int = 0
    sm: int = 0
    uni_sram: int = 0
    descriptors: int = 0
    scalars: int = 0
    macs: int = 0
    lanes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f) + getattr(other, f) for f in COSTS))

    def text(self) -> str:
        """C++ initialiser."""
        return "{" + ", ".join(str(getattr(self, name)) for name in COSTS) + ", 0}"


class Emulation:
    """Collects sites and costs while a kernel is lowered."""

    def __init__(self, function: Function, model: MemoryModel, use: Footprint) -> None:
        self.function, self.model, self.use = function, model, use
        self.sites: dict[Op, int] = {}
        self.blocks: dict[int, int] = {}
        self.costs: list[Cost] = []
        self.trips: list[int | None] = []
        """How often each block runs in one program; None where data decides."""
        self._trips = dict(_block_trips(function.body, 1))

    # ---- text around a kernel

    def prologue(self) -> list[str]:
        """Before the loop over programs; after lowering, when sites and blocks are known."""
        lines = [f"int64_t runs[{len(self.costs)}] = {{}};"]
        lines.append(f"Span seen[{max(1, len(self.sites))}];")
        lines.append("for (Span& span : seen) span = {1, 0};")
        return lines

    def epilogue(self) -> list[str]:
        """After the loop."""
        count = len(self.costs)
        add = "add_cost(emulation->counters, costs[j], runs[j]);"
        programs = "emulation->counters.programs += end > begin ? end - begin : 0;"
        return [f"for (int j = 0; j < {count}; ++j) {add}", programs]

    def tables(self) -> list[str]:
        """Constants in front of the function."""
        sites = [
            f"  {{{json.dumps(op.loc or '?')}, {json.dumps(_what(op))}}}," for op in self.sites
        ] or ["  {},"]
        costs = [f"  {cost.text()}," for cost in self.costs]
        head = "static const Site sites[] = {"
        return [head, *sites, "};", "static const Counters costs[] = {", *costs, "};"]

    # ---- while lowering

    def enter(self, ctx: Context, block: Block) -> None:
        """A block begins to run."""
        known = self.blocks.get(id(block))
        if known is None:
            known = self.blocks[id(block)] = len(self.costs)
            self.costs.append(block_cost(block, self.model, self.use.on_engine))
            self.trips.append(self._trips.get(id(block)))
        ctx.em.line(f"++runs[{known}];")

    def check(self, ctx: Context, op: Op) -> None:
        """Before an access: the addresses of its tile."""
        if op.name not in ACCESSES:
            return
        number = self.sites.setdefault(op, len(self.sites))
        pointer = op.operands[0]
        place = _MASK[op.name]
        mask = op.operands[place] if len(op.operands) > place else None
        call = f"emulation, seen[{number}], sites[{number}], program"
        if not isinstance(pointer.type, Tensor):
            _check_one(ctx, pointer, mask, Index(()), call)
        elif contiguous_axis(pointer) is not None or _is_box(pointer, mask):
            _check_rows(ctx, pointer, call)
        else:
            for index in element_nest(ctx.em, pointer.shape):
                _check_one(ctx, pointer, mask, index, call)


def _what(op: Op) -> str:
    pointer = op.operands[0]
    kind = {"tt.load": "load", "tt.store": "store"}.get(op.name, "atomic")
    assert isinstance(pointer.element, Pointer)
    shape = "x".join(map(str, pointer.shape))
    what = f"{pointer.element.element}" if not shape else f"{shape}x{pointer.element.element}"
    return f"{kind} of {what}"


def _size(pointer: Value) -> int:
    assert isinstance(pointer.element, Pointer) and isinstance(pointer.element.element, Scalar)
    return max(1, pointer.element.element.bits // 8)


def _is_box(pointer: Value, mask: Value | None) -> bool:
    """An even tile without mask: its corners decide."""
    return mask is None and all(step(pointer, axis) is not None for axis in range(_rank(pointer)))


def _rank(pointer: Value) -> int:
    return len(pointer.shape)


def _check_one(ctx: Context, pointer: Value, mask: Value | None, index: Index, call: str) -> None:
    guard = ""
    if mask is not None:
        inside = ctx.at(mask, index)
        if inside.const is not None and not inside.const:
            return
        guard = "" if inside.const else f"if ({inside.text}) "
    address = ctx.at(pointer, index).text
    ctx.em.line(f"{guard}check({call}, {address}, {_size(pointer)});")


def _check_rows(ctx: Context, pointer: Value, call: str) -> None:
    """One check per position of the axes along which addresses follow no rule."""
    shape = pointer.shape
    free = [axis for axis in range(_rank(pointer)) if step(pointer, axis) is None]
    rows = tuple(shape[axis] for axis in free)
    for position in element_nest(ctx.em, rows):
        fixed = dict(zip(free, position.dims, strict=True))
        _check_box(ctx, pointer, fixed, call)


def _check_box(ctx: Context, pointer: Value, fixed: dict[int, Expr], call: str) -> None:
    axes = [axis for axis in range(_rank(pointer)) if axis not in fixed and pointer.shape[axis] > 1]
    steps = {axis: step(pointer, axis) for axis in axes}
    first = _corner(ctx, pointer, fixed, {})
    if all(isinstance(s, int) and s >= 0 for s in steps.values()):
        reach = sum(int(str(s)) * (pointer.shape[axis] - 1) for axis, s in steps.items())
        ctx.em.line(f"check({call}, {first}, {(reach + 1) * _size(pointer)});")
        return
    ends = []
    for axis in axes:
        last = _corner(ctx, pointer, fixed, {axis: pointer.shape[axis] - 1})
        ends.append(f"int64_t((const char*){last} - (const char*){first})")
    rest = " + ".join(ends[1:]) or "0"
    ctx.em.line(f"check_box({call}, {first}, {ends[0]}, {rest});")


def _corner(ctx: Context, pointer: Value, fixed: dict[int, Expr], at: dict[int, int]) -> str:
    dims = [
        fixed[axis] if axis in fixed else constant(at.get(axis, 0), I32)
        for axis in range(_rank(pointer))
    ]
    return ctx.at(pointer, Index(tuple(dims))).text


# ---- costs


def _block_trips(block: Block, runs: int | None) -> Iterator[tuple[int, int | None]]:
    """Blocks by identity, with their runs in a program."""
    yield id(block), runs
    for op in block.ops:
        inner = None
        if op.name == "scf.for" and runs is not None:
            low, high, stride = (constant_of(v) for v in op.operands[:3])
            if low is not None and high is not None and stride:
                inner = runs * max(0, -(-(high - low) // stride))
        for region in op.regions:
            yield from _block_trips(region, inner)


def block_cost(block: Block, model: MemoryModel, on_engine: bool) -> Cost:
    """One run of the operations right in a block."""
    total = Cost()
    for op in block.ops:
        if op.name in ACCESSES:
            total += access_cost(op, on_engine)
        elif op.name == "tt.dot":
            rows, depth = op.operands[0].shape[-2:]
            macs = math.prod(op.result.shape) * depth
            words = rows * depth + math.prod(op.operands[1].shape) + math.prod(op.result.shape)
            total += Cost(macs=macs, uni_sram=4 * words)
        elif op.name in ("tt.reduce", "tt.scan"):
            size = math.prod(op.operands[0].shape)
            partials = size // op.operands[0].shape[-1] * min(model.cores, size)
            total += Cost(lanes=size, sm=0 if on_engine else 8 * partials)
        elif op.results and isinstance(op.result.type, Tensor):
            arithmetic = op.name.startswith(("arith.", "math.")) and op.name != "arith.constant"
            total += Cost(lanes=op.result.type.size if arithmetic else 0)
    return total


def access_cost(op: Op, on_engine: bool) -> Cost:
    """One access: whole tiles move, masked lanes too."""
    pointer = op.operands[0]
    count = pointer.type.size if isinstance(pointer.type, Tensor) else 1
    size = count * _size(pointer)
    moved = Cost(gm_read=size) if op.name == "tt.load" else Cost(gm_written=size)
    if op.name == "tt.atomic_rmw":
        moved = Cost(gm_read=size, gm_written=size)
    if not isinstance(pointer.type, Tensor) or contiguous_axis(pointer) is None:
        return moved + Cost(scalars=count)
    local = Cost(uni_sram=size) if on_engine else Cost(lm=size)
    return moved + local + Cost(descriptors=_copies(pointer, on_engine))


def _copies(pointer: Value, on_engine: bool) -> int:
    """Contiguous runs of a tile; engines copy rows of one stride at once."""
    axis = contiguous_axis(pointer)
    assert axis is not None
    rest = [a for a in reversed(range(_rank(pointer))) if a != axis and pointer.shape[a] > 1]
    run, copies = pointer.shape[axis], 1
    for other in rest:
        stride, extent = step(pointer, other), pointer.shape[other]
        if stride == run and copies == 1:
            run *= extent
        elif stride is None or not on_engine or copies > 1 or other != rest[0]:
            copies *= extent
    return copies
