"""The Kunlun target as the driver sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ... import knobs
from ...errors import LoweringError
from ...ir.dtype import DType
from ...ir.graph import Graph
from ...ir.op import Array
from ...ir.target import Target
from ..artifact.program import Program
from ..assemble import Library
from ..backend import Choices
from ..lowering import Lowering
from ..packing import Packed
from ..tilec import KernelCache
from ..tilec.compiler import find_compiler
from .build import build_library
from .compile import lower, target_for
from .facts import KunlunTarget
from .packing import pack_weight
from .table import DENIED, TABLE
from .vendor import HOST, OPERATORS

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class KunlunBackend:
    """Triton -> TTIR -> emulated kernels, and what makes the chip's own from the same sources."""

    name = "kunlun"
    activations = "f32"
    table = TABLE
    denied = DENIED
    emulator = "emulator"
    """The device that proves an artifact where there is no chip."""

    def check(self, choices: Choices) -> None:
        self._facts(choices)
        if choices.activations != "f32":
            raise LoweringError(
                f"--activations: expected f32 on Kunlun, got {choices.activations} "
                "(products multiply in fp16 where weights and cache are fp16)"
            )
        if choices.round_weights:
            raise LoweringError("--round-weights: expected a CPU target, got kunlun")
        find_compiler()

    def target(self, choices: Choices) -> Target:
        return self._facts(choices)

    def _facts(self, choices: Choices) -> KunlunTarget:
        return target_for(choices.arches, knobs.get().kunlun_config)

    def lower(self, graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
        return lower(graph, target, partial=partial)

    def explain(self, target: Target) -> Mapping[str, Any]:
        assert isinstance(target, KunlunTarget)
        return {
            "facts": target.chip.records(),
            "denied": [asdict(denied) for denied in DENIED],
            "host": [{"what": what, "why": why} for what, why in HOST],
            "library": [asdict(vendor) for vendor in OPERATORS],
        }

    def build(self, lowering: Lowering, choices: Choices, progress: Progress) -> list[Library]:
        chip = self._facts(choices).chip
        return [build_library(lowering.kernels, chip, KernelCache(), progress)]

    def pack_weight(self, name: str, array: Array, dtype: DType, layout: str) -> Packed:
        return pack_weight(name, array, dtype, layout)

    def row_granule(self, layout: str) -> int:
        return 1

    def plans(self, program: Program) -> Mapping[str, bytes]:
        """The device walks the program itself."""
        return {}

    def why_not_here(self, choices: Choices) -> str:
        return ""


def open_backend() -> KunlunBackend:
    return KunlunBackend()
