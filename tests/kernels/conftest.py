"""`launch` runs a Triton kernel on NumPy arrays: through tilec, or Triton's own interpreter.

The interpreter (TRITON_INTERPRET=1 in the environment before pytest starts) is slow and sums in
another order; it is there to tell a wrong kernel from a wrong translation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sglk.targets.kernels.ttir import to_ttir
from sglk.targets.tilec.build import build
from sglk.targets.tilec.isa import native_isa
from sglk.targets.tilec.lower import CppKernel, translate
from sglk.targets.tilec.run import Library, load

Array = NDArray[Any]


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


Launch = Callable[..., None]


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


@dataclass
class Compiled:
    """Builds each kernel variant once per session; objects are kept in the kernel cache."""

    libraries: dict[object, tuple[CppKernel, Library]] = field(default_factory=dict)

    def run(
        self, fn: Any, grid: tuple[int, ...], args: Mapping[str, Any], constants: Mapping[str, Any]
    ) -> None:
        optional = {name: None for name, value in args.items() if value is None}
        given = {name: value for name, value in args.items() if value is not None}
        signature = {name: type_of(given[name]) for name in fn.arg_names if name in given}
        kernel, library = self.find(fn, signature, {**constants, **optional})
        values = [given[name] for name in signature]
        bits = [value.bits if isinstance(value, BFloat16) else value for value in values]
        library.launch(kernel, bits, grid)

    def find(
        self, fn: Any, signature: dict[str, str], constants: dict[str, Any]
    ) -> tuple[CppKernel, Library]:
        key = (fn, *sorted(signature.items()), *sorted(constants.items()))
        if key not in self.libraries:
            kernel = translate(to_ttir(fn, signature, constants), fn.__name__)
            self.libraries[key] = kernel, load(build([kernel], native_isa()))
        return self.libraries[key]


POINTERS = {"float32": "*fp32", "float16": "*fp16", "int32": "*i32", "int8": "*i8", "uint8": "*u8"}


def type_of(value: Any) -> str:
    if isinstance(value, BFloat16):
        return "*bf16"
    if isinstance(value, np.ndarray):
        return POINTERS[value.dtype.name]
    return "fp32" if isinstance(value, float) else "i32"


@pytest.fixture(scope="session")
def launch() -> Launch:
    compiled = Compiled()

    def run(fn: Any, grid: tuple[int, ...], constants: Mapping[str, object], **args: Any) -> None:
        how = interpret if os.environ.get("TRITON_INTERPRET") == "1" else compiled.run
        how(fn, grid, args, constants)

    return run


@pytest.fixture(scope="session")
def bf16() -> Callable[[Array], BFloat16]:
    return BFloat16.of
