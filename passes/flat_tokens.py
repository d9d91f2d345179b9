"""From the captured form, one request of [1, tokens], to the step form on the tokens of many.

This is right only if every op outside attention works on each token alone, which the pass proves
while it rebuilds the graph: `flat_rules` has one rule per op, and a rule that cannot keep token i
of the result a function of token i of the operands (and of nothing else that depends on tokens)
refuses. All refusals come in one error.

The proof goes by induction over the nodes. Its invariant: a value whose type has a dim ``tokens``
(exactly one, its token axis) holds at index i of that axis a function of token i; a value without
it depends on no token. Any other use of the symbol in a shape, such as ``tokens - 1``, breaks the
invariant and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import PassError
from ..ir.dim import Dim, dim, symbols_of
from ..ir.dtype import F32, I32, DType
from ..ir.graph import Graph, Node, Value
from ..ir.ops.attention import SLOTS, Attention
from ..ir.ops.recurrence import STATE_SLOTS
from ..ir.ops.sparse import GatherRows
from ..ir.types import TensorType
from .base import Pass
from .flat_attention import kv_shape
from .flat_positions import positions_for_counters
from .flat_recurrence import STATEFUL, slot_shape
from .flat_rules import Flattener, Refusal, flatten_node

TOKENS, SEQS, PAGES, ROWS = (dim(name) for name in ("tokens", "seqs", "pages", "rows"))
CAPTURED_INPUTS = {"token_ids", "position_ids"}


@dataclass(frozen=True)
class FlatTokens(Pass):
    """
    (%token_ids: i32[1, tokens], %position_ids: i32[1, tokens]) -> f32[1, tokens, V] by `attention`
      ->   the step inputs -> f32[rows, V] by `write_kv` and `paged_attention` on a state; layers
    with a state of their own (`causal_conv`, `linear_recurrence`) by slots, one for each sequence.
    Requires: the captured form.  Ensures: values are [tokens, ...] or free of tokens.
    """

    name: ClassVar[str] = "flat-tokens"
    keeps_numbers: ClassVar[bool] = False  # the inputs are others
    page_size: int = 32
    kv_dtype: DType = F32

    def run(self, graph: Graph) -> bool:
        if any(v.name == "query_start" for v in graph.inputs):
            return False
        _check_signature(graph)
        graph.erase_dead()
        positions_for_counters(graph)
        graph.become(_rebuild(graph, self.page_size, self.kv_dtype))
        return True


def _check_signature(graph: Graph) -> None:
    wanted = TensorType(I32, (1, TOKENS))
    for value in graph.inputs:
        if value.name not in CAPTURED_INPUTS or value.type != wanted:
            raise PassError(
                f"flat-tokens: expected inputs {sorted(CAPTURED_INPUTS)} of {wanted}, got {value!r}"
            )
    if graph.states or len(graph.outputs) != 1:
        raise PassError(
            f"flat-tokens: expected no state and one output, the logits, "
            f"got {len(graph.states)} states and {len(graph.outputs)} outputs"
        )


def _rebuild(old: Graph, page_size: int, kv_dtype: DType) -> Graph:
    flat = Flattener(Graph(old.name), TOKENS, page_size)
    _declare(flat, old, kv_dtype)
    cut, cut_value = _gather_point(old)
    refused: list[str] = []
    for i, node in enumerate(old.nodes):
        try:
            flatten_node(flat, node)
        except Refusal as refusal:
            flat.refused.update(node.outputs)
            refused.append(_describe(node, str(refusal)))
        if i == cut and cut_value in flat.known:
            _gather(flat, cut_value)
    _raise_refusals(refused)
    flat.graph.outputs = [flat.known[v] for v in old.outputs]
    _check_logits(flat.graph)
    return flat.graph


def _declare(flat: Flattener, old: Graph, kv_dtype: DType) -> None:
    """The step inputs in their fixed order, leaves under their old names, a state per KV shape."""
    shapes: dict[str, tuple[Dim, ...]] = {
        "token_ids": (TOKENS,),
        "positions": (TOKENS,),
        "slots": (TOKENS,),
        "query_start": (SEQS + 1,),
        "seq_lens": (SEQS,),
        "page_table": (SEQS, PAGES),
        "logit_rows": (ROWS,),
    }
    slots = _slot_shapes(old)
    if slots:
        shapes["state_slots"] = (SEQS,)
    for name, shape in shapes.items():
        flat.inputs[name] = flat.graph.input(name, TensorType(I32, shape))
    for value in old.inputs:
        step_name = "positions" if value.name == "position_ids" else value.name
        flat.known[value] = flat.inputs[step_name]
    for value in old.params:
        flat.known[value] = flat.graph.param(value.name, value.type)
    for value in old.consts:
        assert value.data is not None
        flat.known[value] = flat.graph.const(value.data, value.type, value.name)
    for i, ((heads, width), layers) in enumerate(_kv_shapes(old).items()):
        type = TensorType(kv_dtype, (layers, 2, SLOTS, heads, width))
        flat.states[heads, width] = flat.graph.state(f"kv_{i}" if i else "kv", type)
    for i, (slot, layers) in enumerate(slots.items()):
        type = TensorType(F32, (layers, STATE_SLOTS, *slot))
        flat.slot_states[slot] = flat.graph.state(f"seq_{i}", type)


def _slot_shapes(graph: Graph) -> dict[tuple[Dim, ...], int]:
    """Shape of a slot -> how many layers have it."""
    counts: dict[tuple[Dim, ...], int] = {}
    for node in graph.nodes:
        if isinstance(node.op, STATEFUL):
            counts[slot_shape(node)] = counts.get(slot_shape(node), 0) + 1
    return counts


def _kv_shapes(graph: Graph) -> dict[tuple[Dim, Dim], int]:
    """KV heads and head width -> how many layers have them."""
    counts: dict[tuple[Dim, Dim], int] = {}
    for node in graph.nodes:
        if isinstance(node.op, Attention):
            counts[kv_shape(node)] = counts.get(kv_shape(node), 0) + 1
    return counts


def _gather_point(graph: Graph) -> tuple[int, Value]:
    """The first node from the last that mixes tokens on after which one value alone carries them;
    it.

    Everything later then works on the rows whose logits are wanted.
    """
    mixers = (Attention, *STATEFUL)
    mixing = [i for i, n in enumerate(graph.nodes) if isinstance(n.op, mixers)]
    last_use = _last_uses(graph)
    live = {v for v in graph.inputs if v in last_use}
    for i, node in enumerate(graph.nodes):
        live.update(v for v in node.outputs if any(symbols_of(d) for d in v.type.shape))
        live = {v for v in live if last_use.get(v, -1) > i}
        if len(live) == 1 and i >= (mixing or [0])[-1]:
            return i, live.pop()
    return len(graph.nodes) - 1, graph.outputs[0]


def _last_uses(graph: Graph) -> dict[Value, int]:
    last = {v: i for i, node in enumerate(graph.nodes) for v in node.inputs}
    return {**last, **dict.fromkeys(graph.outputs, len(graph.nodes))}


def _gather(flat: Flattener, value: Value) -> None:
    if flat.token_axis(value) is None:
        return
    flat.known[value] = flat.graph.emit(GatherRows(), flat.known[value], flat.inputs["logit_rows"])
    flat.tokens = ROWS


def _describe(node: Node, reason: str) -> str:
    result = node.outputs[0]
    where = f" at {node.source}" if node.source else ""
    return f"%{result.name} = {node.op.name}(...){where}: {reason}"


def _raise_refusals(refused: list[str]) -> None:
    if refused:
        listed = "".join(f"\n  {line}" for line in refused)
        raise PassError(
            "flat-tokens: expected every op outside attention to work on each token alone, "
            f"got {len(refused)} that are not proved to:{listed}"
        )


def _check_logits(graph: Graph) -> None:
    type = graph.outputs[0].type
    if type.rank != 2 or type.shape[0] != ROWS:
        raise PassError(f"flat-tokens: expected logits [1, tokens, vocabulary], got flat {type}")
