"""Whether a compiled kernel keeps to the chip's limits, before it is run anywhere.

`check_kernel` reads TTIR: the limits of `tilec.limits` on sizes, types, reductions and accesses,
and here what the vendor's Triton lacks. `hazard_risks` finds code that its silent errors would
change. TTIR knows no memory spaces, so LM, SM and uni_sram figures are modelled, and say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import LoweringError
from ..tilec.footprint import Footprint, footprint
from ..tilec.hazards import is_half_product
from ..tilec.ir import Function, Op, Scalar, Tensor, Value
from ..tilec.limits import broken_limits, refuse_types
from ..tilec.memory_model import DOCUMENTED, INFERRED, MemoryModel
from ..tilec.parser import parse
from .capabilities import Chip

SHORT_LANES = 32
_LACKING = {
    "tt.join": "join", "tt.split": "split", "tt.cat": "cat", "tt.histogram": "histogram",
    "tt.extern_elementwise": "calls of a device library", "tt.call": "calls",
    "tt.elementwise_inline_asm": "inline assembly", "tt.gather": "gather of a tile",
    "tt.reshape": "reshape",
}  # fmt: skip
_INACCURATE = ("math.exp2", "math.log2")
_SAID = re.compile(r"\(limit (\w+), (\w+)")


@dataclass(frozen=True)
class Violation:
    """A limit that a kernel breaks."""

    limit: str
    mark: str
    """``documented``, ``inferred`` or ``modelled``: how sure we are that the chip has the limit."""
    text: str

    def __str__(self) -> str:
        return self.text


def memory_model(chip: Chip) -> MemoryModel:
    """The chip's numbers as the emulator takes them."""
    return MemoryModel(
        name=f"kunlun:{chip.arch}",
        clusters=chip.clusters,
        cores=chip.cores_per_cluster,
        engines=chip.sdnn_engines,
        lm_bytes=chip.lm_bytes,
        lm_stack_bytes=chip.lm_bytes - chip.lm_user_bytes,
        lm_align=chip.dma_align,
        sm_bytes=chip.sm_bytes,
        uni_sram_bytes=chip.uni_sram_bytes,
        uni_row_align=chip.uni_sram_row_align,
        uni_buffers=chip.uni_sram_buffers,
        buffer_bytes=chip.lm_buffer_bytes,
        param_bytes=chip.param_bytes,
        rank_max=chip.rank_max,
        math_functions=chip.sdnn_math_functions,
    )


def check_kernel(ttir: str, chip: Chip) -> list[Violation]:
    """Every limit that the kernel breaks, in the order of its code; [] for a legal kernel."""
    model = memory_model(chip)
    try:
        refuse_types(ttir, "kernel")
    except LoweringError as error:
        return [_from_sentence(str(error))]
    function = parse(ttir)
    use = footprint(function, model)
    found = [_from_sentence(text) for text in broken_limits(function, use, model)]
    for op in function.walk():
        found += _check_op(op, use.on_engine, chip)
    return list(dict.fromkeys(found))


def memory_use(ttir: str, chip: Chip) -> Footprint:
    """Bytes of LM, SM, uni_sram and parameters, by our model of the vendor's lowering."""
    return footprint(parse(ttir), memory_model(chip))


def _from_sentence(text: str) -> Violation:
    said = _SAID.search(text)
    assert said is not None, text
    return Violation(said.group(1), said.group(2), text)


def _violation(limit: str, mark: str, op: Op, expected: str, got: object) -> Violation:
    place = f"{op.loc}: " if op.loc else ""
    return Violation(limit, mark, f"{place}expected {expected}, got {got} (limit {limit}, {mark})")


def _check_op(op: Op, on_engine: bool, chip: Chip) -> Iterator[Violation]:
    if op.name in _LACKING:
        what = "an operation that the vendor's Triton has"
        yield _violation("operation", DOCUMENTED, op, what, _LACKING[op.name])
    elif op.name in _INACCURATE:
        yield _violation("math_accuracy", DOCUMENTED, op, "exp or log", op.name)
    elif op.name.startswith("tt.atomic"):
        what = "no atomics: one core simulates them"
        yield _violation("atomics_simulated", DOCUMENTED, op, what, op.name)
    elif op.name == "tt.dot":
        sizes = (*op.operands[0].shape, op.operands[1].shape[-1])
        if min(sizes) < chip.dot_size_min:
            what = f"sizes of at least {chip.dot_size_min}"
            yield _violation("dot_size", DOCUMENTED, op, what, sizes)
    elif op.name == "tt.trans":
        yield from _check_transpose(op, chip)
    if not on_engine:
        yield from _check_lanes(op, chip)


def _check_transpose(op: Op, chip: Chip) -> Iterator[Violation]:
    """A product reads its second operand either way; other transposes happen on chip."""
    if op.attrs["order"] != (1, 0):
        yield _violation("transpose", DOCUMENTED, op, "order (1, 0)", op.attrs["order"])
    feeds_dot = all(_reaches_dot(user) for user in op.result.users)
    if not feeds_dot and max(op.result.shape) > chip.on_chip_transpose:
        what = f"at most {chip.on_chip_transpose} rows and columns on chip"
        yield _violation("transpose_size", INFERRED, op, what, op.result.type)


def _reaches_dot(op: Op) -> bool:
    if op.name in ("arith.extf", "arith.truncf"):
        return all(_reaches_dot(user) for user in op.result.users)
    return op.name == "tt.dot"


def _check_lanes(op: Op, chip: Chip) -> Iterator[Violation]:
    """A core holds a buffer's share of a tile's last dim."""
    if op.name not in ("tt.load", "tt.store") or not op.operands[0].shape:
        return
    value = op.result if op.name == "tt.load" else op.operands[1]
    assert isinstance(value.element, Scalar)
    most = chip.cores_per_cluster * chip.lm_buffer_bytes // max(1, value.element.bits // 8)
    if value.shape[-1] > most:
        yield _violation("tile_lanes", DOCUMENTED, op, f"a last dim of at most {most}", value.type)


# Hazards --------------------------------------------------------------------------------------


def hazard_risks(ttir: str) -> list[Violation]:
    """Code that a known silent error of the vendor's compiler may change."""
    function = parse(ttir)
    on_engine = any(op.name == "tt.dot" for op in function.walk())
    found = [risk for op in function.walk() for risk in _risks(op, on_engine)]
    return list(dict.fromkeys([*found, *_repeated_loops(function)]))


def _risks(op: Op, on_engine: bool) -> Iterator[Violation]:
    if op.name == "tt.load" and len(op.operands) == 3:
        what = "no value for masked lanes (select after the load)"
        yield _violation("other", DOCUMENTED, op, what, "other=")
    if op.name == "arith.cmpf" and op.attrs.get("word") in ("une", "one"):
        yield _violation("negative-zero", DOCUMENTED, op, "no float !=", op.attrs["word"])
    if op.name == "arith.select" and _is_tile(op.result, "bf16") and not on_engine:
        yield _violation("where-bf16", DOCUMENTED, op, "selects of f32", "bf16")
    is_float = op.name in ("arith.addf", "arith.subf", "arith.mulf", "arith.divf")
    if is_float and not on_engine and 1 < _lanes(op.result) <= SHORT_LANES:
        what = f"more than {SHORT_LANES} lanes"
        yield _violation("short-tail", DOCUMENTED, op, what, op.result.type)
    if op.name == "arith.mulf" and is_half_product(op):
        yield _violation("half-product", DOCUMENTED, op, "operands of one type", "fp16 and fp32")


def _lanes(value: Value) -> int:
    return value.type.size if isinstance(value.type, Tensor) else 1


def _is_tile(value: Value, element: str) -> bool:
    return isinstance(value.type, Tensor) and value.element == Scalar(element)


def _repeated_loops(function: Function) -> Iterator[Violation]:
    """Copies of one loop: an unrolled loop around it."""
    seen: set[str] = set()
    for op in function.walk():
        if op.name == "scf.for" and op.loc:
            if op.loc in seen:
                what = "no loop inside an unrolled one"
                yield _violation("unrolled-loop", DOCUMENTED, op, what, "a copy of it")
            seen.add(op.loc)
