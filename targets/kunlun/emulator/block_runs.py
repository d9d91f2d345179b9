"""How often each block of a kernel runs, where data decides: its scalars, followed by hand.

Loops of attention kernels depend on lengths that lie in memory. What decides a loop or a branch is
always a number: a program's place in the grid, an argument, an element of an integer input. This
follows numbers through the TTIR of a kernel and leaves tiles alone; it shares nothing with the code
that the emulator runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ....errors import LoweringError
from ...tilec.ir import Block, Function, Op, Pointer, Scalar, Tensor, Value

Number = int | float


@dataclass(frozen=True)
class Place:
    """A pointer: an element of an array that is known."""

    array: NDArray[Any]
    at: int = 0


TILES = ("tt.reduce", "tt.scan")
"""Their regions combine elements: no block of the source."""
Known = Number | Place | None
"""None: a tile, or a number that no argument gives."""


def block_runs(
    function: Function, grid: tuple[int, int, int], arguments: Sequence[Known]
) -> list[int]:
    """Runs of every block over the grid, in the order of the source.

    ``arguments``: numbers, `Place`s in integer arrays, None for memory that decides nothing. A loop
    or a branch that depends on something unknown raises `LoweringError`.
    """
    blocks = list(_blocks(function.body))
    runs = _Runs({id(block): 0 for block in blocks}, grid)
    for z, y, x in itertools.product(*(range(size) for size in reversed(grid))):
        runs.program = {"x": x, "y": y, "z": z}
        runs.values = dict(zip(function.args, arguments, strict=True))
        runs.block(function.body)
    return [runs.counts[id(block)] for block in blocks]


def _blocks(block: Block) -> list[Block]:
    regions = [region for op in block.ops if op.name not in TILES for region in op.regions]
    return [block, *(found for region in regions for found in _blocks(region))]


class _Runs:
    """One program at a time."""

    def __init__(self, counts: dict[int, int], grid: tuple[int, int, int]) -> None:
        self.counts = counts
        self.grid = dict(zip("xyz", grid, strict=True))
        self.program: Mapping[str, int] = {}
        self.values: dict[Value, Known] = {}

    def block(self, block: Block) -> list[Known]:
        """Run a block; what its terminator passes on."""
        self.counts[id(block)] += 1
        for op in block.ops[:-1]:
            self.op(op)
        return [self.values.get(value) for value in block.terminator.operands]

    def op(self, op: Op) -> None:
        if op.name == "scf.for":
            self.bind(op.results, self.loop(op))
        elif op.name == "scf.if":
            taken = 0 if self.decides(op, 0) else 1
            passed = self.block(op.regions[taken]) if taken < len(op.regions) else []
            self.bind(op.results, passed)
        elif op.regions and op.name not in TILES:
            raise LoweringError(f"{op.loc}: expected scf.for or scf.if, got {op.name}")
        elif len(op.results) == 1 and not isinstance(op.result.type, Tensor):
            self.values[op.result] = self.number(op)

    def bind(self, targets: Sequence[Value], found: Sequence[Known]) -> None:
        self.values.update(zip(targets, found, strict=True))

    def loop(self, op: Op) -> list[Known]:
        low, high, stride = (self.decides(op, place) for place in range(3))
        induction, *carried = op.regions[0].args
        passed = [self.values.get(value) for value in op.operands[3:]]
        for index in range(low, high, stride):
            self.bind([induction, *carried], [index, *passed])
            passed = self.block(op.regions[0])
        return passed

    def decides(self, op: Op, place: int) -> int:
        found = self.values.get(op.operands[place])
        if not isinstance(found, int):
            raise LoweringError(
                f"{op.loc}: expected {op.name} to depend on known numbers, "
                f"got {op.operands[place]} (give the arrays of the step)"
            )
        return found

    def number(self, op: Op) -> Known:
        """The value of an operation on numbers, or None."""
        if op.name == "arith.constant":
            value = op.attrs["value"]
            return value if isinstance(value, int | float) else None
        if op.name in ("tt.get_program_id", "tt.get_num_programs"):
            of = self.program if op.name == "tt.get_program_id" else self.grid
            return of[str(op.attrs["word"])]
        operands = [self.values.get(value) for value in op.operands]
        if op.name == "tt.addptr" and isinstance(start := operands[0], Place):
            offset = operands[1]
            return Place(start.array, start.at + offset) if isinstance(offset, int) else None
        if op.name == "tt.load" and isinstance(start := operands[0], Place):
            return int(start.array[start.at])
        if any(not isinstance(operand, int) for operand in operands):
            return None
        return _integer(op, operands)


def _integer(op: Op, operands: Sequence[Any]) -> int | None:
    kind = op.result.type
    if not isinstance(kind, Scalar) or kind.is_float or isinstance(kind, Pointer):
        return None
    if op.name == "arith.cmpi":
        compare = _COMPARE.get(str(op.attrs["word"]))
        return None if compare is None else int(compare(*operands))
    if op.name == "arith.select":
        return int(operands[1] if operands[0] else operands[2])
    if op.name == "arith.extui":
        source = op.operands[0].element
        assert isinstance(source, Scalar)
        return int(operands[0]) & ((1 << source.bits) - 1)
    compute = _INTEGERS.get(op.name)
    return None if compute is None else _wrapped(int(compute(*operands)), kind.bits)


def _wrapped(value: int, bits: int) -> int:
    """Two's complement; a truth value stays 0 or 1."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if bits > 1 and value >> (bits - 1) else value


def _quotient(a: int, b: int) -> int:
    """Rounded to zero, as C does."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_INTEGERS: Mapping[str, Callable[..., int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": _quotient,
    "arith.remsi": lambda a, b: a - b * _quotient(a, b),
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.extsi": int,
    "arith.trunci": int,
    "arith.index_cast": int,
}
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "slt": lambda a, b: a < b,
    "sle": lambda a, b: a <= b,
    "sgt": lambda a, b: a > b,
    "sge": lambda a, b: a >= b,
}
