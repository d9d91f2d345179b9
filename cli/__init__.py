"""The ``sglk`` command: one file per subcommand, loaded only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import SglkError

COMMANDS = {
    "compile": "compile a model into an artifact",
    "run": "answer one prompt, or chat",
    "show": "print an artifact's forms as text",
    "opt": "run passes on a graph in text form",
    "verify": "check an artifact's hashes and run its self-test",
    "bench": "measure an artifact on this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="sglk", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"sglk {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    known, rest = parser.parse_known_args(arguments[:1])
    return run_command(str(known.command), [*rest, *arguments[1:]])


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Load the subcommand's module and run it; faults of the user's input become one sentence."""
    module = importlib.import_module(f".{name}", __name__)
    parser: argparse.ArgumentParser = module.make_parser()
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.parse_args(arguments)
    try:
        return int(module.run(options))
    except SglkError as error:
        if options.debug:
            raise
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left (such as ``| head``): end quietly, with nothing left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
