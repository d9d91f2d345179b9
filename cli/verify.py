"""``sglk verify model.sglk``: hashes of every part, then the self-test on this machine."""

from __future__ import annotations

import argparse

from ..runtime.selftest import run_selftest
from ..targets.artifact import Artifact


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Check every hash of an artifact and run its self-test on this machine.",
    )
    parser.add_argument("artifact", help="an .sglk file or folder")
    parser.add_argument(
        "--device", metavar="NAME", help="device to run on (default: the artifact's target)"
    )
    parser.add_argument(
        "--threads", metavar="N", type=int, help="worker threads (default: all allowed cores)"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    with Artifact.open(options.artifact) as artifact:
        artifact.verify_weights()
        print(f"{options.artifact}: all hashes are right")
        failed = 0
        for case in run_selftest(artifact, device=options.device, num_threads=options.threads):
            mark = "ok  " if case.passed else "FAIL"
            bound = f"error {case.error:.2e} (at most {case.tolerance:.0e})"
            print(f"{mark} {case.name}: {bound}")
            failed += not case.passed
    return 1 if failed else 0
