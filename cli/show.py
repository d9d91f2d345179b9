"""``sglk show model.sglk``: the manifest in short, or one of the forms inside as text."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ..targets.artifact import Artifact
from .report import report_lines, size_text


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglk show", description="Print what an artifact holds.")
    parser.add_argument("artifact", help="an .sglk file or folder")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--graph", action="store_true", help="the graph, legal for its target")
    form.add_argument("--program", action="store_true", help="kernel calls on planned buffers")
    form.add_argument("--kernels", action="store_true", help="kernels, constants, tile reasons")
    form.add_argument("--report", action="store_true", help="what the compiler decided and why")
    return parser


def run(options: argparse.Namespace) -> int:
    with Artifact.open(options.artifact) as artifact:
        if options.graph:
            sys.stdout.write(artifact.read("graph.txt").decode())
        elif options.program:
            for entry in artifact.entries:
                sys.stdout.write(artifact.program(entry).as_text())
        elif options.kernels:
            print("\n".join(_kernel_lines(json.loads(artifact.read("kernels.json")))))
        elif options.report:
            print("\n".join(report_lines(json.loads(artifact.read("report.json")))))
        else:
            print("\n".join(_summary(artifact)))
    return 0


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
    weights = sum(w["bytes"] for w in {w["blob"]: w for w in manifest["weights"].values()}.values())
    variants = ", ".join(v["isa"] for v in target["variants"])
    return [
        f"{artifact.path}: {model['name']} ({model['architecture']})",
        f"  format {major}.{minor}, made by {manifest['producer']}",
        f"  target {target['name']} ({variants}), pages of {target['page_size']} tokens",
        f"  {len(manifest['weights'])} weights, {size_text(weights)}, {model['dtype']}, {model['quant']}",
        f"  context {model['context_length']}, vocabulary {model['vocab_size']}, "
        f"{model['num_layers']} layers",
        f"  entries {', '.join(artifact.entries)}; {len(target['variants'][0]['symbols'])} kernels",
    ]
