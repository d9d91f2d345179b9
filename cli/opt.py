"""``sglk opt graph.txt -p "canonicalize,fuse-add-rmsnorm"``: passes on a graph in text form."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SglkError, VerifyError

if TYPE_CHECKING:
    from ..ir.graph import Graph


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Run passes on a graph in text form and print the result.",
        epilog='for example: sglk show model.sglk --graph | sglk opt - -p "fold-constants"',
    )
    parser.add_argument("graph", nargs="?", help="file with a graph, or - for standard input")
    parser.add_argument(
        "-p",
        "--passes",
        metavar="PASSES",
        help="comma-separated, with options in braces: flat-tokens{page_size=16}; without it the "
        "graph is only checked and printed",
    )
    parser.add_argument("--list", action="store_true", help="list the passes and stop")
    return parser


def run(options: argparse.Namespace) -> int:
    from ..ir.verify import verify
    from ..passes.opt import parse_pipeline
    from ..passes.pipeline import run_pipeline

    if options.list:
        print("\n".join(list_lines()))
        return 0
    passes = None if options.passes is None else parse_pipeline(options.passes)
    graph = _read_graph(options.graph)
    verify(graph)
    if passes is not None:
        run_pipeline(graph, passes)
    sys.stdout.write(graph.as_text())
    return 0


def _read_graph(name: str | None) -> Graph:
    from ..ir.parser import parse_graph

    if name is None:
        raise SglkError("graph: expected a file, or - for standard input (--list needs none)")
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
    except OSError as error:
        raise SglkError(f"{name}: cannot read the graph: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SglkError(f"{name}: expected a graph in text form, got {error.reason}") from error
    try:
        return parse_graph(text)
    except VerifyError as error:
        raise SglkError(f"{'standard input' if name == '-' else name}: {error}") from error


def list_lines() -> list[str]:
    """Every pass with the first line of its file, and its options with their defaults."""
    from ..ir.printer import attribute_text
    from ..passes import opt as _opt  # noqa: F401  (loads every pass)
    from ..passes.base import PASSES

    lines = []
    for name, kind in sorted(PASSES.items()):
        doc = sys.modules[kind.__module__].__doc__ or ""
        lines.append(f"{name:<22} {doc.strip().splitlines()[0]}")
        fields = [f"{f.name}={attribute_text(f.default)}" for f in dataclasses.fields(kind)]
        lines += [f"{'':<22} options: {', '.join(fields)}"] if fields else []
    return lines
