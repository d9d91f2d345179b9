"""What a compile decided, as JSON: sizes, rows, fusions, tiles with reasons, memory, seconds."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..ir.graph import Graph
from ..passes.select_rows import HOST_ROW
from .assemble import Parts, kernel_records
from .costs import cost_records

FUSED = ("add_rmsnorm", "gated_linear", "rope_write_kv")
"""Ops that only fusion makes; `linear` counts as a fusion when it has an epilogue."""


def make_report(
    parts: Parts, captured: Graph, passes: Sequence[Any], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The report as it goes into the artifact."""
    step = parts.lowering.graph
    weights = [use.value.type.bytes for use in parts.lowering.weights.values()]
    return {
        "model": dict(parts.model),
        "target": parts.target,
        "isas": [library.isa for library in parts.libraries],
        "graph": {
            "captured_nodes": len(captured.nodes),
            "final_nodes": len(step.nodes),
            "fusions": fusion_counts(step),
        },
        "rows": _rows(parts),
        "host_ops": _host_ops(parts),
        "kernels": kernel_records(parts.lowering, parts.libraries),
        "costs": cost_records(parts.lowering, parts.program),
        "memory": {
            "arena_text": parts.program.arena_bytes,
            "unshared_text": parts.lowering.unshared_text,
            "symbols": list(parts.program.symbols),
        },
        "weight_bytes": sum(int(b) for b in weights),
        "passes": [vars_of(record) for record in passes],
        "seconds": dict(seconds),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def vars_of(record: Any) -> dict[str, Any]:
    """A pass record as plain data."""
    return {"name": record.name, "seconds": record.seconds, "changed": record.changed}


def fusion_counts(graph: Graph) -> dict[str, int]:
    """How many fused nodes of each kind the graph ended with."""
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        if node.op.name in FUSED:
            counts[node.op.name] += 1
        for epilogue in ("has_bias", "activation", "has_residual"):
            if node.op.name == "linear" and getattr(node.op, epilogue):
                counts[f"linear+{epilogue.removeprefix('has_')}"] += 1
    return dict(sorted(counts.items()))


def _host_ops(parts: Parts) -> dict[str, int]:
    """Ops that the host does, as the target has no kernel for them, and how many of each."""
    counts = parts.lowering.selection.counts()
    return {op: count for (op, row), count in sorted(counts.items()) if row == HOST_ROW}


def _rows(parts: Parts) -> list[dict[str, Any]]:
    """Of each op the rows that were chosen, and what each of them was preferred to."""
    selection = parts.lowering.selection
    passed: dict[tuple[str, str], dict[tuple[str, str], None]] = {}
    for node, row in selection.chosen.items():
        over = passed.setdefault((node.op.name, row.name), {})
        over.update(dict.fromkeys(selection.refused.get(node, [])))
    return [
        {
            "op": op,
            "row": row,
            "count": count,
            "passed_over": [{"row": name, "reason": why} for name, why in passed[op, row]],
        }
        for (op, row), count in sorted(selection.counts().items())
    ]
