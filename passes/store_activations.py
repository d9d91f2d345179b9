"""Stores what kernels leave for each other in bf16, for targets whose units multiply bf16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ..ir.dtype import BF16, F32, DType
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op, result_types
from ..ir.ops.attention import Attention, WriteKv
from ..ir.ops.elementwise import Binary, Cast, Unary, Where
from ..ir.ops.linear import GatedLinear, Linear, MatMul
from ..ir.ops.moe import ExpertLinear, ExpertMlp, MoeRoute
from ..ir.ops.norm import AddRmsNorm
from ..ir.ops.recurrence import SlotConv, SlotRecurrence
from ..ir.ops.shape import Concat, Reshape
from ..ir.ops.sparse import Embedding
from .base import Pass

TOWARDS_LOGITS = (Unary, Binary, Reshape)
"""Ops between the last product and the outputs: a soft cap, a scale."""


@dataclass(frozen=True)
class StoreActivations(Pass):
    """
    %h: f32 = embedding(%e, %ids); %y: f32 = linear(rmsnorm(%h, %w), %p)
      ->   %h: bf16 = embedding(%e, %ids) {dtype=bf16}; ... {dtype=bf16}
    Every f32 value that depends on an embedding, a float input or a state. Kernels compute in f32
    and round what they store. f32 stay: outputs and what only scales or caps them (logits), the
    same before a choice of experts, values of positions alone (rope tables), norm weights, biases,
    and what layers with a state read and give.
    """

    name: ClassVar[str] = "store-activations"
    keeps_numbers: ClassVar[bool] = False  # activations are rounded

    def run(self, graph: Graph) -> bool:
        static = graph.static_values()
        wide = _wide_values(graph, static)
        changed = _round_inputs(graph)
        active: set[Value] = {*graph.states}
        for node in list(graph.nodes):
            if not any(v in static for v in node.outputs):
                changed |= _visit(graph, node, active, wide)
        changed |= _widen_outputs(graph)
        return graph.erase_dead() or changed


def _wide_values(graph: Graph, static: set[Value]) -> set[Value]:
    """f32 outputs and operands of routing, and back from them to the product they come from."""
    wide: set[Value] = set()
    todo = [v for v in graph.outputs if v.type.dtype == F32]
    todo += [node.inputs[0] for node in graph.nodes if isinstance(node.op, MoeRoute)]
    while todo:
        value = todo.pop()
        node = value.producer
        if node is None or value in static or value in wide:
            continue
        if isinstance(node.op, Linear):
            wide.add(value)
        if isinstance(node.op, TOWARDS_LOGITS):
            wide.add(value)
            todo += [v for v in node.inputs if v.type.dtype == F32]
    return wide


def _round_inputs(graph: Graph) -> bool:
    """Float inputs are given as f32: they are rounded first."""
    changed = False
    for value in graph.inputs:
        users = [n for n in value.uses if n.op != Cast(BF16)]
        if value.type.dtype != F32 or not users:
            continue
        first = min(users, key=graph.nodes.index)
        rounded = graph.emit(Cast(BF16), value, before=first)
        for node in users:
            for at, operand in enumerate(node.inputs):
                if operand is value:
                    graph.set_input(node, at, rounded)
        changed = True
    return changed


def _visit(graph: Graph, node: Node, active: set[Value], wide: set[Value]) -> bool:
    """The node on what its operands have become; its results count as activations if they do."""
    is_active = isinstance(node.op, Embedding) or any(
        v in active or v.type.dtype == BF16 for v in node.inputs
    )
    if not is_active:
        return False
    keeps = any(v in wide for v in node.outputs)
    op = _typed(node.op, keeps)
    changed = _match_operands(graph, node, keeps)
    types = result_types(op, [v.type for v in node.inputs])
    outputs = node.outputs
    if op != node.op or list(types) != [v.type for v in outputs]:
        made = graph.append(op, *node.inputs, before=node)
        for old, new in zip(outputs, made, strict=True):
            graph.replace(old, new)
            if old in wide:
                wide.add(new)
        outputs, changed = list(made), True
    active.update(outputs)
    return changed


def _typed(op: Op, keeps: bool) -> Op:
    if isinstance(op, Embedding | Linear | GatedLinear | ExpertLinear | ExpertMlp) and not keeps:
        return replace(op, dtype=BF16)
    return op


def _match_operands(graph: Graph, node: Node, keeps: bool) -> bool:
    """Casts operands that must have one type: to bf16, or to f32 where the result stays that."""
    changed = False
    for at, wanted in _wanted_types(node, F32 if keeps else BF16):
        value = node.inputs[at]
        if value.type.dtype in (F32, BF16) and value.type.dtype != wanted:
            graph.set_input(node, at, graph.emit(Cast(wanted), value, before=node))
            changed = True
    return changed


def _wanted_types(node: Node, result: DType) -> Iterator[tuple[int, DType]]:
    """Operands whose float type is not free, by what their op asks of them."""
    op, count = node.op, len(node.inputs)
    if isinstance(op, Linear | GatedLinear | ExpertLinear | ExpertMlp):
        yield 0, BF16
        if isinstance(op, ExpertMlp):
            yield 4, F32  # weights of the choices
            yield from ((at, result) for at in range(5, count))
        if isinstance(op, Linear) and op.has_residual:
            yield count - 1, result
    elif isinstance(op, Binary | Concat | MatMul):
        yield from ((at, result) for at in range(count))
    elif isinstance(op, AddRmsNorm):
        yield from ((0, result), (1, result))
    elif isinstance(op, Where | WriteKv):
        yield from ((1, result), (2, result))
    elif isinstance(op, Attention):
        yield from ((at, result) for at in range(3))
    elif isinstance(op, Unary | Reshape):
        yield 0, result
    elif isinstance(op, SlotConv | SlotRecurrence):  # what is carried on and on stays f32
        yield from ((at, F32) for at in range(4, count))


def _widen_outputs(graph: Graph) -> bool:
    """Outputs keep the type that callers know."""
    changed = False
    for at, value in enumerate(graph.outputs):
        if value.type.dtype == BF16 and value.kind == "node":
            graph.outputs[at] = graph.emit(Cast(F32), value)
            changed = True
    return changed
