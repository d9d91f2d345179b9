"""`launch` runs a Triton kernel on NumPy arrays: through tilec, or Triton's own interpreter.

The interpreter (TRITON_INTERPRET=1 in the environment before pytest starts) is slow and sums in
another order; it is there to tell a wrong kernel from a wrong translation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

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


@pytest.fixture(scope="session")
def launch() -> Launch:
    def run(fn: Any, grid: tuple[int, ...], constants: Mapping[str, object], **args: Any) -> None:
        interpret(fn, grid, args, dict(constants))

    assert os.environ.get("TRITON_INTERPRET") == "1"
    return run


@pytest.fixture(scope="session")
def bf16() -> Callable[[Array], BFloat16]:
    return BFloat16.of
