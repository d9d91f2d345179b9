"""``sglk finish ARTIFACT``: kernels that only a vendor's toolchain can make, added where it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import knobs
from ..errors import LoweringError, SglkError
from ..targets.artifact import Artifact
from ..targets.kunlun.finish import Sources, finish, read_sources
from ..targets.kunlun.toolchain import TIMEOUT, Toolchain, Versions, xpu_target


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Compile the kernels that wait for a vendor's toolchain, out of process, and "
        "write the finished artifact.",
    )
    parser.add_argument("artifact", help="an .sglk file for kunlun")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="artifact to write (default: the same file)"
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="Python of the environment that has the vendor's Triton (default: SGLK_KUNLUN_PYTHON)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=TIMEOUT,
        help=f"most time for one kernel (default: {TIMEOUT:g})",
    )
    parser.add_argument(
        "--check", action="store_true", help="say what remains and what is found, compile nothing"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    from .progress import ProgressBars

    if options.timeout <= 0:
        raise SglkError(f"--timeout: expected more than 0 s, got {options.timeout:g}")
    python = options.python or knobs.get().kunlun_python
    with Artifact.open(options.artifact) as artifact:
        sources = read_sources(artifact)
        if options.check:
            return _check(sources, python, options.artifact)
        if not python:
            raise LoweringError(
                f"{options.artifact}: no toolchain is known here\n" + _steps(sources)
            )
        output = Path(options.output or options.artifact)
        chain = Toolchain.with_python(python, timeout=options.timeout)
        with ProgressBars() as bars, chain:
            versions = finish(artifact, output, chain, bars)
    print(f"{output}: {len(sources.kernels)} kernels for {sources.arch} by {_stated(versions)}")
    return 0


def _check(sources: Sources, python: str, where: str) -> int:
    print(_steps(sources))
    if not python:
        print(f"{where}: no toolchain is known here")
        return 1
    with Toolchain.with_python(python) as chain:
        print(f"found: {_stated(chain.hello(xpu_target(sources.arch)))} at {python}")
    return 0


def _steps(sources: Sources) -> str:
    return "\n".join(sources.steps)


def _stated(versions: Versions) -> str:
    flagtree = f", FlagTree {versions.flagtree}" if versions.flagtree else ""
    return f"Triton {versions.triton}{flagtree}, Python {versions.python}"
