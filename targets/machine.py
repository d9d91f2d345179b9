"""The machine as a doctor sees it: files, outputs of tools, variables, libraries.

`ThisMachine` reads what is here; `RecordedMachine` answers from a record that `Recorder` made, so a
machine can be looked at elsewhere. Run-time face: the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol

from ..errors import SglkError

Verdict = Literal["ok", "note", "warn", "fail"]
TIMEOUT = 20.0
"""Seconds that a tool may take."""


class Machine(Protocol):
    """None: there is no such thing here."""

    def read(self, path: str) -> str | None:
        """The text of a file."""

    def names(self, pattern: str) -> list[str]:
        """Paths that match, in order: ``/dev/xpu[0-9]*``."""

    def may_use(self, path: str) -> bool:
        """Whether this process may read and write a device node."""

    def output(self, *command: str) -> str | None:
        """What a tool prints; "" when it fails."""

    def variable(self, name: str) -> str | None:
        """An environment variable."""

    def numbers(self, library: str, function: str, count: int) -> list[int] | None:
        """``int function(uint32_t*, ...)`` of a shared library; [] when it fails or has none."""

    def system_call(self, *arguments: int) -> int:
        """What Linux answers to a system call; -1: no."""

    def package(self, name: str) -> str | None:
        """The version of an installed Python package."""

    def number_of_cores(self) -> int:
        """Cores that this process may run on."""


@dataclass(frozen=True)
class Finding:
    """What a check saw (evidence), what it means, and what to do about it."""

    verdict: Verdict
    evidence: str
    remedy: str = ""


@dataclass(frozen=True)
class Wanted:
    """What an artifact asks of a machine; without one nothing is asked."""

    isas: tuple[str, ...] = ()
    weight_bytes: int = 0


Probe = Callable[[Machine, Wanted], Finding | None]
"""None: nothing to say here."""


@dataclass(frozen=True)
class Check:
    """One question. ``needs`` names a check that must not have failed."""

    name: str
    probe: Probe
    needs: str = ""


class ThisMachine:
    """Implements `Machine` for where we are."""

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return None

    def names(self, pattern: str) -> list[str]:
        return sorted(str(path) for path in Path("/").glob(pattern.lstrip("/")))

    def may_use(self, path: str) -> bool:
        return os.access(path, os.R_OK | os.W_OK)

    def output(self, *command: str) -> str | None:
        if shutil.which(command[0]) is None:
            return None
        try:
            run = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return "" if run.returncode else run.stdout.decode(errors="replace")

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def numbers(self, library: str, function: str, count: int) -> list[int] | None:
        try:
            call = getattr(ctypes.CDLL(library), function)
        except OSError:
            return None
        except AttributeError:
            return []
        values = [ctypes.c_uint32() for _ in range(count)]
        failed = int(call(*(ctypes.byref(value) for value in values)))
        return [] if failed else [value.value for value in values]

    def system_call(self, *arguments: int) -> int:
        return int(ctypes.CDLL(None).syscall(*arguments))

    def package(self, name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    def number_of_cores(self) -> int:
        return len(os.sched_getaffinity(0))


@dataclass
class Recorder:
    """Asks a machine and keeps every answer, by question."""

    machine: Machine
    answers: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.machine, name)

        def ask(*arguments: Any) -> Any:
            answer = self.answers[_question(name, arguments)] = method(*arguments)
            return answer

        return ask

    def as_text(self) -> str:
        return json.dumps(self.answers, indent=1, sort_keys=True) + "\n"


class RecordedMachine:
    """Answers what was recorded; to any other question: there is no such thing."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)

    @staticmethod
    def parse(text: str, where: str) -> RecordedMachine:
        try:
            answers = json.loads(text)
        except ValueError as error:
            raise SglkError(f"{where}: expected a record in JSON, got {error}") from error
        if not isinstance(answers, dict):
            raise SglkError(f"{where}: expected questions and answers, got {type(answers)}")
        return RecordedMachine(answers)

    def _ask(self, name: str, *arguments: Any, default: Any = None) -> Any:
        return self.answers.get(_question(name, arguments), default)

    def read(self, path: str) -> str | None:
        return self._ask("read", path)  # type: ignore[no-any-return]

    def names(self, pattern: str) -> list[str]:
        return self._ask("names", pattern, default=[])  # type: ignore[no-any-return]

    def may_use(self, path: str) -> bool:
        return bool(self._ask("may_use", path, default=False))

    def output(self, *command: str) -> str | None:
        return self._ask("output", *command)  # type: ignore[no-any-return]

    def variable(self, name: str) -> str | None:
        return self._ask("variable", name)  # type: ignore[no-any-return]

    def numbers(self, library: str, function: str, count: int) -> list[int] | None:
        return self._ask("numbers", library, function, count)  # type: ignore[no-any-return]

    def system_call(self, *arguments: int) -> int:
        return int(self._ask("system_call", *arguments, default=-1))

    def package(self, name: str) -> str | None:
        return self._ask("package", name)  # type: ignore[no-any-return]

    def number_of_cores(self) -> int:
        return int(self._ask("number_of_cores", default=1))


def _question(name: str, arguments: Sequence[Any]) -> str:
    """``read /proc/cpuinfo``."""
    return " ".join(map(str, (name, *arguments)))


def examine(machine: Machine, checks: Sequence[Check], wanted: Wanted) -> list[tuple[str, Finding]]:
    """Findings by name, in order; a check whose need failed is passed over."""
    found: list[tuple[str, Finding]] = []
    failed: set[str] = set()
    for check in checks:
        if check.needs in failed:
            failed.add(check.name)
            continue
        finding = check.probe(machine, wanted)
        if finding is not None:
            found.append((check.name, finding))
            failed |= {check.name} if finding.verdict == "fail" else set()
    return found


def version(text: str) -> tuple[int, ...]:
    """``5.0.21.26`` as numbers.

    >>> version("5.0.21.26") >= version("5.0.21")
    True
    """
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
