"""Kernels of these tests are built once per session and ISA, all in one parallel build."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglk.targets.kernels.ttir import to_ttir
from sglk.targets.tilec import CppKernel, build, isa_named, isa_supported, translate
from sglk.targets.tilec.run import Library, load

KINDS = {
    np.dtype(np.float32): "fp32",
    np.dtype(np.float16): "fp16",
    np.dtype(np.uint16): "bf16",
    np.dtype(np.uint8): "u8",
    np.dtype(np.int8): "i8",
    np.dtype(np.int32): "i32",
}
MACHINES = [name for name in ("x86_64_v4", "x86_64_v3") if isa_supported(name)] or ["generic"]


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"*{KINDS[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    path = Path(__file__).with_name("tilec_kernels.py")
    spec = importlib.util.spec_from_file_location("tilec_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tilec_kernels"] = module  # Triton looks a kernel's globals up there
    spec.loader.exec_module(module)
    return module


Launch = Callable[..., None]


class Launcher:
    """`launch(fn, grid, constants, **arguments)`; bfloat16 arrays are given as uint16 bits."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.built: dict[str, tuple[CppKernel, Library]] = {}

    def __call__(
        self, fn: Any, grid: tuple[int, ...], constants: Mapping[str, object], **args: Any
    ) -> None:
        text = to_ttir(fn, {name: _kind(v) for name, v in args.items()}, constants)
        if text not in self.built:
            kernel = translate(text, fn.__name__)
            self.built[text] = kernel, load(build([kernel], isa_named(self.machine)))
        kernel, library = self.built[text]
        library.launch(kernel, [args[name] for name in fn.arg_names if name in args], grid)


@pytest.fixture(scope="session", params=MACHINES)
def launch(request: pytest.FixtureRequest) -> Launcher:
    """One launcher per machine this one can play: results must hold on each."""
    return Launcher(request.param)


@pytest.fixture(scope="session")
def launchers() -> list[Launcher]:
    return [Launcher(name) for name in MACHINES]


@pytest.fixture(scope="session")
def launcher_for() -> type[Launcher]:
    return Launcher
