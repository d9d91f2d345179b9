"""The ``sglk`` command: one file per subcommand, loaded only when it is asked for."""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from .. import __version__, knobs
from ..errors import SglkError

COMMANDS = {
    "compile": "compile a model into an artifact",
    "run": "answer one prompt, or chat",
    "serve": "answer over HTTP, by OpenAI's API",
    "show": "print an artifact's forms as text",
    "opt": "run passes on a graph in text form",
    "plan": "print what fits into a memory budget",
    "sim": "replay a trace of requests without a device",
    "verify": "check an artifact's hashes and run its self-test",
    "tune": "measure kernels on a chip, for the next compile to choose by",
    "bench": "measure an artifact on this machine",
    "finish": "add kernels that only a vendor's toolchain can make",
    "doctor": "check whether this machine is ready",
    "conformance": "check that a chip does what compiler and runtime rely on",
}
WITHOUT_BLAS = {"run", "serve"}
"""These multiply no matrices in NumPy; starting its threads takes long on a busy machine."""
DESCRIPTION = "Compile a language model for a chip ahead of time, and run it."

LOGGED = (
    ("sglk",),
    ("sglk.passes",),
    ("sglk.targets.cpu.build", "sglk.targets.tilec"),
    ("sglk.targets.cpu.device", "sglk.targets.cuda.device"),
)
"""Loggers that each level of ``SGLK_DEBUG`` opens."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="sglk", description=DESCRIPTION, epilog="sglk COMMAND --help says more about each."
    )
    parser.add_argument("--version", action="version", version=f"sglk {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    known, rest = parser.parse_known_args(arguments[:1])
    return run_command(str(known.command), [*rest, *arguments[1:]])


def run_command(name: str, arguments: Sequence[str], prog: str = "") -> int:
    """Load the subcommand's module and run it; what the user can act on becomes one sentence."""
    prog = prog or f"sglk {name}"
    is_debugging = "--debug" in arguments  # also for faults before the options are read
    try:
        _log_to_stderr(knobs.get().debug)
        return _run(name, arguments, prog)
    except KeyboardInterrupt:
        print(f"\n{prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left (such as ``| head``): end quietly.
        _discard_output()
        return 141
    except (SglkError, OSError, ModuleNotFoundError, MemoryError) as error:
        if is_debugging or _is_ours(error):
            raise
        notes = getattr(error, "__notes__", [])
        print("\n".join([f"{prog}: {_sentence(error)}", *notes]), file=sys.stderr)
        _discard_output()
        return 1


def _run(name: str, arguments: Sequence[str], prog: str) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a poor locale costs characters, not the answer
    module = _imported(name)
    parser: argparse.ArgumentParser = module.make_parser()
    parser.prog = prog
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    status = int(module.run(parser.parse_intermixed_args(arguments)))
    sys.stdout.flush()
    return status


def _imported(name: str) -> ModuleType:
    """The subcommand's module; looking for garbage among what imports make would find nothing."""
    if name in WITHOUT_BLAS and "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f".{name}", __name__)
    finally:
        if was_enabled:
            gc.enable()


def _log_to_stderr(debug: int) -> None:
    """``SGLK_DEBUG``: 1 stages, 2 also passes, 3 also kernels, 4 also the steps of a device."""
    logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stderr)
    for level, names in enumerate(LOGGED, start=1):
        for name in names if debug >= level else ():
            logging.getLogger(name).setLevel(logging.INFO if level == 1 else logging.DEBUG)


def _is_ours(error: BaseException) -> bool:
    """A module of sglk that is missing is no extra that the user left out."""
    return isinstance(error, ModuleNotFoundError) and str(error.name).startswith("sglk")


def _sentence(error: BaseException) -> str:
    match error:
        case ModuleNotFoundError():
            return (
                f"expected the package {error.name}, got none "
                "(pip install 'sglk[compile]' for what the compiler needs)"
            )
        case MemoryError():
            return "out of memory (close other programs, or take a smaller model)"
        case OSError(filename=None):
            return f"cannot write the output: {error.strerror or error}"
        case OSError():
            return f"{error.filename}: {error.strerror or error}"
    return str(error)


def _discard_output() -> None:
    """Nothing is left to be flushed at exit into an output that takes nothing."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
