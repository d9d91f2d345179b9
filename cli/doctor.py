"""``sglk doctor [ARTIFACT]``: is this machine ready, and if not, what to do."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ..errors import SglkError
from ..targets.artifact import Artifact
from ..targets.machine import (
    Check,
    Finding,
    Machine,
    RecordedMachine,
    Recorder,
    ThisMachine,
    Wanted,
    examine,
)
from ..targets.registry import known_targets, open_device

OURS = ("cpu", "cuda", "kunlun")
MARKS = {"ok": "ok  ", "note": "note", "warn": "WARN", "fail": "FAIL"}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Check whether this machine is ready to run artifacts.",
        epilog="Exit status 1: something that a run needs is missing.",
    )
    parser.add_argument("artifact", nargs="?", help="check that it runs here")
    parser.add_argument("--target", metavar="NAME", help="chip (default: the artifact's, else cpu)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--record", metavar="FILE", help="write down what was read, for a look elsewhere"
    )
    parser.add_argument("--replay", metavar="FILE", help="look at a record instead of this machine")
    return parser


def run(options: argparse.Namespace) -> int:
    target, wanted = _wanted(options)
    checks = checks_of(target)
    machine = _machine(options)
    recorder = Recorder(machine)
    found = examine(cast(Machine, recorder), checks, wanted)
    if options.record:
        Path(options.record).write_text(recorder.as_text())
    is_ready = not any(finding.verdict == "fail" for _, finding in found)
    if options.json:
        print(json.dumps(as_record(target, is_ready, found), indent=1))
    else:
        print("\n".join(lines(target, is_ready, found)))
    return 0 if is_ready else 1


def _wanted(options: argparse.Namespace) -> tuple[str, Wanted]:
    """The target, and what the artifact asks of it."""
    if options.artifact is None:
        return options.target or "cpu", Wanted()
    with Artifact.open(options.artifact) as artifact:
        target = cast(dict[str, Any], artifact.manifest["target"])
        if options.target not in (None, target["name"]):
            raise SglkError(
                f"{options.artifact}: expected an artifact for {options.target}, "
                f"got one for {target['name']}"
            )
        isas = tuple(str(variant["isa"]) for variant in target["variants"])
        size = artifact.weight_bytes(artifact.weights)
    return str(target["name"]), Wanted(isas, size)


def checks_of(target: str) -> Sequence[Check]:
    """A chip's checks: our own are modules, a plug-in's device may have an attribute ``checks``."""
    if target in OURS:
        module = importlib.import_module(f"..targets.{target}.device.doctor", __package__)
        return cast("Sequence[Check]", module.CHECKS)
    if target not in known_targets():
        known = ", ".join(name for name in known_targets() if name != "emulator")
        raise SglkError(f"--target: expected one of {known}, got {target!r}")
    return tuple(getattr(open_device(target), "checks", ()))


def _machine(options: argparse.Namespace) -> Machine:
    if options.replay is None:
        return ThisMachine()
    return RecordedMachine.parse(Path(options.replay).read_text(), options.replay)


def lines(target: str, is_ready: bool, found: Sequence[tuple[str, Finding]]) -> list[str]:
    """One line of evidence for each check, and what to do below it."""
    width = max((len(name) for name, _ in found), default=0)
    text = []
    for name, finding in found:
        text.append(f"{MARKS[finding.verdict]} {name:{width}}  {finding.evidence}")
        if finding.remedy:
            text.append(f"     {'':{width}}  -> {finding.remedy}")
    warned = sum(finding.verdict == "warn" for _, finding in found)
    ending = f" ({warned} warnings)" if warned and is_ready else ""
    return [*text, f"{target}: {'ready' if is_ready else 'not ready'}{ending}"]


def as_record(
    target: str, is_ready: bool, found: Sequence[tuple[str, Finding]]
) -> dict[str, object]:
    """What ``--json`` prints."""
    return {
        "target": target,
        "ready": is_ready,
        "checks": [{"name": name, **vars(finding)} for name, finding in found],
    }
