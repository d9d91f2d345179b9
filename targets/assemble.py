"""Program, kernels, packed weights, tokenizer, report and self-test -> one artifact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.interpret import evaluate
from .artifact import ArtifactWriter
from .artifact.program import Program
from .kernel import Kernel
from .lowering import Lowering, WeightUse
from .selftest import Case, ForwardCase
from .weights import Read

Progress = Callable[[str, int, int], None]
Pack = Callable[..., Any]


@dataclass(frozen=True)
class Library:
    """Compiled kernels for one instruction set or architecture."""

    isa: str
    data: bytes


@dataclass
class Parts:
    """Everything that goes into an artifact beside the weights."""

    model: Mapping[str, object]
    target: str
    page_size: int
    program: Program
    lowering: Lowering
    libraries: Sequence[Library]
    graph_text: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Tokenizer files by name."""
    plans: Mapping[str, bytes] = field(default_factory=dict)
    """Launch plans by entry, in the form of the target's device."""
    selftest: Sequence[Case | ForwardCase] = ()
    selftest_tolerance: float = 1e-3
    selftest_pages: int = 0
    producer: str = ""


def write_artifact(
    writer: ArtifactWriter,
    parts: Parts,
    read: Read,
    pack: Pack,
    report: Callable[[], Mapping[str, object]],
    progress: Progress,
) -> None:
    """Stream everything into ``writer`` and finish it; ``report`` is asked last."""
    symbols = sorted(parts.lowering.kernels)
    variants = []
    for library in parts.libraries:
        member = f"kernels/{library.isa}.so"
        writer.add_bytes(member, library.data)
        variants.append({"isa": library.isa, "library": member, "symbols": symbols})
    entry = parts.program.entry
    writer.add_bytes(f"programs/{entry}.json", parts.program.to_json())
    for name, plan in parts.plans.items():
        writer.add_bytes(f"plans/{name}.plan", plan)
    writer.add_bytes("kernels.json", _json(kernel_records(parts.lowering)))
    writer.add_bytes("graph.txt", parts.graph_text.encode())
    for name, data in parts.files.items():
        writer.add_bytes(f"tokenizer/{name}", data)
    if parts.selftest:
        _write_selftest(writer, parts)
    weights = write_weights(writer, parts.lowering.weights.values(), read, pack, progress)
    writer.add_bytes("report.json", _json(report()))
    writer.finish(
        {
            "format": [1, 0],
            "features": [],
            "producer": parts.producer,
            "model": dict(parts.model),
            "target": {"name": parts.target, "page_size": parts.page_size, "variants": variants},
            "programs": {entry: f"programs/{entry}.json"},
            "plans": {name: f"plans/{name}.plan" for name in parts.plans},
            "kernels": "kernels.json",
            "weights": weights,
            "shards": {"ranks": 1, "rank": 0, "spec": {}, "collectives": []},
        }
    )


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode()


def kernel_records(lowering: Lowering) -> list[dict[str, object]]:
    """What each kernel is and why its tile was chosen."""
    return [
        _kernel_record(symbol, kernel, lowering)
        for symbol, kernel in sorted(lowering.kernels.items())
    ]


def _kernel_record(symbol: str, kernel: Kernel, lowering: Lowering) -> dict[str, object]:
    choice = lowering.tiles.get(symbol)
    return {
        "symbol": symbol,
        "source": kernel.function,
        "signature": dict(kernel.signature),
        "constants": dict(kernel.constants),
        "tile": choice.reason() if choice else "",
        "refused_tiles": list(choice.refused) if choice else [],
    }


def write_weights(
    writer: ArtifactWriter, uses: Iterable[WeightUse], read: Read, pack: Pack, progress: Progress
) -> dict[str, dict[str, object]]:
    """Evaluate, pack and stream each weight; returns the manifest's entries."""
    records: dict[str, dict[str, object]] = {}
    todo = list(uses)
    for done, use in enumerate(todo):
        (array,) = evaluate([use.value], read)
        packed = pack(use.name, array, use.value.type.dtype, use.layout)
        blob = writer.add_blob([packed.data])
        records[use.name] = {
            "blob": blob,
            "bytes": writer.blob_bytes(blob),
            "dtype": use.value.type.dtype.name,
            "shape": list(use.value.type.concrete({})),
            "layout": use.layout,
            "sections": {name: list(span) for name, span in packed.sections.items()},
            "sha256": blob.rpartition("/")[2],
        }
        progress("packing weights", done + 1, len(todo))
    return records


def _write_selftest(writer: ArtifactWriter, parts: Parts) -> None:
    cases = [_case_record(writer, i, case) for i, case in enumerate(parts.selftest)]
    record = {
        "num_pages": parts.selftest_pages,
        "tolerance": parts.selftest_tolerance,
        "cases": cases,
    }
    writer.add_bytes("selftest.json", _json(record))


def _case_record(
    writer: ArtifactWriter, number: int, case: Case | ForwardCase
) -> dict[str, object]:
    """A step has small integer inputs, inline; every other array is a member of its own."""
    folder = f"selftest/{number}"
    if isinstance(case, ForwardCase):
        return {
            "name": case.name,
            "inputs": {n: _array(writer, f"{folder}/{n}", a) for n, a in case.inputs.items()},
            "outputs": {n: _array(writer, f"{folder}/{n}", a) for n, a in case.outputs.items()},
        }
    logits = _array(writer, f"{folder}/logits", case.logits)
    return {"name": case.name, "inputs": case.inputs, "outputs": {"logits": logits}}


def _array(writer: ArtifactWriter, member: str, array: np.ndarray) -> dict[str, object]:
    plain = np.ascontiguousarray(array)
    writer.add_bytes(member, plain.tobytes())
    return {"member": member, "dtype": plain.dtype.name, "shape": list(plain.shape)}
