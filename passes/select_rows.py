"""Operator selection: one row of the target's operator table for every node on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import PassError
from ..ir.graph import Graph, Node
from ..ir.target import Denied, Row, Target


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
    If any node has no row, `PassError` lists every such op with its count, place in the model and
    reasons; with ``partial``, for reports, such nodes are `Selection.missing`.
    """
    rows = _by_op(table)
    banned = {(d.op, d.name): d.reason for d in denied}
    static = graph.static_values()
    selection = Selection()
    for node in graph.nodes:
        if not any(v in static for v in node.outputs):
            _select(node, target, rows.get(node.op.name, []), banned, selection)
    live = [node for node in graph.nodes if not any(v in static for v in node.outputs)]
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
