"""``sglk show model.sglk``: the manifest in short, or one of the forms inside as text."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..targets.artifact import Artifact, Buffer
from ..targets.dim_code import parse
from .limits import read_limits
from .report import report_lines, size_text


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Print what an artifact holds: in short, or one of its forms as text."
    )
    parser.add_argument("artifact", help="an .sglk file or folder")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--graph", action="store_true", help="the graph, legal for its target")
    form.add_argument("--program", action="store_true", help="kernel calls on planned buffers")
    form.add_argument("--kernels", action="store_true", help="kernels, constants, tile reasons")
    form.add_argument("--onnx", metavar="FILE", help="write the graph as an ONNX model")
    form.add_argument("--report", action="store_true", help="what the compiler decided and why")
    parser.add_argument(
        "--limits", metavar="FILE", help="with --report: measured limits of a machine"
    )
    parser.add_argument(
        "--weights",
        metavar="MODEL",
        help="with --onnx: the model that was compiled, whose weights go into FILE.data",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    with Artifact.open(options.artifact) as artifact:
        if options.graph:
            sys.stdout.write(artifact.read("graph.txt").decode())
        elif options.onnx:
            print(_write_onnx(artifact, Path(options.onnx), options.weights))
        elif options.program:
            for entry in artifact.entries:
                sys.stdout.write(artifact.program(entry).as_text())
        elif options.kernels:
            print("\n".join(_kernel_lines(_json(artifact, "kernels.json"))))
        elif options.report:
            limits = read_limits(Path(options.limits)) if options.limits else None
            print("\n".join(report_lines(_json(artifact, "report.json"), limits)))
        else:
            print("\n".join(_summary(artifact)))
    return 0


def _write_onnx(artifact: Artifact, path: Path, weights: str | None) -> str:
    """Without weights the parameters are inputs of the model."""
    from ..frontend.onnx.export import save_model
    from ..ir.parser import parse_graph

    graph = parse_graph(artifact.read("graph.txt").decode())
    model = save_model(graph, path, _reader(weights) if weights else None)
    nodes, kinds = len(model.graph.node), len(model.functions)
    return f"{path}: {nodes} nodes, {kinds} local functions, {len(model.graph.input)} inputs"


def _reader(weights: str) -> Callable[[str], Any]:
    from ..frontend import load_model
    from ..frontend.model_files import open_model

    path = Path(weights)
    is_program = path.suffix in (".onnx", ".pt2")
    return load_model(path).weights.read if is_program else open_model(path).source.read


def _json(artifact: Artifact, name: str) -> Any:
    return json.loads(artifact.read(name))


def _kernel_lines(records: list[dict[str, Any]]) -> list[str]:
    lines = []
    for record in records:
        lines.append(f"{record['symbol']}  ({record['source']})")
        arguments = ", ".join(f"{name}: {kind}" for name, kind in record["signature"].items())
        constants = " ".join(f"{name}={value}" for name, value in record["constants"].items())
        lines += [f"  arguments  {arguments}", f"  constants  {constants}"]
        if record["tile"]:
            lines.append(f"  tile       {record['tile']}")
        lines += [f"  refused    {reason}" for reason in record["refused_tiles"]]
    return lines


def _summary(artifact: Artifact) -> list[str]:
    manifest: dict[str, Any] = artifact.manifest
    model, target = manifest["model"], manifest["target"]
    major, minor = manifest["format"]
    variants = ", ".join(v["isa"] for v in target["variants"])
    return [
        f"{artifact.path}: {model['name']} ({model['architecture']})",
        *_model_lines(model),
        f"  weights   {_weights_text(manifest['weights'])}",
        *_program_lines(artifact, target["page_size"]),
        f"  kernels   {len(target['variants'][0]['symbols'])} for {target['name']}, {variants}",
        f"  format    {major}.{minor}, made by {manifest['producer']}",
    ]


def _model_lines(model: dict[str, Any]) -> list[str]:
    """Only decoders have layers and a context."""
    if not model.get("context_length") or not model.get("num_layers"):
        return []
    return [
        f"  model     {model['num_layers']} layers, context {model['context_length']}, "
        f"vocabulary {model['vocab_size']}"
    ]


def _weights_text(weights: dict[str, Any]) -> str:
    """How many, and the bytes of each type, a shared blob counted once."""
    blobs = {weight.get("blob", name): weight for name, weight in weights.items()}.values()
    sizes: Counter[str] = Counter()
    for weight in blobs:
        sizes[weight["dtype"]] += weight["bytes"]
    kinds = ", ".join(f"{name} {size_text(size)}" for name, size in sizes.most_common())
    total = size_text(sum(sizes.values()))
    return f"{len(weights)}, {total} ({kinds})" if kinds else "none"


def _program_lines(artifact: Artifact, page_size: int) -> list[str]:
    lines = []
    for program in map(artifact.program, artifact.entries):
        text = f"  program   {program.entry}: {len(program.buckets[-1].calls)} kernel calls"
        bounds = [str(bucket.tokens_max) for bucket in program.buckets if bucket.tokens_max]
        more = f", variants for up to {', '.join(bounds)} tokens and for more" if bounds else ""
        lines.append(text + more)
        for state in program.states:
            page = _state_bytes(state, 2) - _state_bytes(state, 1)
            lines.append(f"  cache     {state.dtype}, {size_text(page / page_size)} a token")
    return lines


def _state_bytes(state: Buffer, pages: int) -> int:
    return parse(state.bytes, ["num_pages"]).evaluate({"num_pages": pages})
