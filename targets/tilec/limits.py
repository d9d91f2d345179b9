"""The rules of a memory model that a kernel's TTIR alone decides."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...errors import LoweringError
from .footprint import Footprint
from .ir import Function, Op, Pointer, Scalar, Tensor, Value
from .memory_model import LIMITS, MemoryModel
from .strides import step

_NO_RULE = re.compile(r"\b(?:tensor<[0-9x]*x)?(f8E\w+|f64|complex)\b")
_TABLE = ("math.exp", "math.exp2", "math.log", "math.log2", "math.sin", "math.cos", "math.tanh")
_FUNCTIONS = frozenset((*_TABLE, "math.erf", "math.sqrt", "math.rsqrt", "tt.precise_sqrt"))
_GATHERED = frozenset(("i16", "i32", "f16", "bf16", "f32"))
_COPIED = frozenset(("f16", "bf16", "f32"))


def refuse_types(ttir: str, where: str) -> None:
    """Types that no unit of the chip has; before parsing, which does not know all of them."""
    body = "\n".join(line for line in ttir.splitlines() if not line.startswith("#loc"))
    body = re.sub(r"loc\([^)]*\)", "", body)
    found = sorted({match.group(1) for match in _NO_RULE.finditer(body)})
    if found:
        limit = LIMITS["dtype"]
        raise LoweringError(
            f"{where}: expected {limit.what}, got {', '.join(found)} ({limit.text()};"
            f" {limit.remedy})"
        )


def broken_limits(function: Function, use: Footprint, model: MemoryModel) -> list[str]:
    """A sentence per broken rule; hazards that stand for a rule switch it off."""
    found = [*_sizes(use, model), *_reductions(function, use, model)]
    if use.on_engine:
        found += _engine(function, model)
    found += _accesses(function, use.on_engine, model)
    return list(dict.fromkeys(found))


def _say(name: str, expected: object, got: object, loc: str = "") -> str:
    limit = LIMITS[name]
    place = f"{loc}: " if loc else ""
    return f"{place}{limit.what}: expected {expected}, got {got} ({limit.text()}; {limit.remedy})"


def _sizes(use: Footprint, model: MemoryModel) -> Iterator[str]:
    bounds = {
        "param_bytes": (use.params, model.param_bytes),
        "lm_bytes": (use.lm, model.lm_bytes),
        "sm_bytes": (use.sm, model.sm_bytes),
        "uni_sram_bytes": (use.uni_sram, model.uni_sram_bytes),
    }
    for name, (used, most) in bounds.items():
        if used > most:
            parts = f" bytes: {', '.join(use.parts)}" if "param" not in name else " bytes"
            yield _say(name, f"at most {most}", f"{used}{parts}")


def _reductions(function: Function, use: Footprint, model: MemoryModel) -> Iterator[str]:
    for op in function.walk():
        if op.name not in ("tt.reduce", "tt.scan"):
            continue
        shape, axis = op.operands[0].shape, op.attrs["axis"]
        if len(shape) > 2:
            yield _say("reduce_rank", "at most 2", len(shape), op.loc)
        if axis != len(shape) - 1:
            yield _say("reduce_axis", f"axis {len(shape) - 1}", f"axis {axis}", op.loc)
        long = shape[-1] > model.lanes and not use.on_engine
        if long and "reduce-lanes" not in model.hazards:
            yield _say("reduce_lanes", f"at most {model.lanes}", shape[-1], op.loc)


def _engine(function: Function, model: MemoryModel) -> Iterator[str]:
    """Rules of kernels with tt.dot."""
    names = {op.name for op in function.walk() if op.name in _FUNCTIONS and _is_tile(op.result)}
    if len(names) > model.math_functions:
        yield _say("math_functions", f"at most {model.math_functions}", sorted(names))
    for op in function.walk():
        for value in op.results:
            if len(value.shape) > model.rank_max:
                yield _say("rank", f"at most {model.rank_max}", str(value.type), op.loc)
        casts = op.name in ("arith.sitofp", "arith.uitofp") and _is_tile(op.result)
        if casts and "int-to-float" not in model.hazards:
            yield _say("int_to_float", "none beside tt.dot", str(op.operands[0].type), op.loc)


def _accesses(function: Function, on_engine: bool, model: MemoryModel) -> Iterator[str]:
    for op in function.walk():
        if op.name in ("tt.atomic_rmw", "tt.atomic_cas"):
            word = op.attrs.get("word", "cas")
            if op.name == "tt.atomic_cas" or word == "exch":
                yield _say("atomics", "another operation", word, op.loc)
        if op.name not in ("tt.load", "tt.store") or not _is_tile(op.operands[0]):
            continue
        yield from _tile_access(op, on_engine, model)


def _tile_access(op: Op, on_engine: bool, model: MemoryModel) -> Iterator[str]:
    pointer = op.operands[0]
    assert isinstance(pointer.element, Pointer) and isinstance(pointer.element.element, Scalar)
    name = pointer.element.element.name
    if on_engine and is_strided(pointer) and "copy-strided" not in model.hazards:
        yield _say("dma_strided", "rows of a contiguous run", str(pointer.type), op.loc)
    elif on_engine and contiguous_axis(pointer) is None and not is_strided(pointer):
        places = {"tt.load": 1, "tt.store": 2}
        if len(op.operands) <= places[op.name]:
            yield _say("gather_masked", "a mask", f"none of {pointer.type}", op.loc)
    if contiguous_axis(pointer) is None:
        if name not in _GATHERED:
            yield _say("gather_dtype", sorted(_GATHERED), name, op.loc)
    elif on_engine and name not in _COPIED:
        yield _say("dma_dtype", sorted(_COPIED), name, op.loc)


def _is_tile(value: Value) -> bool:
    return isinstance(value.type, Tensor)


def is_strided(pointer: Value) -> bool:
    """An even tile without contiguous runs, or one that repeats addresses; a gather is neither."""
    steps = [step(pointer, axis) for axis, size in enumerate(pointer.shape) if size > 1]
    is_even = contiguous_axis(pointer) is None and None not in steps
    return is_even or 0 in steps


def contiguous_axis(pointer: Value) -> int | None:
    """The axis along which a tile of pointers has neighbours side by side, the last one first."""
    for axis in reversed(range(len(pointer.shape))):
        if pointer.shape[axis] > 1 and step(pointer, axis) == 1:
            return axis
    return len(pointer.shape) - 1 if pointer.type.size == 1 else None  # type: ignore[union-attr]
