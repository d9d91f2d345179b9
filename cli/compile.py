"""``sglk-compile MODEL --target cpu -o model.sglk``, also ``sglk compile``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import knobs
from ..driver import DTYPES, KV_DTYPES, QUANTS, compile
from ..errors import SglkError
from .onnx_options import add_onnx_options, onnx_options
from .report import summary_lines

CANDIDATES = 4
"""Of each product and row count: a few minutes of compiling for a model of 8 billion parameters."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Compile a model into an artifact that the slim runtime runs.",
    )
    parser.add_argument("model", help="Hugging Face folder, .gguf or .onnx file")
    parser.add_argument(
        "--target",
        metavar="NAME[:ARCH,ARCH]",
        default="cpu",
        help="chip to compile for (default: cpu)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="artifact to write (default: the model's name.sglk)"
    )
    parser.add_argument(
        "--cpu-isa",
        metavar="NAMES",
        help="same as --target cpu:NAMES: instruction sets, comma-separated (default: native)",
    )
    parser.add_argument(
        "--no-selftest", action="store_true", help="leave out the self-test vectors and the proof"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse ops that the target has no kernel for, instead of doing them on the host",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    _add_numbers(parser)
    _add_tuning(parser)
    add_onnx_options(parser)
    _add_report(parser)
    return parser


def _add_numbers(parser: argparse.ArgumentParser) -> None:
    """What the artifact computes with."""
    parser.add_argument(
        "--dtype",
        metavar="TYPE",
        default="bf16",
        help=f"storage of unquantized matrices: {', '.join(DTYPES)} (default: bf16)",
    )
    parser.add_argument(
        "--kv-dtype",
        metavar="TYPE",
        help=f"storage of the KV cache: {', '.join(KV_DTYPES)} (default: f16; f32 with fp32)",
    )
    parser.add_argument(
        "--activations",
        metavar="TYPE",
        help="what products multiply: f32 (exact, default of the CPU), bf16 (several times faster) "
        "or int8 (faster still, for stored block types)",
    )
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="cuda: the same tokens alone and in any batch, slower (other targets always do this)",
    )
    parser.add_argument(
        "--round-weights",
        action="store_true",
        help="with bf16 or int8 activations: from 32 rows on products round weights to bf16 (and "
        "multiply bf16 instead of integers); faster prompts, but results depend on the batch",
    )
    parser.add_argument(
        "--no-handwritten",
        action="store_true",
        help="compiled kernels only, none of those written by hand",
    )
    parser.add_argument(
        "--quant",
        metavar="HOW",
        default="keep",
        help=f"stored block types: {', '.join(QUANTS)} (default: keep, exact)",
    )
    parser.add_argument(
        "--weights",
        metavar="WHICH",
        default="stored",
        help="stored (default), or dummy: random numbers made on load; a config.json is enough",
    )


def _add_tuning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tuning",
        metavar="FILE",
        default="",
        help="cuda: times measured by sglk tune, to choose kernels by before those that we ship",
    )
    parser.add_argument(
        "--candidates",
        metavar="N",
        type=int,
        nargs="?",
        default=0,
        const=CANDIDATES,
        help="cuda: put N ways to compute each product into the artifact, for sglk tune to measure "
        f"(default: {CANDIDATES})",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="decide and report only: nothing is compiled, a config.json is enough",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="with --dry-run: page to write (.html; the data goes beside it as .json)",
    )
    parser.add_argument(
        "--kunlun-config",
        metavar="FILE",
        help="facts of the Kunlun chip that replace ours, a JSON file of names and values",
    )


def run(options: argparse.Namespace) -> int:
    if options.kunlun_config is not None:
        with knobs.override(kunlun_config=options.kunlun_config):
            return _run(options)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    for name, path in (("model", options.model), ("--output", options.output)):
        if path == "":
            raise SglkError(f"{name}: expected a path, got an empty text")
    if options.dry_run:
        return _run_dry(options)
    if options.report:
        raise SglkError("--report: expected --dry-run with it (sglk show --report has the others)")
    from .progress import ProgressBars

    with ProgressBars() as bars:
        compiled = compile(
            options.model,
            target=_target(options),
            output=options.output,
            progress=None if options.quiet else bars,
            **_choices(options),
            weights=options.weights,
            candidates=options.candidates,
            selftest=not options.no_selftest,
            **onnx_options(options),
        )
    if not options.quiet:
        print("\n".join(summary_lines(compiled.path, compiled.report)))
    return 0


def _run_dry(options: argparse.Namespace) -> int:
    """1 if the target cannot run the model."""
    from .dry_run import lowering_report, summary_lines, write_report

    report = lowering_report(
        options.model, _target(options), onnx=onnx_options(options), **_choices(options)
    )
    written = write_report(report, Path(options.report)) if options.report else []
    if not options.quiet:
        print("\n".join(summary_lines(report, written)))
    return 1 if report.get("error") or report["missing"] else 0


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "dtype": options.dtype,
        "kv_dtype": options.kv_dtype,
        "activations": options.activations,
        "batch_invariant": options.batch_invariant,
        "round_weights": options.round_weights,
        "handwritten": not options.no_handwritten,
        "quant": options.quant,
        "strict": options.strict,
        "tuning": options.tuning,
    }


def _target(options: argparse.Namespace) -> str:
    if options.cpu_isa is None:
        return str(options.target)
    if options.target != "cpu":
        raise SglkError(
            f"--cpu-isa: expected --target cpu, got {options.target!r} (name one of them)"
        )
    return f"cpu:{options.cpu_isa}"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``sglk-compile``."""
    from . import run_command

    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command("compile", arguments, prog="sglk-compile")
