"""The compile-time face: what the chip can do, and which kernel does which op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglk.errors import LoweringError
from sglk.ir.dtype import BF16, F16, F32, I32, DType
from sglk.ir.graph import Graph, Node, Value
from sglk.ir.op import Array
from sglk.ir.target import MemoryLevel, Target, Unit
from sglk.passes.select_rows import select_rows
from sglk.targets.artifact.kernel_pack import PackedKernel, write_pack
from sglk.targets.artifact.program import Program
from sglk.targets.assemble import Library
from sglk.targets.backend import Choices, Progress
from sglk.targets.kernel import NATIVE
from sglk.targets.lowering import Lowering, Operand, f32
from sglk.targets.packing import Packed, pack_weight
from sglk.targets.table import OperatorRow

ARCH = "numpy"
PAGE_SIZE = 16
TOY = Target(
    name="toy",
    arch=ARCH,
    dtypes=frozenset({F32, BF16, F16, I32}),
    units=(Unit("vector", {"f32": 1e10}),),
    memory=(MemoryLevel("DRAM", 0, 1e10),),
    programs=1,
    lanes=1,
    page_size=PAGE_SIZE,
    token_buckets=(),
    batch_invariant=False,  # a BLAS library sums a batch of another size in another order
)


# Predicates: "" for a node that a row can run, else the reason why not ------------------------


STORED = (F32, BF16)
"""Types of weights: the device widens them."""


def floats(node: Node, target: Target) -> str:
    """Operands and results in f32 or i32; a cache may be f16."""
    for value in (*node.inputs, *node.outputs):
        is_cache, dtype = value.type.rank == 5, value.type.dtype
        if dtype.is_float and dtype not in ((F32, F16) if is_cache else (F32,)):
            return f"expected f32, got {value.type}"
        if not target.supports(dtype):
            return f"no kernel for {value.type}"
    return ""


def same_shapes(node: Node, target: Target) -> str:
    if len({v.type.shape for v in node.inputs}) > 1:
        return "expected operands of one shape"
    return floats(node, target)


def stored(node: Node, weight: Value) -> str:
    """A weight that the chip reads, beside operands and results in f32."""
    if weight.type.dtype not in STORED:
        return f"no kernel for {weight.type.dtype}"
    if not all(isinstance(d, int) for d in weight.type.shape):
        return f"expected a weight of known sizes, got {weight.type}"
    others = [v for v in (*node.inputs, *node.outputs) if v is not weight]
    wrong = [v for v in others if v.type.dtype not in (F32, I32)]
    return f"expected f32, got {wrong[0].type}" if wrong else ""


def table(node: Node, target: Target) -> str:
    return stored(node, node.inputs[0])


def dense(node: Node, target: Target) -> str:
    op: Any = node.op
    if op.has_bias or op.has_residual or op.has_side or op.activation:
        return "has no epilogue"
    return stored(node, node.inputs[1])


def last_columns(node: Node, target: Target) -> str:
    op: Any = node.op
    x = node.inputs[0].type
    if op.axis != x.rank - 1 or op.step != 1:
        return "expected the last axis and a step of 1"
    known = all(isinstance(b, int) for b in (op.start, op.stop, x.shape[-1]))
    return floats(node, target) if known else f"expected columns of known sizes, got {x}"


# Emitters: a node becomes kernel calls --------------------------------------------------------


def operand(ctx: Lowering, value: Value) -> Operand:
    """A computed value, or a weight as it is in memory: row by row."""
    if ctx.is_static(value):
        return ctx.weight(value, "row", value.type.dtype.name)
    return ctx.memory(value)


def launch(node: Node, ctx: Lowering, kernel: str, *more: Operand, **constants: Any) -> None:
    """One program on the operands of a node, its results, and ``more``."""
    values = [operand(ctx, v) for v in node.inputs]
    values += [ctx.memory(v) for v in node.outputs if v.type.rank != 5]
    arguments = {f"a{i}": v for i, v in enumerate([*values, *more])}
    ctx.launch_native(kernel, (1, 1, 1), arguments, constants)


def emit_plain(node: Node, ctx: Lowering) -> None:
    launch(node, ctx, node.op.name)


def emit_rows(node: Node, ctx: Lowering) -> None:
    """Kernels that see their operands as rows of the second one's or the table's width."""
    width = node.inputs[1 if node.op.name == "linear" else 0].type.shape[-1]
    launch(node, ctx, node.op.name, K=int(width))


def emit_gather(node: Node, ctx: Lowering) -> None:
    x = node.inputs[0].type
    width = 1
    for size in x.shape[1:]:
        width *= int(size)
    launch(node, ctx, "embedding", K=width)


def emit_rmsnorm(node: Node, ctx: Lowering) -> None:
    eps: float = node.op.eps  # type: ignore[attr-defined]
    launch(node, ctx, "rmsnorm", f32(eps), K=int(node.inputs[0].type.shape[-1]))


def emit_columns(node: Node, ctx: Lowering) -> None:
    op: Any = node.op
    width = int(node.inputs[0].type.shape[-1])
    launch(node, ctx, "columns", K=width, START=int(op.start), STOP=int(op.stop))


def emit_rope_table(node: Node, ctx: Lowering) -> None:
    launch(node, ctx, "rope_table", f32(node.op.scale))  # type: ignore[attr-defined]


def emit_rope(node: Node, ctx: Lowering) -> None:
    x, cos, _ = (v.type for v in node.inputs)
    op: Any = node.op
    sizes = {"HEADS": int(x.shape[1]), "D": int(x.shape[2]), "PAIRS": int(cos.shape[1])}
    launch(node, ctx, "rope", INTERLEAVED=op.interleaved, **sizes)


def emit_write_kv(node: Node, ctx: Lowering) -> None:
    op: Any = node.op
    state, *rest = node.inputs
    arguments = {v.name: ctx.memory(v) for v in (*rest, state)}
    constants = {"LAYER": op.layer, **_cache(state, "HEADS")}
    ctx.launch_native("write_kv", (1, 1, 1), arguments, constants)


def emit_attention(node: Node, ctx: Lowering) -> None:
    op: Any = node.op
    q, state, *where = node.inputs
    sinks = where[3:]
    memory = [ctx.memory(v) for v in (q, state, *where[:3], *node.outputs)]
    arguments = {f"a{i}": v for i, v in enumerate([*memory, f32(op.scale)])}
    arguments |= {"sinks": operand(ctx, sinks[0])} if sinks else {}
    constants = {
        "LAYER": op.layer,
        "HEADS": int(q.type.shape[1]),
        "PAGE": op.page_size,
        "WINDOW": op.window or 0,
        "SOFTCAP": op.softcap or 0.0,
        **_cache(state, "KV_HEADS"),
    }
    ctx.launch_native("paged_attention", (1, 1, 1), arguments, constants)


def _cache(state: Value, heads: str) -> dict[str, int]:
    layers, _, _, kv_heads, head_dim = state.type.shape
    return {"LAYERS": int(layers), heads: int(kv_heads), "D": int(head_dim)}


def emit_nothing(node: Node, ctx: Lowering) -> None:
    """A view: the same memory under another shape."""


def row(op: str, accepts: Any, emit: Any, kind: str = "numpy") -> OperatorRow:
    return OperatorRow(op, f"{kind}-{op}", kind, 1, accepts, emit)


TABLE = (
    row("embedding", table, emit_rows),
    row("gather_rows", floats, emit_gather),
    row("linear", dense, emit_rows),
    row("rmsnorm", floats, emit_rmsnorm),
    row("add", same_shapes, emit_plain),
    row("mul", same_shapes, emit_plain),
    row("silu", floats, emit_plain),
    row("slice", last_columns, emit_columns),
    row("rope_table", floats, emit_rope_table),
    row("rope", floats, emit_rope),
    row("write_kv", floats, emit_write_kv),
    row("paged_attention", floats, emit_attention),
    row("reshape", floats, emit_nothing, kind="view"),
)


class ToyBackend:
    """What the driver asks of a target; see `sglk.targets.backend.Backend`."""

    name = "toy"
    activations = "f32"
    table = TABLE

    def check(self, choices: Choices) -> None:
        if set(choices.arches) - {ARCH}:
            raise LoweringError(f"--target toy: expected {ARCH}, got {choices.arches[0]!r}")
        if choices.activations != "f32":
            raise LoweringError(f"--activations: expected f32, got {choices.activations!r}")

    def target(self, choices: Choices) -> Target:
        return TOY

    def lower(self, graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
        return Lowering(graph, target, select_rows(graph, target, TABLE, partial=partial))

    def build(self, lowering: Lowering, choices: Choices, progress: Progress) -> Sequence[Library]:
        """A chip's compiler runs here; ours has only to say which function each symbol is."""
        kernels = {
            symbol: PackedKernel(
                {
                    "function": kernel.function.removeprefix(NATIVE),
                    "params": [kind for _, kind in kernel.signature],
                    "constants": dict(kernel.constants),
                },
                b"",
            )
            for symbol, kernel in lowering.kernels.items()
        }
        return [Library(ARCH, write_pack(kernels), ".pack")]

    def pack_weight(self, name: str, array: Array, dtype: DType, layout: str) -> Packed:
        return pack_weight(name, array, dtype, layout)

    def row_granule(self, layout: str) -> int:
        return 1

    def plans(self, program: Program) -> Mapping[str, bytes]:
        return {}

    def why_not_here(self, choices: Choices) -> str:
        return ""


def open_backend() -> ToyBackend:
    return ToyBackend()
