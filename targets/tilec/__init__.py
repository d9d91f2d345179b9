"""tilec: Triton's TTIR to C++ that runs fast on CPUs. See README.md."""

from .build import KernelCache, build
from .isa import ISAS, Isa, isa_named, isa_supported, native_isa
from .lower import CppKernel, translate

__all__ = [
    "ISAS",
    "CppKernel",
    "Isa",
    "KernelCache",
    "build",
    "isa_named",
    "isa_supported",
    "native_isa",
    "translate",
]
