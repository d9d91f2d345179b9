"""What passes may know of a Kunlun chip: its facts as an `ir.Target`.

Rows need more than passes: `KunlunTarget` carries the whole chip. Activations are f32 in memory;
matrix products run on the SDNN engines, everything else on the clusters' cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...ir.dtype import BF16, BOOL, F16, F32, I8, I32, I64
from ...ir.target import MemoryLevel, Target, Unit
from ...passes.select_rows import HOST_OPS
from .capabilities import Chip

PADDED_ROWS = 64
"""Rows that every buffer of rows has memory for, so that a block of them is whole: block DMA faults
outside an allocation even where a mask says no."""
TOKEN_BUCKETS = (15, 127, 255)
"""A tile has at most `PADDED_ROWS` rows, or the least count of its bucket (16, 128, 256): then the
last tile moves back over rows that another made, and no tile is masked."""
FUSED_OPS = frozenset(
    {"add_rmsnorm", "gated_linear", "linear", "rope_write_kv", "rope_write_kv.norms"}
)


@dataclass(frozen=True)
class KunlunTarget(Target):
    """Plain facts, and where they come from."""

    chip: Chip = field(kw_only=True)


def kunlun_target(chip: Chip, *, batch_invariant: bool = True) -> KunlunTarget:
    """The facts of a chip; without known SDNN tiles only rows for the cores remain."""
    engines = {"f32": chip.sdnn_f32_flops, "f16": chip.sdnn_f16_flops, "bf16": chip.sdnn_f32_flops}
    units = [Unit("cluster", {"f32": chip.cluster_f32_flops})]
    if chip.has_sdnn_tiles:
        units.insert(0, Unit("sdnn", engines))
    return KunlunTarget(
        name="kunlun",
        arch=chip.arch,
        dtypes=frozenset({F32, F16, BF16, I8, I32, I64, BOOL}),
        units=tuple(units),
        memory=(
            MemoryLevel("LM", chip.lm_user_bytes * chip.cores_per_cluster, 0.0),
            MemoryLevel("SM", chip.sm_bytes, 0.0),
            MemoryLevel("uni_sram", chip.uni_sram_bytes, 0.0),
            MemoryLevel("HBM", 0, chip.hbm_bytes_per_second),
        ),
        programs=chip.clusters,
        lanes=chip.vector_bits // 32,
        page_size=chip.page_size,
        token_buckets=TOKEN_BUCKETS,
        fused_ops=FUSED_OPS,
        features=frozenset({HOST_OPS}),
        handwritten=False,
        batch_invariant=batch_invariant,
        chip=chip,
    )
