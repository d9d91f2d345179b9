"""Operator selection: one row of the target's operator table for every node on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from ..errors import PassError
from ..ir.graph import Graph, Node, Value
from ..ir.target import Denied, Row, Target

HOST_OPS = "host_ops"
"""Feature of a target whose device stops for an op that no row takes, and lets the host do it."""
HOST_ROW = "host-reference"
HOST_KIND = "host"
PRODUCTS = frozenset({"linear", "gated_linear", "matmul", "expert_linear", "convolution"})
"""Ops whose references sum in an order that may depend on how many rows there are."""
_PLAIN = frozenset(
    ("f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
)
"""Types that NumPy references and devices pass each other."""


@dataclass
class Selection:
    """The chosen row of each node, and for the report what was passed over and why."""

    chosen: dict[Node, Row] = field(default_factory=dict)
    refused: dict[Node, list[tuple[str, str]]] = field(default_factory=dict)
    missing: list[Node] = field(default_factory=list)
    """Nodes that no row takes; a program without them can only be reported, not run."""

    def counts(self) -> Counter[tuple[str, str]]:
        """(op, row name) -> number of nodes."""
        return Counter((node.op.name, row.name) for node, row in self.chosen.items())


def select_rows(
    graph: Graph,
    target: Target,
    table: Iterable[Row],
    denied: Iterable[Denied] = (),
    *,
    partial: bool = False,
) -> Selection:
    """Pick the accepting row of highest priority for each node that reads an input or state.

    Nodes on parameters and constants alone are evaluated when weights are packed and need no row.
    A node that no row takes runs on the host by its reference, where the target has `HOST_OPS`. If
    any is left, `PassError` lists every such op with its count, place in the model and reasons;
    with ``partial``, for reports, such nodes are `Selection.missing`.
    """
    rows = _by_op(table)
    banned = {(d.op, d.name): d.reason for d in denied}
    static = graph.static_values()
    selection = Selection()
    live = [node for node in graph.nodes if not any(v in static for v in node.outputs)]
    states = _states(graph) if HOST_OPS in target.features else None
    for node in live:
        _select(node, target, rows.get(node.op.name, []), banned, selection)
        if states is not None and node not in selection.chosen:
            _fall_back(node, target, states, selection)
    selection.missing = [node for node in live if node not in selection.chosen]
    if not partial:
        _refuse_missing(target, selection)
    return selection


def _by_op(table: Iterable[Row]) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for row in table:
        if any(other.name == row.name for other in rows.get(row.op, [])):
            raise PassError(f"operator table: row {row.name!r} of {row.op} is defined twice")
        rows.setdefault(row.op, []).append(row)
    return {op: sorted(group, key=lambda row: -row.priority) for op, group in rows.items()}


def _select(
    node: Node,
    target: Target,
    rows: list[Row],
    banned: dict[tuple[str, str], str],
    selection: Selection,
) -> None:
    reasons: list[tuple[str, str]] = []
    for row in rows:
        reason = banned.get((row.op, row.name)) or row.accepts(node, target)
        if not reason:
            winner = selection.chosen.setdefault(node, row)
            if winner is row:
                continue
            reason = f"lower priority: {winner.why or f'{winner.name} comes first'}"
        reasons.append((row.name, reason))
    if reasons:
        selection.refused[node] = reasons


def _states(graph: Graph) -> set[Value]:
    """States, and what ops make of them."""
    found = set(graph.states)
    for node in graph.nodes:
        types = {v.type for v in node.inputs if v in found}
        found.update(v for v in node.outputs if v.type in types)
    return found


def _fall_back(node: Node, target: Target, states: set[Value], selection: Selection) -> None:
    reason = why_not_on_host(node, target, states)
    if reason:
        selection.refused.setdefault(node, []).append((HOST_ROW, reason))
    else:
        selection.chosen[node] = host_row(node.op.name)


def why_not_on_host(node: Node, target: Target, states: set[Value]) -> str:
    """Why the host cannot do an op in place of the device, or ""."""
    if target.batch_invariant and node.op.name in PRODUCTS:
        return (
            "NumPy's sums of a product depend on the batch, which the target promises they do not"
        )
    values = [*node.inputs, *node.outputs]
    if any(v in states for v in values):
        return "states stay on the device, in a layout of its own"
    odd = [v.type for v in values if v.type.dtype.name not in _PLAIN]
    return f"no plain NumPy type for {odd[0]}" if odd else ""


@cache
def host_row(op: str) -> Row:
    """The row of an op that the host does: `Lowering` emits it."""
    why = "no row of the table takes it; the host computes it by its reference"
    return Row(op, HOST_ROW, HOST_KIND, -1, lambda node, target: "", why=why)


def _refuse_missing(target: Target, selection: Selection) -> None:
    missing: dict[str, list[Node]] = {}
    for node in selection.missing:
        missing.setdefault(node.op.name, []).append(node)
    if not missing:
        return
    lines = [_unsupported_line(op, nodes, selection) for op, nodes in sorted(missing.items())]
    raise PassError(
        f"{target.name}:{target.arch}: no implementation for {len(missing)} op(s): "
        + "; ".join(lines)
    )


def _unsupported_line(op: str, nodes: list[Node], selection: Selection) -> str:
    first = nodes[0]
    where = f" first at {first.source}" if first.source else ""
    reasons = ", ".join(f"{name}: {why}" for name, why in selection.refused.get(first, []))
    return f"{op} x{len(nodes)}{where} ({reasons or 'the operator table has no row for it'})"
