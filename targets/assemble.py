"""Program, kernels, packed weights, tokenizer, report and self-test -> one artifact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.interpret import evaluate
from .artifact import ArtifactWriter
from .artifact.expand import FEATURE as EXPANDED
from .artifact.fill import FEATURE as FILLS
from .artifact.fill import Fill
from .artifact.host_ops import FEATURE as HOST_FEATURE
from .artifact.host_ops import MEMBER as HOST_MEMBER
from .artifact.program import SLOTS, Program
from .expanded import TypeOf, stacked, write_blocks
from .kernel import Kernel
from .lowering import Lowering
from .selftest import Case, ForwardCase
from .weight_use import WeightUse
from .weights import Read

Progress = Callable[[str, int, int], None]
Pack = Callable[..., Any]


@dataclass(frozen=True)
class Library:
    """Compiled kernels for one instruction set or architecture."""

    isa: str
    data: bytes
    suffix: str = ".so"
    """Of the member: ``.pack`` for kernels that are loaded one by one."""
    resources: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What each kernel takes on the chip, by symbol, for the report."""
    members: Mapping[str, bytes] = field(default_factory=dict)
    """What else has to travel with the kernels, by member name."""


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
    members: Mapping[str, bytes] = field(default_factory=dict)
    """What else the target puts into the artifact, by member name."""
    selftest: Sequence[Case | ForwardCase] = ()
    selftest_tolerance: float = 1e-3
    selftest_pages: int = 0
    producer: str = ""
    fill: Callable[[WeightUse], tuple[Fill, int] | None] | None = None
    """How a weight is made on load, and its bytes; None: from the model's own numbers."""
    type_of: TypeOf | None = None
    """Types of stored tensors, on a target that expands blocks when it loads; None: it does not."""
    read_stored: Read | None = None
    """Stored tensors as they are; beside ``type_of``."""


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
        member = f"kernels/{library.isa}{library.suffix}"
        writer.add_bytes(member, library.data)
        for name, data in library.members.items():
            writer.add_bytes(name, data)
        variants.append({"isa": library.isa, "library": member, "symbols": symbols})
    programs = {p.entry: p for p in (parts.program, *parts.lowering.entries)}
    for entry, program in programs.items():
        writer.add_bytes(f"programs/{entry}.json", program.to_json())
    for name, plan in parts.plans.items():
        writer.add_bytes(f"plans/{name}.plan", plan)
    for name, data in parts.members.items():
        writer.add_bytes(name, data)
    records = kernel_records(parts.lowering, parts.libraries)
    writer.add_bytes("kernels.json", _json(records))
    writer.add_bytes("graph.txt", parts.graph_text.encode())
    if parts.lowering.host_ops:
        writer.add_bytes(HOST_MEMBER, _json(parts.lowering.host_ops))
    for name, data in parts.files.items():
        writer.add_bytes(f"tokenizer/{name}", data)
    if parts.selftest:
        _write_selftest(writer, parts)
    weights = write_weights(writer, parts, read, pack, progress)
    writer.add_bytes("report.json", _json(report()))
    writer.finish(
        {
            "format": [1, 0],
            "features": _features(weights.values(), parts),
            "producer": parts.producer,
            "model": dict(parts.model),
            "target": {"name": parts.target, "page_size": parts.page_size, "variants": variants},
            "programs": {entry: f"programs/{entry}.json" for entry in programs},
            "plans": {name: f"plans/{name}.plan" for name in parts.plans},
            "kernels": "kernels.json",
            "weights": weights,
            "shards": {"ranks": 1, "rank": 0, "spec": {}, "collectives": []},
        }
    )


def _features(weights: Iterable[Mapping[str, object]], parts: Parts) -> list[str]:
    """What a loader must be able to do."""
    needs = {key for weight in weights for key in weight}
    found = [name for key, name in (("fill", FILLS), ("expand", EXPANDED)) if key in needs]
    found += [HOST_FEATURE] * bool(parts.lowering.host_ops)
    return [*found, *[SLOTS] * parts.program.has_slots]


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode()


def kernel_records(lowering: Lowering, libraries: Sequence[Library]) -> list[dict[str, object]]:
    """What each kernel is, why its tile was chosen, and what it takes on each chip."""
    return [
        _kernel_record(symbol, kernel, lowering)
        | {"resources": {b.isa: b.resources[symbol] for b in libraries if symbol in b.resources}}
        for symbol, kernel in sorted(lowering.kernels.items())
    ]


def _kernel_record(symbol: str, kernel: Kernel, lowering: Lowering) -> dict[str, object]:
    choice = lowering.tiles.get(symbol)
    return {
        "symbol": symbol,
        "source": kernel.function,
        "signature": dict(kernel.signature),
        "constants": dict(kernel.constants),
        "options": dict(kernel.options),
        "tile": choice.reason() if choice else "",
        "refused_tiles": list(choice.refused) if choice else [],
    }


def write_weights(
    writer: ArtifactWriter, parts: Parts, read: Read, pack: Pack, progress: Progress
) -> dict[str, dict[str, object]]:
    """Evaluate, pack and stream each weight, or declare its fill; the manifest's entries."""
    records: dict[str, dict[str, object]] = {}
    todo = list(parts.lowering.weights.values())
    for done, use in enumerate(todo):
        made = parts.fill(use) if parts.fill else None
        content = _stored(writer, parts, use, read, pack) if made is None else _filled(*made)
        records[use.name] = {
            "dtype": use.dtype,
            "shape": list(use.shape),
            "layout": use.layout,
            **content,
        }
        progress("packing weights", done + 1, len(todo))
    return records


def _stored(
    writer: ArtifactWriter, parts: Parts, use: WeightUse, read: Read, pack: Pack
) -> dict[str, object]:
    names = stacked(use, parts.type_of) if parts.type_of else []
    if names and parts.read_stored is not None:
        return write_blocks(writer, names, parts.read_stored)
    (array,) = evaluate([use.value], read)
    packed = pack(use.name, array, use.value.type.dtype, use.layout)
    blob = writer.add_blob([packed.data])
    return {
        "blob": blob,
        "bytes": writer.blob_bytes(blob),
        "sections": {name: list(span) for name, span in packed.sections.items()},
        "sha256": blob.rpartition("/")[2],
    }


def _filled(fill: Fill, size: int) -> dict[str, object]:
    return {"fill": fill.to_json(), "bytes": size, "sections": {"w": [0, size]}}


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
