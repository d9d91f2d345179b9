"""The compile report as text: the summary after a compile, and the whole of it for ``sglk show``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def size_text(count: float) -> str:
    """Bytes for people: ``98.4 MB``."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def summary_lines(path: Path, report: Mapping[str, Any]) -> list[str]:
    """What a compile ends with."""
    seconds = report["seconds"]
    stages = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    return [
        f"{path}: {size_text(path.stat().st_size) if path.is_file() else 'folder'}",
        *_model_lines(report),
        f"  peak memory    {size_text(report['peak_rss_bytes'])}",
        f"  seconds        {sum(seconds.values()):.1f} ({stages})",
    ]


def _model_lines(report: Mapping[str, Any]) -> list[str]:
    graph = report["graph"]
    fusions = ", ".join(f"{name} x{count}" for name, count in graph["fusions"].items())
    memory = report["memory"]
    return [
        f"  weights        {size_text(report['weight_bytes'])} "
        f"(the source holds {size_text(report['source_bytes'])})",
        f"  graph          {graph['captured_nodes']} ops captured, {graph['final_nodes']} after passes",
        f"  fusions        {fusions or 'none'}",
        f"  kernels        {len(report['kernels'])} for {', '.join(report['isas'])}",
        f"  step memory    {memory['arena_text']} (without reuse {memory['unshared_text']})",
        *(f"  self-test      {line}" for line in report.get("selftest", [])),
    ]


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """The whole report."""
    lines = [f"{report['model']['name']} for {report['target']}", *_model_lines(report), "", "rows"]
    lines += [f"  {r['op']:<18} x{r['count']:<4} {r['row']}" for r in report["rows"]]
    lines += ["", "tiles"]
    lines += [f"  {k['symbol']}: {k['tile']}" for k in report["kernels"] if k["tile"]]
    lines += ["", "passes"]
    lines += [f"  {p['name']:<26} {p['seconds']:.2f} s" for p in report["passes"] if p["changed"]]
    return lines
