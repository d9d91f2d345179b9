"""TTIR to one C++ function: walks the operations, keeps tensors lazy, runs what has an effect."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from pathlib import Path

from ...errors import LoweringError
from . import control, dot, limits, reduce, split
from .context import EFFECTS, Context, is_lazy
from .emulation import HEADERS, Emulation
from .expr import Expr, scalar_c
from .footprint import Footprint, footprint
from .hazards import Hazards
from .index import Index
from .ir import I32, Block, Function, Op, Pointer, Scalar, Tensor, Value
from .memory_model import MemoryModel
from .nest import materialise, memory_of, nest, roots, tile, worth_materialising
from .parser import parse
from .pointers import store_text
from .storage import Bound, new_memory
from .strides import base_argument, lane_axis

_ENDS = ("scf.yield", "tt.return", "scf.condition", "tt.reduce.return", "tt.scan.return")
_BARRIERS = ("ttg.barrier", "gpu.barrier")
"""A program is one thread here, its stores are in order."""
_SILENT = frozenset((*_ENDS, *_BARRIERS))
HEAVY = frozenset(("tt.store", "tt.dot", "tt.reduce", "tt.scan", "scf.for", "scf.while"))


@dataclasses.dataclass(frozen=True)
class CppKernel:
    """One kernel as C++ text that is the same for every machine."""

    symbol: str
    source: str
    params: tuple[str, ...]
    """Types of the runtime arguments in order: ``!tt.ptr<f32>``, ``i32``, ``f32`` ..."""
    headers: Path | None = None
    """Folder of headers of its own, for a kernel that was written by hand."""


def translate(ttir: str, symbol: str) -> CppKernel:
    """C++ of a TTIR module, exported as `symbol` with the kernel ABI of the CPU target."""
    if not symbol.isidentifier():
        raise LoweringError(f"tilec: expected a C identifier for the symbol, got {symbol!r}")
    function = parse(ttir)
    refuse_unknown(function)
    source = _Lowering(function).source(symbol)
    return CppKernel(symbol, source, tuple(str(arg.type) for arg in function.args))


def refuse_unknown(function: Function) -> None:
    """One error that names every operation without a rule."""
    counts: dict[str, list[str]] = collections.defaultdict(list)
    for op in function.walk():
        if not (is_lazy(op.name) or op.name in EAGER or op.name in _SILENT):
            counts[op.name].append(op.loc or "?")
    if counts:
        parts = [
            f"{name} x{len(places)} (at {', '.join(sorted(set(places))[:4])})"
            for name, places in sorted(counts.items())
        ]
        raise LoweringError(f"{function.name}: tilec has no rule for {'; '.join(parts)}")


@dataclasses.dataclass(frozen=True)
class EmulatedKernel:
    """A kernel with checked accesses, and what it needs of the chip."""

    cpp: CppKernel
    use: Footprint
    broken: tuple[str, ...]
    """Rules of the chip that it breaks, a sentence each."""
    costs: tuple[dict[str, int], ...]
    """What one run of each block of the source costs, the outermost block first."""
    trips: tuple[int | None, ...]
    """How often each of them runs in one program; None where data decides."""


def translate_emulated(ttir: str, symbol: str, model: MemoryModel) -> EmulatedKernel:
    """C++ of a TTIR module whose accesses are checked and counted (`emulation.h` has the ABI)."""
    if not symbol.isidentifier():
        raise LoweringError(f"tilec: expected a C identifier for the symbol, got {symbol!r}")
    limits.refuse_types(ttir, symbol)
    function = parse(ttir)
    refuse_unknown(function)
    use = footprint(function, model)
    broken = limits.broken_limits(function, use, model)
    emulation = Emulation(function, model, use)
    hazards = Hazards.of(model, use.on_engine) if model.hazards else None
    source = _Lowering(function, emulation, hazards).source(symbol)
    params = tuple(str(arg.type) for arg in function.args)
    costs = tuple(dataclasses.asdict(cost) for cost in emulation.costs)
    cpp = CppKernel(symbol, source, params, HEADERS)
    return EmulatedKernel(cpp, use, tuple(broken), costs, tuple(emulation.trips))


class _Lowering:
    def __init__(
        self,
        function: Function,
        emulation: Emulation | None = None,
        hazards: Hazards | None = None,
    ) -> None:
        self.function = function
        self.emulation = emulation
        self.ctx = Context(function, emulation, hazards)

    def source(self, symbol: str) -> str:
        em = self.ctx.em
        for slot, arg in enumerate(self.function.args):
            name = f"arg{slot}"
            em.line(_unpack(name, slot, arg))
            self.ctx.env[arg] = Bound(Expr("s", name, arg.element, 0))
        em.line("const int64_t grid_x = grid[0], grid_y = grid[1], grid_z = grid[2];")
        em.line("(void)grid_x, (void)grid_y, (void)grid_z, (void)args;")
        before = len(em.scopes[0].lines)
        with em.scope("for (int64_t program = begin; program < end; ++program)"):
            em.line("const int32_t pid_x = int32_t(program % grid_x);")
            em.line("const int32_t pid_y = int32_t(program / grid_x % grid_y);")
            em.line("const int32_t pid_z = int32_t(program / (grid_x * grid_y));")
            em.line("(void)pid_x, (void)pid_y, (void)pid_z;")
            run_block(self.ctx, self.function.body, lambda: None)
        signature = "const int64_t* args, const int32_t* grid, int64_t begin, int64_t end"
        head = '#include "tilec.h"\nusing namespace tilec;\n'
        if self.emulation is not None:
            em.scopes[0].lines[before:before] = self.emulation.prologue()
            em.scopes[0].lines += self.emulation.epilogue()
            signature += ", Emulation* emulation"
            tables = "\n".join(self.emulation.tables())
            own = '#include "emulation.h"\n#include "transpose.h"\nusing'
            head = head.replace("using", own) + tables + "\n"
        body = "\n".join(f"  {line}" for line in em.scopes[0].lines)
        return f'{head}extern "C" void {symbol}({signature}) {{\n{body}\n}}\n'


def _unpack(name: str, slot: int, arg: Value) -> str:
    element = arg.element
    if isinstance(element, Pointer):
        ctype = scalar_c(element)
        return f"{ctype} const {name} = ({ctype})args[{slot}];"
    if element == Scalar("f32"):
        return f"const float {name} = bitc<float>(int32_t(args[{slot}]));"
    if element.is_float:
        return f"const {scalar_c(element)} {name} = bitc<double>(args[{slot}]);"
    return f"const {scalar_c(element)} {name} = {scalar_c(element)}(args[{slot}]);"


def run_block(
    ctx: Context, block: Block, finish: Callable[[], None], start: int = 0, splits: bool = True
) -> None:
    """Every operation but the terminator; lazy ones are only noted. `finish` ends the block.

    Where masks of the block become decidable, the rest of it is emitted twice: for tiles that lie
    inside the bounds as a whole, without those masks, and for the others.
    """
    if ctx.emulation is not None and splits and not start:
        ctx.emulation.enter(ctx, block)
    for number, op in enumerate(block.ops[start:], start):
        if op.name in _SILENT:
            continue
        if splits and op.name in HEAVY and (masks := split.decidable(ctx, block, number)):
            test, decided = masks
            for condition, assumed in ((test, decided), (f"!{test}", [])):
                with ctx.region(f"if ({condition})") as level:
                    ctx.assumed.update(dict.fromkeys(assumed, level))
                    run_block(ctx, block, finish, number, splits=False)
            return
        ctx.levels[op] = ctx.em.level
        for result in op.results:
            ctx.env.pop(result, None)
        try:
            _run(ctx, op)
        except LoweringError as error:
            if op.loc and not getattr(error, "__notes__", None):
                error.add_note(f"at {op.loc}, in {op.name}")
            raise
    finish()


def _run(ctx: Context, op: Op) -> None:
    if ctx.emulation is not None:
        ctx.emulation.check(ctx, op)
    if _has_effect(op):
        _settle_loads(ctx, op)
    if op.name in EAGER:
        EAGER[op.name](ctx, op)
    elif not isinstance(op.result.type, Tensor):
        for result in op.results:
            ctx.env[result] = Bound(ctx.scalar(result))
    elif len(op.results) == 1 and worth_materialising(ctx, op.result):
        materialise(ctx, op.result)
    elif op.name == "tt.load":
        ctx.lazy_loads.append(op.result)


def _has_effect(op: Op) -> bool:
    return any(inner.name in EFFECTS for inner in op.walk())


def _settle_loads(ctx: Context, op: Op) -> None:
    """Before memory changes: loads that are still to be read later happen now."""
    for value in list(ctx.lazy_loads):
        if value in ctx.env or value.op is None or ctx.levels[value.op] > ctx.em.level:
            ctx.lazy_loads.remove(value)
            continue
        last = max((_end(ctx, reader) for reader in roots(value)), default=-1)
        if last > ctx.order[op] or (op.name == "tt.store" and _overlaps(op, value)):
            materialise(ctx, value)
            ctx.lazy_loads.remove(value)


def _end(ctx: Context, op: Op) -> int:
    return ctx.order[op]


def _overlaps(store: Op, loaded: Value) -> bool:
    """The store may write what this load reads at another position of the same tile."""
    assert loaded.op is not None
    source, target = loaded.op.operands[0], store.operands[0]
    if store not in roots(loaded) or source is target:
        return False
    bases = base_argument(source), base_argument(target)
    return None in bases or bases[0] is bases[1]


# ---- operations with an effect or a result that is computed at once


def _store(ctx: Context, op: Op) -> None:
    pointer, value, *rest = op.operands
    if ctx.hazards is not None and ctx.hazards.drops_store(op):
        return
    for index in tile(ctx, pointer.shape, list(op.operands), lane_axis(value, pointer)):
        mask = ctx.at(rest[0], index) if rest else None
        text = store_text(ctx.em, ctx.at(pointer, index), ctx.at(value, index), mask)
        if text:
            ctx.em.line(text)


def _program_id(ctx: Context, op: Op) -> None:
    axis = str(op.attrs["word"])
    name = f"pid_{axis}" if op.name == "tt.get_program_id" else f"int32_t(grid_{axis})"
    ctx.env[op.result] = Bound(Expr("s", name, I32, 1, nonneg=True))


def _gather(ctx: Context, op: Op) -> None:
    source, indices = op.operands
    axis = int(op.attrs["axis"])  # type: ignore[arg-type]
    memory = memory_of(ctx, source)
    target = new_memory(ctx.em, op.result.shape, op.result.element, ctx.em.level)
    for index in nest(ctx.em, op.result.shape):
        dims = list(index.dims)
        dims[axis] = dataclasses.replace(ctx.at(indices, index), type=I32)
        target.write(ctx.em, index, memory.read(ctx.em, Index(tuple(dims))))
    ctx.env[op.result] = target


def _histogram(ctx: Context, op: Op) -> None:
    em, source = ctx.em, op.operands[0]
    memory = memory_of(ctx, source)
    target = new_memory(em, op.result.shape, op.result.element, em.level)
    bins = op.result.shape[0]
    kept = memory_of(ctx, op.operands[1]).pointer if len(op.operands) > 1 else ""
    em.line(f"for (int j = 0; j < {bins}; ++j) {target.pointer}[j] = 0;")
    guard = f"if ({kept}[j].bits) " if kept else ""
    count = source.shape[0]
    at = f"{target.pointer}[{memory.pointer}[j] & {bins - 1}]"
    em.line(f"for (int j = 0; j < {count}; ++j) {guard}++{at};")
    ctx.env[op.result] = target


_ATOMIC = {"fadd": "x + y", "add": "x + y", "max": "x > y ? x : y", "min": "x < y ? x : y"}
_ATOMIC |= {"and": "x & y", "or": "x | y", "xor": "x ^ y", "exch": "y"}


def _atomic(ctx: Context, op: Op) -> None:
    em = ctx.em
    kind = str(op.attrs["word"])
    if kind not in _ATOMIC:
        raise LoweringError(f"{op.loc}: expected an atomic among {sorted(_ATOMIC)}, got {kind}")
    pointer, value, *rest = op.operands
    element = value.element
    if element not in (Scalar("f32"), I32, Scalar("i64")):
        raise LoweringError(f"{op.loc}: expected atomics of f32, i32 or i64, got {element}")
    target = new_memory(em, op.result.shape, element, em.level) if op.result.shape else None
    old_name = em.name("old")
    if target is None:
        em.line(f"{scalar_c(element)} {old_name} = 0;")
    for index in reduce.element_nest(em, pointer.shape):
        mask = ctx.at(rest[0], index).text if rest else "true"
        address, amount = ctx.at(pointer, index).text, ctx.at(value, index).text
        step = f"[](auto x, auto y) {{ return {_ATOMIC[kind]}; }}"
        call = f"atomic_update({address}, {amount}, {step})"
        place = f"{target.at(em, index).text}[0]" if target else old_name
        em.line(f"if ({mask}) {place} = {call};")
    ctx.env[op.result] = target or Bound(Expr("s", old_name, element, em.level))


EAGER: dict[str, Callable[[Context, Op], None]] = {
    "tt.store": _store,
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _program_id,
    "tt.dot": dot.lower_dot,
    "tt.reduce": reduce.lower_reduce,
    "tt.scan": reduce.lower_scan,
    "tt.gather": _gather,
    "tt.histogram": _histogram,
    "tt.atomic_rmw": _atomic,
    "scf.for": lambda ctx, op: control.lower_for(ctx, op, run_block),
    "scf.if": lambda ctx, op: control.lower_if(ctx, op, run_block),
    "scf.while": lambda ctx, op: control.lower_while(ctx, op, run_block),
}
