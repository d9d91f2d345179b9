"""The compile report as text: a summary after a compile, all of it for ``sglk show --report``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..targets.dim_code import parse
from .kernel_resources import expansion_lines, resource_lines
from .limits import Limits
from .roofline import Roofline, limit_notes, step_lines

TYPICAL = {"tokens": 512, "rows": 1, "seqs": 1, "pages": 16}
"""What step memory is printed for: the prefill of one prompt. Other sizes count as 512."""

STEPS = {
    "decode step": {"tokens": 1, "rows": 1, "seqs": 1, "pages": 16},
    "prefill": TYPICAL,
}
"""Steps whose work the report lists."""


def size_text(count: float) -> str:
    """Bytes for people.

    >>> size_text(98_400_000)
    '98.4 MB'
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def summary_lines(path: Path, report: Mapping[str, Any]) -> list[str]:
    """What a compile ends with."""
    return [
        f"{path}: {size_text(path.stat().st_size) if path.is_file() else 'folder'}",
        *_result_lines(report),
        *(f"  self-test    {line}" for line in report.get("selftest", [])),
        *_cost_lines(report),
    ]


def report_lines(report: Mapping[str, Any], limits: Limits | None = None) -> list[str]:
    """The whole report; with limits of a machine also the least time of each kernel."""
    return [
        f"{report['model']['name']} for {report['target']}",
        *_result_lines(report),
        *_cost_lines(report),
        "",
        "rows of the operator table that the graph's ops took",
        *_row_lines(report["rows"]),
        "",
        "tiles, by measured or modelled time",
        *_tile_lines(report["kernels"]),
        *resource_lines(report["kernels"]),
        *_work_lines(report.get("costs", {}), limits),
        "",
        "passes that changed something",
        *(f"  {p['name']:<22} {p['seconds']:6.2f} s" for p in report["passes"] if p["changed"]),
    ]


def _row_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each op's row, and below it the rows it was preferred to."""
    lines = []
    for row in rows:
        lines.append(f"  {row['op']:<18} x{row['count']:<4} {row['row']}")
        over = row.get("passed_over", [])
        lines += [f"  {'':<24} over {each['row']}: {each['reason']}" for each in over]
    return lines


def _work_lines(costs: Mapping[str, Any], limits: Limits | None) -> list[str]:
    """The work of a decode step and of a prefill; nothing for programs of another form."""
    lines = []
    roofline = Roofline(costs, limits)
    known = set(STEPS["decode step"])
    texts = " ".join(group["bytes"] + group["flops"] for group in costs.get("groups", []))
    if not costs or set(re.findall(r"[a-z_]\w*", texts)) - known - {"min", "max"}:
        return []
    for name, sizes in STEPS.items():
        lines += ["", *step_lines(roofline, f"work of a {name}", sizes)]
    return lines + (limit_notes(limits) if limits else [])


def _result_lines(report: Mapping[str, Any]) -> list[str]:
    graph, kernels, model = report["graph"], report["kernels"], report["model"]
    fusions = ", ".join(f"{name} x{count}" for name, count in graph["fusions"].items())
    tiled = sum(bool(kernel["tile"]) for kernel in kernels)
    captured, final = graph["captured_nodes"], graph["final_nodes"]
    return [
        f"  weights      {size_text(report['weight_bytes'])} "
        f"(the source holds {size_text(report['source_bytes'])})",
        *weight_lines(report.get("weights", {})),
        *expansion_lines(kernels),
        f"  activations  {model.get('activations', 'f32')}, cache {model.get('kv_dtype', 'none')}",
        f"  graph        {captured} ops captured, {final} after passes",
        f"  fusions      {fusions or 'none'}",
        f"  kernels      {len(kernels)} for {', '.join(report['isas'])}, {tiled} of chosen tile",
        f"  step memory  {_memory_text(report['memory'])}",
        *host_lines(report.get("host_ops", {})),
    ]


def weight_lines(weights: Mapping[str, Any]) -> list[str]:
    """Types of few bits, and what of the checkpoint is otherwise in the artifact."""
    forms = weights.get("forms", {})
    few = {name: form for name, form in forms.items() if name not in ("f32", "bf16", "f16")}
    texts = [f"{n} x{form['count']} ({size_text(form['bytes'])})" for n, form in few.items()]
    wide = [f"{change} x{count}" for change, count in weights.get("expanded", {}).items()]
    rounded = [f"{name}: {error:.2%}" for name, error in weights.get("rounding", {}).items()]
    return [
        *([f"  kept as      {', '.join(texts)}"] if texts else []),
        *([f"  rounded      {', '.join(rounded)} of a matrix at most"] if rounded else []),
        *([f"  expanded     {', '.join(wide)}"] if wide else []),
        *(f"  note         {note}" for note in weights.get("notes", [])),
    ]


def host_lines(host_ops: Mapping[str, int]) -> list[str]:
    """What the target has no kernel for: worth a line of its own, as it is slow."""
    names = ", ".join(f"{op} x{count}" for op, count in host_ops.items())
    return [f"  on the host  {names} (slow; --strict refuses them)"] if names else []


def _cost_lines(report: Mapping[str, Any]) -> list[str]:
    seconds = report["seconds"]
    stages = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    return [
        f"  compiled in  {sum(seconds.values()):.1f} s ({stages})",
        f"  peak memory  {size_text(report['peak_rss_bytes'])}",
    ]


def _memory_text(memory: Mapping[str, Any]) -> str:
    """``3.4 MB for tokens=512 (361.5 MB if no buffer were reused)``"""
    symbols = memory.get("symbols", list(TYPICAL))
    arena = parse(memory["arena_text"], symbols)
    unshared = parse(memory["unshared_text"], symbols)
    values = {name: TYPICAL.get(name, 512) for name in symbols}
    shown = ", ".join(f"{name}={values[name]}" for name in symbols if name in arena.symbols)
    return (
        f"{size_text(arena.evaluate(values))}{f' for {shown}' if shown else ''} "
        f"({size_text(unshared.evaluate(values))} if no buffer were reused)"
    )


def _tile_lines(kernels: list[Mapping[str, Any]]) -> list[str]:
    """Tiled kernels by function and size, so that the variants of one stand together."""
    lines = []
    for kernel in kernels:
        constants, function = kernel["constants"], kernel["source"].rpartition(".")[2]
        size = "x".join(str(constants[name]) for name in "NK" if name in constants)
        lines.append(f"  {function:<18} {size:<11} {kernel['tile']}")
    tiled = [line for line, kernel in zip(lines, kernels, strict=True) if kernel["tile"]]
    return sorted(tiled, key=_natural)


def _natural(text: str) -> list[tuple[int, str]]:
    """Numbers in a text in the order of their values: BLOCK_M=4 before BLOCK_M=16."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]
