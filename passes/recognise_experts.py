"""Raises routing and the MLPs of chosen experts to `moe_route` and `expert_mlp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Add, Div, Mul
from ..ir.ops.moe import ExpertLinear, ExpertMlp, MoeRoute
from ..ir.ops.order import TopK
from ..ir.ops.reduce import Softmax, Sum
from ..ir.ops.shape import Reshape, Slice
from .base import Pass
from .patterns import either_order, only_user, produced_by
from .recognise_gated_mlp import ACTIVATION_OPS


@dataclass(frozen=True)
class RecogniseExperts(Pass):
    """
    %v, %ids = top_k(softmax(%logits)); %w = div(%v, sum(%v))
      ->   %ids, %w = moe_route(%logits) {renormalize=True}
    %g = expert_linear(%x, %wu, %ids); %m = mul(silu(%g[:half]), %g[half:])
    %y = sum(mul(expert_linear(%m, %wd, %ids), %w)) over the choices
      ->   %y = expert_mlp(%x, %wu, %wd, %ids, %w) {activation="silu"}
    With a sum after it as a residual. Requires: f32 logits [T, E], and values in between that
    nothing else reads.
    """

    name: ClassVar[str] = "recognise-experts"

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, TopK):
                changed |= _raise_route(graph, node)
            elif isinstance(node.op, Sum):
                changed |= _raise_mlp(graph, node)
        return graph.erase_dead() or changed


def _raise_route(graph: Graph, node: Node) -> bool:
    op, softmax = node.op, produced_by(node.inputs[0], Softmax)
    assert isinstance(op, TopK)
    if softmax is None or node.inputs[0].type.rank != 2:
        return False
    assert isinstance(softmax.op, Softmax)
    logits = softmax.inputs[0]
    if softmax.op.axis % 2 != 1 or not isinstance(logits.type.shape[1], int):
        return False
    values, ids = node.outputs
    ratio = _ratio_to_sum(graph, values)
    made = graph.append(MoeRoute(op.k, ratio is not None), logits, before=node, source=node.source)
    graph.replace(ids, made[0])
    graph.replace(ratio or values, made[1])
    return True


def _ratio_to_sum(graph: Graph, values: Value) -> Value | None:
    """values / sum(values), if they are read for nothing else."""
    ratios = [node for node in values.uses if isinstance(node.op, Div)]
    sums = [node for node in values.uses if isinstance(node.op, Sum)]
    if graph.is_output(values) or len(values.uses) != 2 or len(ratios) != 1 or len(sums) != 1:
        return None
    (ratio,), (total,) = ratios, sums
    assert isinstance(total.op, Sum)
    is_row = total.op.axis % 2 == 1 and total.op.keepdim
    if not is_row or ratio.inputs != [values, total.outputs[0]]:
        return None
    return ratio.outputs[0] if only_user(graph, total.outputs[0]) is ratio else None


def _raise_mlp(graph: Graph, node: Node) -> bool:
    op, scaled = node.op, produced_by(node.inputs[0], Mul)
    assert isinstance(op, Sum)
    if scaled is None or op.axis != 1 or op.keepdim or node.inputs[0].type.rank != 3:
        return False
    for outer, spread in either_order(scaled):
        down, weights = produced_by(outer, ExpertLinear), _one_each(spread, outer)
        if down is None or weights is None or only_user(graph, outer) is not scaled:
            continue
        inner, matrix, ids = down.inputs
        found = _gated(graph, inner, ids)
        if found is not None and weights.type.shape == ids.type.shape:
            activation, x, up = found
            _emit(graph, node, activation, [x, up, matrix, ids, weights])
            return True
    return False


def _emit(graph: Graph, node: Node, activation: str, operands: list[Value]) -> None:
    """The fused node in place of a sum, or of the sum and what it is added to."""
    y = node.outputs[0]
    add = only_user(graph, y)
    if add is not None and isinstance(add.op, Add) and all(v.type == y.type for v in add.inputs):
        residual = add.inputs[1] if add.inputs[0] is y else add.inputs[0]
        op = ExpertMlp(activation, has_residual=True)
        made = graph.emit(op, *operands, residual, before=add, source=node.source)
        graph.replace(add.outputs[0], made)
    else:
        op = ExpertMlp(activation)
        graph.replace(y, graph.emit(op, *operands, before=node, source=node.source))


def _one_each(spread: Value, outer: Value) -> Value | None:
    """What was reshaped from [T, k] to [T, k, 1]."""
    node = produced_by(spread, Reshape)
    if node is None or spread.type.shape != (*outer.type.shape[:2], 1):
        return None
    return node.inputs[0] if node.inputs[0].type.rank == 2 else None


def _gated(graph: Graph, inner: Value, ids: Value) -> tuple[str, Value, Value] | None:
    """(activation, x, weight) of act(first half) * second half of one product with the experts."""
    product = produced_by(inner, Mul)
    if product is None or only_user(graph, inner) is None:
        return None
    for activated, other in either_order(product):
        act = activated.producer
        if act is None or not isinstance(act.op, ACTIVATION_OPS):
            continue
        whole = _whole(graph, act.inputs[0], other)
        linear = produced_by(whole, ExpertLinear) if whole is not None else None
        if linear is not None and linear.inputs[2] is ids and linear.inputs[0].type.rank == 2:
            return act.op.name, linear.inputs[0], linear.inputs[1]
    return None


def _whole(graph: Graph, gate: Value, up: Value) -> Value | None:
    """What both are halves of, the gate first."""
    a, b = produced_by(gate, Slice), produced_by(up, Slice)
    if a is None or b is None or a.inputs[0] is not b.inputs[0]:
        return None
    whole = a.inputs[0]
    width = whole.type.shape[-1]
    if not isinstance(width, int) or len(whole.uses) != 2 or graph.is_output(whole):
        return None
    axis = whole.type.rank - 1
    halves = (Slice(axis, 0, width // 2), Slice(axis, width // 2, width))
    return whole if (a.op, b.op) == halves and width % 2 == 0 else None
