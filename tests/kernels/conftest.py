"""`launch` runs a Triton kernel on NumPy arrays: through tilec, or Triton's own interpreter.

The interpreter (TRITON_INTERPRET=1 in the environment before pytest starts) is slow and sums in
another order; it is there to tell a wrong kernel from a wrong translation.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.targets.kernels.ttir import to_ttir
from sglk.targets.tilec.build import build
from sglk.targets.tilec.compiler import find_compiler
from sglk.targets.tilec.isa import Isa, isa_named, isa_supported, native_isa
from sglk.targets.tilec.lower import CppKernel, translate
from sglk.targets.tilec.run import Library, load

Array = NDArray[Any]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class BFloat16:
    """NumPy has no bfloat16: its bits."""

    bits: NDArray[np.uint16]

    @staticmethod
    def of(values: Array) -> BFloat16:
        """Rounds to nearest even, as hardware does."""
        wide = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = wide + (np.uint32(0x7FFF) + (wide >> 16 & 1))
        return BFloat16((rounded >> 16).astype(np.uint16))

    def floats(self) -> NDArray[np.float32]:
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


def interpret(fn: Any, grid: tuple[int, ...], args: Mapping[str, Any], constants: Any) -> None:
    import torch
    import triton.language as tl

    for module in [m for n, m in sys.modules.items() if n.startswith("sglk.targets.kernels.")]:
        for name, value in vars(module).items():  # the interpreter cannot compute with these
            if isinstance(value, tl.constexpr):
                setattr(module, name, value.value)

    def tensor(value: Any) -> Any:
        if isinstance(value, BFloat16):
            return torch.from_numpy(value.bits).view(torch.bfloat16)
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    fn[grid](**{name: tensor(value) for name, value in args.items()}, **constants)


POINTERS = {"float32": "*fp32", "float16": "*fp16", "int32": "*i32", "int8": "*i8", "uint8": "*u8"}


def type_of(value: Any) -> str:
    if isinstance(value, BFloat16):
        return "*bf16"
    if isinstance(value, np.ndarray):
        return POINTERS[value.dtype.name]
    return "fp32" if isinstance(value, float) else "i32"


@dataclass(frozen=True)
class Variant:
    """A kernel for given argument types and constants."""

    fn: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(fn: Any, constants: Mapping[str, Any], args: Mapping[str, Any]) -> Variant:
        absent = {name: None for name, value in args.items() if value is None}
        types = [(n, type_of(args[n])) for n in fn.arg_names if args.get(n) is not None]
        return Variant(fn, tuple(types), tuple(sorted({**constants, **absent}.items())))

    def translate(self, symbol: str) -> CppKernel:
        return translate(to_ttir(self.fn, dict(self.signature), dict(self.constants)), symbol)


@dataclass
class Launcher:
    """Builds each kernel variant once per session; objects are kept in the kernel cache."""

    isa: Isa = field(default_factory=native_isa)
    built: dict[Variant, tuple[CppKernel, Library]] = field(default_factory=dict)

    def prepare(self, calls: Iterable[tuple[Any, Mapping[str, Any], Mapping[str, Any]]]) -> None:
        """Builds many variants at once, on all cores. A call is (fn, constants, args)."""
        if INTERPRETED:
            return
        called = dict.fromkeys(Variant.of(*call) for call in calls)
        variants = [variant for variant in called if variant not in self.built]
        if not variants:
            return
        kernels = {v: v.translate(f"{v.fn.__name__}_{i}") for i, v in enumerate(variants)}
        library = load(build(list(kernels.values()), self.isa))
        self.built |= {variant: (kernel, library) for variant, kernel in kernels.items()}

    def __call__(
        self, fn: Any, grid: tuple[int, ...], constants: Mapping[str, Any], **args: Any
    ) -> None:
        if INTERPRETED:
            interpret(fn, grid, args, constants)
            return
        self.prepare([(fn, constants, args)])
        kernel, library = self.built[Variant.of(fn, constants, args)]
        values = [args[name] for name in fn.arg_names if args.get(name) is not None]
        library.launch(kernel, [v.bits if isinstance(v, BFloat16) else v for v in values], grid)


@pytest.fixture(scope="session")
def launch() -> Launcher:
    return Launcher()


@pytest.fixture(scope="session", params=["x86_64_v3", "generic"])
def elsewhere(request: pytest.FixtureRequest) -> Launcher:
    """Runs kernels as a lesser machine would: the bits must be those of `launch`."""
    if INTERPRETED or not isa_supported(request.param):
        pytest.skip(f"this machine runs no {request.param}")
    return Launcher(isa_named(request.param))


@pytest.fixture
def by_zig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """Builds with the compiler of the ziglang package, as where no other is installed."""
    if INTERPRETED or not importlib.util.find_spec("ziglang"):
        pytest.skip("needs `pip install ziglang`")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    find_compiler.cache_clear()
    assert find_compiler().is_zig
    yield Launcher()
    find_compiler.cache_clear()


@pytest.fixture(scope="session")
def bf16() -> Callable[[Array], BFloat16]:
    return BFloat16.of
