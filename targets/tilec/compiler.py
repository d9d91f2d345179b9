"""The C++ compiler: ``$CXX``, one on PATH, or the one of the ``ziglang`` package."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from ...errors import LoweringError
from .isa import Isa

INCLUDE = Path(__file__).parent / "include"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-ffp-contract=off",  # an FMA only where the source says so
    "-fno-math-errno",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=default",
    "-w",  # generated text, and GCC 12 warns inside its own intrinsics
)

# -O3 turns this pass on; it gains nothing here and takes half of the time of long functions
GCC_FLAGS = ("-fno-gcse-after-reload",)


@dataclasses.dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    version: str

    @property
    def is_zig(self) -> bool:
        return "ziglang" in self.command

    @property
    def is_gcc(self) -> bool:
        """GCC takes ``tilec.h.gch`` in place of the header: a small kernel compiles 8x faster."""
        return not self.is_zig and "clang" not in self.version.lower()

    def compile_flags(self, isa: Isa) -> tuple[str, ...]:
        own = GCC_FLAGS if self.is_gcc else ()
        return (*FLAGS, *own, *(isa.zig if self.is_zig else isa.gcc), f"-I{INCLUDE}")

    def link_flags(self) -> tuple[str, ...]:
        # -nostdlib++: no kernel needs the C++ library, and zig would build it first
        return ("-shared", *(("-nostdlib++",) if self.is_zig else ()), "-lm", "-lpthread")

    def run(self, arguments: list[str], what: str) -> None:
        """Run to the end; a failure raises with the first lines of the compiler's message."""
        done = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            first = "\n  ".join((lines or done.stderr.splitlines())[:5])
            raise LoweringError(
                f"{what}: expected {self.command[0]} to succeed, got status {done.returncode}:\n"
                f"  {first}"
            )


@functools.cache
def find_compiler() -> Compiler:
    """The compiler that builds kernels here."""
    candidates: list[list[str]] = []
    if os.environ.get("CXX"):
        candidates.append(_split(os.environ["CXX"]))
    candidates += [[path] for name in ("c++", "g++", "clang++") if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang"):
        candidates.append([sys.executable, "-m", "ziglang", "c++"])
    for command in candidates:
        version = _version(command)
        if version:
            return Compiler(tuple(command), version)
        if os.environ.get("CXX"):
            raise LoweringError(f"CXX: expected a C++ compiler, got {os.environ['CXX']!r}")
    raise LoweringError(
        "tilec: expected a C++ compiler, got none on PATH (install g++ or clang++, "
        "or `pip install ziglang`)"
    )


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise LoweringError(f"CXX: expected a command, got {command!r} ({error})") from error


def _version(command: list[str]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else ""
