"""``sglk opt graph.txt -p "canonicalize,fuse-add-rmsnorm"``: passes on a graph in text form."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import SglkError


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglk opt", description="Run passes on a graph in text form and print the result."
    )
    parser.add_argument("graph", help="file with a graph, or - for standard input")
    parser.add_argument("-p", "--passes", default="", help="comma-separated pass names")
    parser.add_argument("--list", action="store_true", help="list the passes and stop")
    return parser


def run(options: argparse.Namespace) -> int:
    from ..ir.parser import parse_graph
    from ..ir.verify import verify
    from ..passes.opt import parse_pipeline
    from ..passes.pipeline import run_pipeline

    graph = parse_graph(_read(options.graph))
    verify(graph)
    run_pipeline(graph, parse_pipeline(options.passes))
    sys.stdout.write(graph.as_text())
    return 0


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SglkError(f"{name}: expected a text file with a graph, got {error}") from error
