"""``sglk-compile MODEL --target NAME --dry-run --report report.html``: every decision, no work.

The model is captured and lowered as always, and beside it for another target to compare with; then
the report is written instead of an artifact. Weights are not needed: a config.json is enough. What
the target cannot do is listed, not refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..driver import Options, optimize
from ..errors import FrontendError, LoweringError, PassError, SglkError
from .report_page import page_text

if TYPE_CHECKING:
    from ..frontend import Captured

COMPARED = "cuda"
"""The target that others are compared with, where it is there."""
SUFFIXES = (".json", ".html")
WITH_WEIGHTS = (".gguf", ".onnx", ".pt2")
"""Files that are no config alone."""


def lowering_report(
    model: str,
    target: str,
    *,
    compare: bool = True,
    onnx: Mapping[str, Any] | None = None,
    **choices: Any,
) -> dict[str, Any]:
    """The report as data; see ``docs/lowering-report.md``. Ops without a row are in ``missing``.

    ``onnx``: what `load_model` takes for ONNX models alone, ``const`` and ``sizes``.
    """
    from ..targets.backend import known_backends

    start = time.perf_counter()
    report: dict[str, Any] = {"producer": f"sglk {__version__}", "path": str(model)}
    try:
        captured = _capture(model, onnx or {})
    except FrontendError as error:
        return report | {"error": str(error), "target": {"name": target}, "model": {}}
    report["model"] = dict(vars(captured.info))
    report |= _lowered(captured, target, choices)
    name = target.partition(":")[0]
    if compare and name != COMPARED and COMPARED in known_backends():
        report["compared"] = _compare(captured, report, choices)
    report["seconds"] = time.perf_counter() - start
    return report


def _capture(model: str, onnx: Mapping[str, Any]) -> Captured:
    from ..frontend import load_model

    path = Path(model)
    weights = [*path.glob("*.safetensors"), *path.glob("*.bin")] if path.is_dir() else []
    has_weights = bool(weights) or path.suffix in WITH_WEIGHTS
    return load_model(model, has_weights=has_weights, **onnx)


def _options(target: str, choices: Mapping[str, Any]) -> tuple[Any, Options]:
    from ..targets.backend import open_backend

    name, colon, arches = target.partition(":")
    backend = open_backend(name)
    given = {**choices, "arches": tuple(arches.split(",")) if colon else ()}
    if given.get("activations") is None:
        given["activations"] = backend.activations
    return backend, Options(**given)


def _lowered(captured: Captured, target: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Decisions for one target."""
    from ..targets.backend import Explains, facts_of
    from ..targets.decisions import decision_records
    from ..targets.lowering import entry_of, symbols_of_entry
    from ..targets.report import fusion_counts

    backend, options = _options(target, choices)
    facts = facts_of(backend, options, options.strict)
    graph, passes = optimize(captured, facts, options)
    explains = isinstance(backend, Explains)
    lowering = backend.lower(graph, facts, partial=True)
    entry = entry_of(graph)
    records = decision_records(lowering, lowering.program(entry, symbols_of_entry(graph, entry)))
    for op in records["missing"]:
        op["todo"] = advice(op["op"], backend.name)
    return {
        **records,
        "options": {name: getattr(options, name) for name in ("dtype", "activations", "quant")},
        "cache": options.cache_dtype,
        "graph": {
            "captured": len(captured.graph.nodes),
            "final": len(graph.nodes),
            "fusions": fusion_counts(graph),
        },
        "weight_bytes": sum(int(value.type.bytes) for value in graph.params),
        "passes": [record.name for record in passes.records if record.changed],
        **(backend.explain(facts) if explains else {}),
    }


def advice(op: str, target: str) -> str:
    """What to do about an op that a target has no row for."""
    from ..targets.backend import known_backends, open_backend

    others = [name for name in known_backends() if name != target]
    able = [o for o in others if op in {row.op for row in getattr(open_backend(o), "table", ())}]
    elsewhere = f"compile for {' or '.join(able)}, with rows for {op}; " if able else ""
    return f"{elsewhere}state it by other ops, or add a row to {target}'s operator table"


def _compare(
    captured: Captured, report: dict[str, Any], choices: Mapping[str, Any]
) -> dict[str, Any]:
    """The same model for the target that others are compared with, as far as it goes."""
    from ..targets.decisions import compare_records

    try:
        theirs = _lowered(captured, COMPARED, {**choices, "dtype": "bf16", "activations": None})
    except (PassError, LoweringError, SglkError) as error:
        return {"target": COMPARED, "error": str(error)}
    compare_records(report, theirs)
    return {"target": COMPARED, "arch": theirs["target"]["arch"], "error": ""}


def write_report(report: Mapping[str, Any], path: Path) -> list[Path]:
    """The page and the data beside it, whichever of the two ``path`` names."""
    if path.suffix not in SUFFIXES:
        raise SglkError(f"--report: expected a name ending in .html or .json, got {path}")
    texts = {".json": json.dumps(report, indent=1), ".html": page_text(report)}
    written = []
    for suffix in SUFFIXES:
        file = path.with_suffix(suffix)
        try:
            file.write_text(texts[suffix])
        except OSError as error:
            raise SglkError(f"--report: cannot write {file}: {error}") from error
        written.append(file)
    return written


def summary_lines(report: Mapping[str, Any], written: Sequence[Path]) -> list[str]:
    """What a dry run prints."""
    if report.get("error"):
        return [f"not captured: {report['error']}", *(f"  {path}" for path in written)]
    target, graph = report["target"], report["graph"]
    missing = report["missing"]
    lines = [
        f"{report['model']['name']} for {target['name']}:{target['arch']}, nothing compiled",
        f"  graph    {graph['captured']} ops captured, {graph['final']} after passes",
        f"  ops      {len(report['ops'])} kinds, {sum(op['count'] for op in report['ops'])} in all",
        f"  kernels  {len(report['kernels'])}",
    ]
    for bucket in report["buckets"]:
        bound = f"up to {bucket['tokens_max']}" if bucket["tokens_max"] else "more"
        lines.append(
            f"  step     {bound} tokens: {bucket['launches']} launches, "
            f"{bucket['seconds'] * 1e3:.2f} ms modelled"
        )
    lines += [
        f"  on host  {op['op']} x{op['count']}: slow; --strict refuses it"
        for op in report["on_host"]
    ]
    for op in missing:
        reasons = "; ".join(f"{over['row']}: {over['reason']}" for over in op["passed_over"])
        where = f" at {op['source']}" if op["source"] else ""
        lines.append(
            f"  missing  {op['op']} x{op['count']}{where}: {reasons or 'no row has this op'}"
        )
        lines.append(f"           {op['todo']}")
    return [*lines, *(f"  {path}" for path in written)]
