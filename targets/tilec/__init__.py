"""tilec: Triton's TTIR to C++ that runs fast on CPUs. See README.md."""

from .build import KernelCache, build
from .isa import ISAS, Isa, isa_named, isa_supported, native_isa
from .lower import CppKernel, EmulatedKernel, translate, translate_emulated
from .memory_model import HAZARDS, LIMITS, MemoryModel

__all__ = [
    "HAZARDS",
    "ISAS",
    "LIMITS",
    "CppKernel",
    "EmulatedKernel",
    "Isa",
    "KernelCache",
    "MemoryModel",
    "build",
    "isa_named",
    "isa_supported",
    "native_isa",
    "translate",
    "translate_emulated",
]
