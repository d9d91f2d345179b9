"""Rows for layers with a state per sequence, in C++ by hand (``native/kernels/slot_*.h``).

A program walks the tokens of one sequence in order, for a block of channels or of columns of a
state, so a result does not depend on how a prompt is cut into steps.
"""

from __future__ import annotations

from ...ir.dim import as_dim, dim, prod
from ...ir.dtype import F32
from ...ir.graph import Node, Value
from ...ir.ops.recurrence import SlotConv, SlotRecurrence
from ...ir.target import Target
from ..lowering import Lowering, Operand
from ..rows.generic import operand
from ..table import OperatorRow

BLOCK, LANES = 64, 16
"""Columns of a program, as in the C++; where there are fewer, whole vectors of them."""
MAX_KEYS = 512
"""A block of a state lies on the stack: 128 KiB."""
PLACES = ("state", "query_start", "seq_lens", "state_slots")


def accepts(node: Node, target: Target) -> str:
    """Why a layer with a state cannot run here, or ""."""
    state = node.inputs[0].type
    if not all(isinstance(d, int) for d in state.shape[2:]):
        return f"expected slots of a known size, got {state}"
    wrong = [v.type for v in node.inputs[4:] if v.type.dtype != F32]
    if wrong:
        return f"expected f32, got {wrong[0]}"
    if isinstance(node.op, SlotRecurrence) and int(state.shape[3]) > MAX_KEYS:
        return f"expected at most {MAX_KEYS} keys, got {state.shape[3]}"
    return ""


def _blocks(columns: int) -> int:
    """Programs that share the columns."""
    return -(-columns // (BLOCK if columns >= BLOCK else -(-columns // LANES) * LANES))


def _places(ctx: Lowering, node: Node, layer: int) -> dict[str, Operand | None]:
    """The state of one layer, and where each sequence is."""
    state, *rest = node.inputs[:4]
    slot = prod(state.type.shape[2:])
    offset = as_dim(dim("num_slots") * slot * (4 * layer)) if layer else 0
    return {
        "state": ctx.memory(state, offset),
        **{name: ctx.memory(value) for name, value in zip(PLACES[1:], rest, strict=True)},
    }


def emit_conv(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, SlotConv)
    x, weight, *bias = node.inputs[4:]
    channels, taps = (int(d) for d in weight.type.shape)
    arguments = {
        **_places(ctx, node, op.layer),
        "x": operand(ctx, x),
        "w": operand(ctx, weight),
        "bias": operand(ctx, bias[0]) if bias else None,
        "y": ctx.memory(node.outputs[0]),
    }
    constants = {"CHANNELS": channels, "TAPS": taps, "HAS_BIAS": op.has_bias}
    seqs = node.inputs[3].type.size
    ctx.launch_native("slot_conv", (_blocks(channels), seqs, 1), arguments, constants)


def emit_recurrence(node: Node, ctx: Lowering) -> None:
    op = node.op
    assert isinstance(op, SlotRecurrence)
    _, heads, keys, values = (int(d) for d in (1, *node.inputs[0].type.shape[2:]))
    names = ["q", "k", "v", "decay"] + ["rate"] * op.has_rate + ["beta"] * op.has_beta
    operands: dict[str, Value] = dict(zip(names, node.inputs[4:], strict=True))
    groups, by_decay = int(operands["q"].type.shape[1]), operands["decay"].type.rank == 3
    by_heads = values == 1 and groups == 1
    arguments = {
        **_places(ctx, node, op.layer),
        **{name: operand(ctx, value) for name, value in operands.items()},
        "y": ctx.memory(node.outputs[0]),
    }
    constants = {
        "HEADS": heads,
        "GROUPS": groups,
        "KEYS": keys,
        "VALUES": values,
        "DECAYS": keys if by_decay else 1,
        "HAS_RATE": op.has_rate,
        "HAS_BETA": op.has_beta,
        "BY_HEADS": by_heads,
    }
    programs = _blocks(heads) if by_heads else heads * _blocks(values)
    seqs = node.inputs[3].type.size
    ctx.launch_native("slot_recurrence", (programs, seqs, 1), arguments, constants)


ROWS = (
    OperatorRow("slot_conv", "c++-slot-conv", "c++", 20, accepts, emit_conv),
    OperatorRow("slot_recurrence", "c++-slot-recurrence", "c++", 20, accepts, emit_recurrence),
)
