"""The player compiled with hand-written kernels, and artifacts made of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
from sglk.targets.artifact import (
    FORMAT,
    Arg,
    Artifact,
    ArtifactWriter,
    Bucket,
    Buffer,
    Call,
    Program,
)
from sglk.targets.cpu.device import CpuDevice, CpuExecutable

KERNELS = """
#include <stdint.h>
#include <string.h>
#define KERNEL(name) \\
  extern "C" void name(const int64_t* a, const int32_t* grid, int64_t begin, int64_t end)
static float f32(int64_t bits) { float v; memcpy(&v, &bits, 4); return v; }
// y[i] = x[i] + w[i % 4] * scale, 3 elements per program, n in all
KERNEL(add) {
  const float *x = (const float*)a[0], *w = (const float*)a[1];
  float* y = (float*)a[2];
  for (int64_t p = begin; p < end; p++)
    for (int64_t i = 3 * p; i < 3 * p + 3 && i < a[3]; i++) y[i] = x[i] + w[i % 4] * f32(a[4]);
}
// out[0] = sum of x[0..n), one program
KERNEL(sum) {
  float total = 0;
  for (int64_t i = 0; i < a[2]; i++) total += ((const float*)a[0])[i];
  for (int64_t p = begin; p < end; p++) ((float*)a[1])[0] = total;
}
// y[i] = x[i] / s[0], one element per program
KERNEL(divide) {
  for (int64_t p = begin; p < end; p++)
    ((float*)a[2])[p] = ((const float*)a[0])[p] / ((const float*)a[1])[0];
}
// y[p] = x[n - 1 - p] + 1: reads what another thread wrote in the call before
KERNEL(reverse) {
  for (int64_t p = begin; p < end; p++)
    ((int32_t*)a[1])[p] = ((const int32_t*)a[0])[a[2] - 1 - p] + 1;
}
// y[linear id] += 1 + 10 * id0 + 100 * id1 + 1000 * id2
KERNEL(mark) {
  for (int64_t p = begin; p < end; p++) {
    int64_t x = p % grid[0], y = p / grid[0] % grid[1], z = p / grid[0] / grid[1];
    ((int32_t*)a[0])[p] += int32_t(1 + 10 * x + 100 * y + 1000 * z);
  }
}
// logits[row, v] = token of that row * 10 + v + state counter, and the counter grows
KERNEL(toy_logits) {
  const int32_t *tokens = (const int32_t*)a[0], *rows = (const int32_t*)a[1];
  for (int64_t p = begin; p < end; p++)
    for (int64_t v = 0; v < a[4]; v++)
      ((float*)a[2])[p * a[4] + v] = float(tokens[rows[p]] * 10 + v + *(const int32_t*)a[3]);
}
KERNEL(count) { for (int64_t p = begin; p < end; p++) *(int32_t*)a[0] += 1; }
KERNEL(store) { for (int64_t p = begin; p < end; p++) *(int64_t*)a[0] = a[1]; }
KERNEL(subnormal) {
  volatile float tiny = 1e-39f;
  for (int64_t p = begin; p < end; p++) ((float*)a[0])[p] = tiny * 0.5f;
}
"""
NATIVE = Path(sglk.__file__).parent / "targets" / "cpu" / "native"
WEIGHT = np.arange(4, dtype=np.float32)


def compile_library(folder: Path, source: str, *flags: str) -> Path:
    """A library of the player and the kernels in `source`."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    (folder / "kernels.cpp").write_text(source)
    command = [
        compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti",
        "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-pthread", *flags,
        str(folder / "kernels.cpp"), str(NATIVE / "player.cpp"), "-o", str(folder / "kernels.so"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "kernels.so"


@pytest.fixture(scope="session")
def library_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_library(tmp_path_factory.mktemp("kernels"), KERNELS).read_bytes()


class Toy:
    """Short ways to write programs of the hand-written kernels and artifacts of them."""

    def __init__(self, folder: Path, library: bytes) -> None:
        self.folder = folder
        self.library = library

    @staticmethod
    def buffer(kind: str, name: str, dtype: str, *shape: str, offset: str = "0") -> Buffer:
        """A buffer whose bytes follow from its shape; all types here have 4 bytes."""
        size = " * ".join([*(f"({extent})" for extent in shape), "4"])
        return Buffer(name, dtype, shape, kind, offset, size)

    @staticmethod
    def call(kernel: str, grid: str, *args: str) -> Call:
        """``call("add", "n", "buffer x", "i32 n")``; an offset follows ``" + "``."""
        x, y, z = [*grid.split("; "), "1", "1"][:3]
        parts = [arg.split(" ", 1) for arg in args]
        made = (
            Arg(kind, value) if kind[0] in "if" else Arg(kind, *value.split(" + ", 1))
            for kind, value in parts
        )
        return Call(kernel, (x, y, z), tuple(made), kernel)

    @staticmethod
    def program(
        entry: str, symbols: str, buffers: Sequence[Buffer], *buckets: Bucket, arena: str = "0"
    ) -> Program:
        """A program of buffers in any order."""
        inputs, outputs, temps, states = (
            tuple(buffer for buffer in buffers if buffer.kind == kind)
            for kind in ("input", "output", "temp", "state")
        )
        names = tuple(symbols.split())
        return Program(entry, names, inputs, outputs, temps, states, arena, buckets)

    def write(self, *programs: Program, **changes: Any) -> Path:
        """Write an artifact; `changes` replace keys of the manifest."""
        path = self.folder / "test.sglk"
        isa = changes.pop("isa", "generic")
        with ArtifactWriter(path) as writer:
            writer.add_bytes("lib/kernels.so", changes.pop("library", self.library))
            for one in programs:
                writer.add_bytes(f"programs/{one.entry}.json", one.to_json())
            blob = writer.add_blob([WEIGHT])
            weight = {"blob": blob, "bytes": 16, "dtype": "f32", "shape": [4], "layout": "dense"}
            weight |= {"sections": {}, "sha256": blob.removeprefix("weights/")}
            variant = {"isa": isa, "library": "lib/kernels.so", "symbols": []}
            model = {"name": "toy", "architecture": "toy", "vocab_size": 3, "context_length": 64}
            manifest: dict[str, Any] = {
                "format": FORMAT,
                "features": [],
                "producer": "test",
                "model": model,
                "target": {"name": "cpu", "page_size": 4, "variants": [variant]},
                "programs": {one.entry: f"programs/{one.entry}.json" for one in programs},
                "weights": {"w": weight},
            }
            writer.finish(manifest | changes)
        return path

    def load(self, *programs: Program, num_threads: int = 2, num_pages: int = 8) -> CpuExecutable:
        """Write an artifact of the programs and load it."""
        with Artifact.open(self.write(*programs)) as artifact:
            return CpuDevice().load(
                artifact, num_pages=num_pages, max_tokens=64, num_threads=num_threads
            )


@pytest.fixture
def toy(tmp_path: Path, library_bytes: bytes) -> Toy:
    return Toy(tmp_path, library_bytes)


@pytest.fixture(scope="session")
def make_toy(
    tmp_path_factory: pytest.TempPathFactory, library_bytes: bytes
) -> Callable[[str], Toy]:
    """A `Toy` in a folder of its own, for fixtures that outlive a test."""
    return lambda name: Toy(tmp_path_factory.mktemp(name), library_bytes)


@pytest.fixture(params=[1, 2, 3])
def num_threads(request: pytest.FixtureRequest) -> int:
    """One, as many as there are cores here, and more."""
    return int(request.param)
