"""The CUDA target as the driver sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec

from ...errors import LoweringError
from ...ir.dtype import DType
from ...ir.graph import Graph
from ...ir.op import Array
from ...ir.target import Target
from ..artifact.program import Program
from ..assemble import Library
from ..backend import Choices
from ..lowering import Lowering
from ..packing import ROW_GRANULES, Packed
from ..tilec import KernelCache
from .build import build_libraries
from .candidates import candidates
from .compile import lower
from .device.arch import best_of
from .device.cuda_driver import capability_here
from .device.plan_file import to_bytes
from .device.program_code import encode
from .entries import add_entries, add_entries_of, expand
from .facts import chips_named, cuda_target, weakest
from .measured import checked_tuning
from .packing import pack_weight
from .table import TABLE

Progress = Callable[[str, int, int], None]


class CudaBackend:
    """Triton -> cubins, one pack for each architecture; no GPU and no CUDA toolkit needed."""

    name = "cuda"
    activations = "bf16"
    table = TABLE

    def check(self, choices: Choices) -> None:
        chips_named(choices.arches)
        if choices.activations != "bf16":
            raise LoweringError(
                f"--target cuda: expected --activations bf16, got {choices.activations} "
                "(other activations run on the CPU)"
            )
        if find_spec("triton") is None:
            raise LoweringError("--target cuda: expected Triton, got none (pip install triton)")
        self._tuning(choices)

    def target(self, choices: Choices) -> Target:
        chips, invariant = chips_named(choices.arches), choices.batch_invariant
        return cuda_target(chips, batch_invariant=invariant, tuning=self._tuning(choices))

    def _tuning(self, choices: Choices) -> str:
        """One program serves all chips: tiles are those of the weakest."""
        if not choices.tuning:
            return ""
        return checked_tuning(choices.tuning, [weakest(chips_named(choices.arches)).isa])

    def lower(self, graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
        lowering = lower(graph, target, partial=partial)
        add_entries(lowering, target)
        return lowering

    def add_expansions(self, lowering: Lowering, target: Target, types: Collection[str]) -> None:
        add_entries_of(lowering, [expand(name, target) for name in sorted(types)])

    def build(self, lowering: Lowering, choices: Choices, progress: Progress) -> list[Library]:
        kernels = [lowering.kernels[symbol] for symbol in sorted(lowering.kernels)]
        return build_libraries(kernels, chips_named(choices.arches), KernelCache(), progress)

    def candidates(
        self, lowering: Lowering, choices: Choices, progress: Progress
    ) -> Mapping[str, bytes]:
        return candidates(lowering, chips_named(choices.arches), choices.candidates, progress)

    def pack_weight(self, name: str, array: Array, dtype: DType, layout: str) -> Packed:
        return pack_weight(name, array, dtype, layout)

    def row_granule(self, layout: str) -> int:
        return ROW_GRANULES[layout]

    def plans(self, program: Program) -> Mapping[str, bytes]:
        """The tables that the device launches from; making them at each load would take longer."""
        return {program.entry: to_bytes(encode(program))}

    def why_not_here(self, choices: Choices) -> str:
        """Without a GPU the self-test is left to ``sglk verify`` on the machine that has one."""
        capability = capability_here()
        if capability is None:
            return "it needs a GPU (run sglk verify there)"
        isas = [chip.isa for chip in chips_named(choices.arches)]
        if best_of(isas, capability) is None:
            major, minor = capability
            return f"the GPU here is sm_{major}{minor}, the kernels are for {', '.join(isas)}"
        return ""


def open_backend() -> CudaBackend:
    return CudaBackend()
