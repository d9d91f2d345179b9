"""`launch` runs a Triton kernel on NumPy arrays: on an NVIDIA GPU, or in Triton's interpreter.

With TRITON_INTERPRET=1 in the environment before pytest starts the kernels run here, slowly, and
narrow floats stay f32 (the interpreter multiplies the bits of bf16). With neither, tests skip.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Narrow:
    """What a kernel sees as bf16: its bits. NumPy has no such type."""

    bits: NDArray[np.uint16]

    def floats(self) -> NDArray[np.float32]:
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Wide:
    """The same face for f32, in the interpreter."""

    bits: NDArray[np.float32]

    def floats(self) -> NDArray[np.float32]:
        return self.bits


def narrowed(values: Array) -> Narrow | Wide:
    """Rounds to nearest even, as hardware does."""
    floats = np.array(values, np.float32)
    if INTERPRETED:
        return Wide(floats)
    wide = floats.view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = np.where(np.isnan(floats), wide, wide + 0x7FFF + (wide >> 16 & 1))
    return Narrow((rounded >> 16).astype(np.uint16))


def fix_constants() -> None:
    """The interpreter cannot compute with constexprs of a module."""
    import triton.language as tl

    for module in [m for n, m in sys.modules.items() if n.startswith("sglk.targets.kernels.")]:
        for name, value in vars(module).items():
            if isinstance(value, tl.constexpr):
                setattr(module, name, value.value)


@dataclass(frozen=True)
class Launcher:
    """Calls ``fn[grid]``; arrays that the kernel wrote are changed in place."""

    device: str

    def __call__(
        self,
        fn: Any,
        grid: tuple[int, ...],
        constants: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        **args: Any,
    ) -> None:
        tensors = {name: self.tensor(value) for name, value in args.items()}
        if INTERPRETED:
            fix_constants()
            with np.errstate(all="ignore"):
                fn[grid](**tensors, **constants)
        else:
            fn[grid](**tensors, **constants, **(options or {}))
        for name, value in args.items():
            if isinstance(value, Narrow | Wide | np.ndarray):
                self.read_back(tensors[name], value)

    def tensor(self, value: Any) -> Any:
        import torch

        if isinstance(value, Narrow):
            return torch.from_numpy(value.bits.view(np.int16)).to(self.device).view(torch.bfloat16)
        if isinstance(value, Wide):
            return torch.from_numpy(value.bits.copy())
        if isinstance(value, np.ndarray):
            tensor = torch.from_numpy(value.copy()).to(self.device)
            return tensor.view(torch.float8_e4m3fn) if value.dtype == np.uint8 else tensor
        return value

    def read_back(self, tensor: Any, value: Narrow | Wide | Array) -> None:
        import torch

        if isinstance(value, Narrow):
            value.bits[...] = tensor.view(torch.int16).cpu().numpy().view(np.uint16)
        elif isinstance(value, Wide):
            value.bits[...] = tensor.numpy()
        elif value.dtype == np.uint8:
            value[...] = tensor.view(torch.uint8).cpu().numpy()
        else:
            value[...] = tensor.cpu().numpy()


def has_gpu() -> bool:
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def launch() -> Launcher:
    if INTERPRETED:
        return Launcher("cpu")
    if not has_gpu():
        pytest.skip("needs an NVIDIA GPU, or TRITON_INTERPRET=1")
    return Launcher("cuda")


@pytest.fixture(scope="session")
def on_gpu(launch: Launcher) -> Launcher:
    """For what the interpreter cannot do, or not in time."""
    if INTERPRETED:
        pytest.skip("needs an NVIDIA GPU")
    return launch


@pytest.fixture(scope="session")
def bf16(launch: Launcher) -> Callable[[Array], Any]:
    return narrowed
