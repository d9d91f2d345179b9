"""A kernel before it is compiled: a Triton function, its argument types and its constants."""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass, field
from typing import Any

from ..errors import LoweringError

POINTERS = {
    "f32": "*fp32",
    "bf16": "*bf16",
    "f16": "*fp16",
    "u8": "*u8",
    "i8": "*i8",
    "i32": "*i32",
    "i64": "*i64",
    "i16": "*i16",
    "u16": "*u16",
    "u32": "*u32",
    "u64": "*u64",
    "bool": "*u8",
    "e4m3": "*fp8e4nv",
}
"""Triton's pointer type for each plain dtype."""
NUMBERS = {"i32": "i32", "i64": "i64", "f32": "fp32"}
"""Triton's type for each kind of number argument."""
NATIVE = "native."
"""What the function of a kernel that is no Triton function starts with."""


@dataclass(frozen=True)
class Kernel:
    """``function`` is ``module.name`` in ``targets/kernels``; equal kernels have equal keys."""

    function: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """How a chip's compiler is to make it, such as num_warps and num_stages."""

    @property
    def key(self) -> str:
        """Hash of everything that decides the code, but for the source text of the function."""
        text = f"{self!r} {self.options!r}" if self.options else repr(self)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_native(self) -> bool:
        """Written by hand: ``native.NAME``, a C++ template of the target, not a Triton function."""
        return self.function.startswith(NATIVE)

    @property
    def symbol(self) -> str:
        """The C symbol: the function's name and the first digits of the key."""
        return f"{self.function.rpartition('.')[2]}_{self.key[:10]}"

    def load(self) -> Any:
        """The ``triton.JITFunction``."""
        module, _, name = self.function.rpartition(".")
        try:
            return getattr(importlib.import_module(f".kernels.{module}", __package__), name)
        except (ImportError, AttributeError) as error:
            raise LoweringError(f"kernel {self.function}: {error}") from error


def argument_names(function: str) -> tuple[str, ...]:
    """All parameters of a kernel function, in order."""
    return tuple(Kernel(function, (), ()).load().arg_names)
