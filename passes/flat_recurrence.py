"""The rules of `flat_tokens` for layers that carry a state from token to token: through slots.

Each sequence of a step owns a slot of every such state, named by the input ``state_slots``. Layers
whose slots have one shape share a state.
"""

from __future__ import annotations

from ..ir.dim import Dim
from ..ir.graph import Node
from ..ir.ops.recurrence import CausalConv, LinearRecurrence, SlotConv, SlotRecurrence
from .flat_rules import Flattener, Refusal, expect_free, rule

STATEFUL = (CausalConv, LinearRecurrence)


def slot_shape(node: Node) -> tuple[Dim, ...]:
    """What a sequence leaves for its next token: K - 1 inputs, or a matrix for each head."""
    if isinstance(node.op, CausalConv):
        channels, taps = node.inputs[1].type.shape
        assert isinstance(taps, int)
        return taps - 1, channels
    _, k, v, *_ = node.inputs
    return v.type.shape[2], k.type.shape[3], v.type.shape[3]


@rule(CausalConv)
def _convolution(flat: Flattener, node: Node) -> None:
    assert isinstance(node.op, CausalConv)
    x, *weights = node.inputs
    if flat.token_axis(x) != 2 or x.type.shape[0] != 1:
        raise Refusal(f"expects x of [1, channels, tokens], got {x.type}")
    expect_free(flat, weights, "filter")
    shape = slot_shape(node)
    op = SlotConv(_next_layer(flat, shape), has_bias=node.op.has_bias)
    _through_slots(flat, node, op, shape)


@rule(LinearRecurrence)
def _recurrence(flat: Flattener, node: Node) -> None:
    op = node.op
    assert isinstance(op, LinearRecurrence)
    rate = node.inputs[4:5] if op.has_rate else []
    for value in node.inputs:
        if value not in rate and (flat.token_axis(value) != 1 or value.type.shape[0] != 1):
            raise Refusal(f"expects operands of [1, tokens, ...], got {value.type}")
    expect_free(flat, rate, "rate")
    shape = slot_shape(node)
    _through_slots(
        flat, node, SlotRecurrence(_next_layer(flat, shape), op.has_rate, op.has_beta), shape
    )


def _next_layer(flat: Flattener, shape: tuple[Dim, ...]) -> int:
    layer = flat.slot_layers.get(shape, 0)
    flat.slot_layers[shape] = layer + 1
    return layer


def _through_slots(
    flat: Flattener, node: Node, op: SlotConv | SlotRecurrence, shape: tuple[Dim, ...]
) -> None:
    places = [flat.inputs[n] for n in ("query_start", "seq_lens", "state_slots")]
    operands = [flat.known[v] for v in node.inputs]
    y, state = flat.graph.append(
        op, flat.slot_states[shape], *places, *operands, source=node.source
    )
    flat.slot_states[shape] = state
    flat.finish(node, y)
