"""The CPU target as the driver sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...ir.dtype import DType
from ...ir.graph import Graph
from ...ir.op import Array
from ...ir.target import Target
from ..artifact.program import Program
from ..assemble import Library
from ..backend import Choices
from ..lowering import Lowering
from ..packing import ROW_GRANULES, Packed
from ..tilec import KernelCache, isa_supported
from ..tilec.compiler import find_compiler
from .build import build_library
from .compile import isa_names, lower, target_for
from .device.plan_code import encode
from .device.plan_file import to_bytes
from .packing import pack_weight
from .rows_native import TILE_LAYOUT
from .table import TABLE
from .tiles import LANES

Progress = Callable[[str, int, int], None]


class CpuBackend:
    """Triton -> TTIR -> C++ -> one shared library for each instruction set."""

    name = "cpu"
    activations = "f32"
    table = TABLE

    def check(self, choices: Choices) -> None:
        isa_names(choices.arches)
        find_compiler()

    def target(self, choices: Choices) -> Target:
        return target_for(
            isa_names(choices.arches),
            handwritten=choices.handwritten,
            batch_invariant=not choices.round_weights,
        )

    def lower(self, graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
        return lower(graph, target, partial=partial)

    def build(self, lowering: Lowering, choices: Choices, progress: Progress) -> list[Library]:
        kernels = [lowering.kernels[symbol] for symbol in sorted(lowering.kernels)]
        cache = KernelCache()
        return [
            Library(isa, build_library(kernels, isa, cache, progress))
            for isa in isa_names(choices.arches)
        ]

    def pack_weight(self, name: str, array: Array, dtype: DType, layout: str) -> Packed:
        return pack_weight(name, array, dtype, layout)

    def row_granule(self, layout: str) -> int:
        return {**ROW_GRANULES, TILE_LAYOUT: LANES}[layout]

    def plans(self, program: Program) -> Mapping[str, bytes]:
        return {program.entry: to_bytes(encode(program))}

    def why_not_here(self, choices: Choices) -> str:
        isas = isa_names(choices.arches)
        if any(isa_supported(isa) for isa in isas):
            return ""
        return f"this machine runs none of {', '.join(isas)}"


def open_backend() -> CpuBackend:
    return CpuBackend()
