"""What passes may know of a CPU: one `Target` per instruction set.

Rates and sizes are nominal, per core of a recent server or desktop CPU: they rank tiles, they do
not predict times. Cache figures are the smaller ones of the CPUs in use: 256 KiB of a 1 to 2 MiB L2
for one program.
"""

from __future__ import annotations

from ...errors import LoweringError
from ...ir.dtype import DTYPES, F64
from ...ir.forms import ELEMENT_BITS
from ...ir.target import MemoryLevel, Target, Unit
from ...passes.select_rows import HOST_OPS

PAGE_SIZE = 32
"""Keys of one page: two AVX-512 registers of f32 scores; small enough for fine prefix reuse."""
TOKEN_BUCKETS = (1, 4, 16)
"""One token alone, a few streams, a full decode batch; above that, prefill tiles."""
ROUNDED_FROM = 32
"""Rows from which rounding weights once takes AMX less time than scaling the sum of every group.
Against 8-bit activations, products of SmolLM2: 1.6 times the time with 16 rows, the same with 32,
3/4 with 64, 2/5 with 512."""
FUSED_OPS = frozenset(
    {"add_rmsnorm", "gated_linear", "linear", "rope_write_kv", "rope_write_kv.norms"}
)
GATED_ROWS = 64
"""Weights are packed in groups of 64 rows, and a group holds rows of one half only."""
NOMINAL_CORES = 4
NOMINAL_HZ = 2.5e9
LANES = {
    "generic": 4,
    "aarch64": 4,
    "x86_64_v3": 8,
    "x86_64_v4": 16,
    "x86_64_v4_bf16": 16,
    "x86_64_v4_amx": 16,
}
"""f32 lanes of one vector register for each instruction set that kernels can be built for."""
AVX512 = frozenset({"x86_64_v4", "x86_64_v4_bf16", "x86_64_v4_amx"})


def cpu_target(isa: str) -> Target:
    """The facts for one instruction set; an unknown one raises `LoweringError`."""
    if isa not in LANES:
        raise LoweringError(
            f"cpu: expected an instruction set among {', '.join(LANES)}, got {isa!r}"
        )
    fma = NOMINAL_CORES * NOMINAL_HZ * LANES[isa] * 2 * 2  # two FMA pipes, two operations each
    return Target(
        name="cpu",
        arch=isa,
        dtypes=frozenset(DTYPES.values()) - {F64},
        units=(Unit("vector", {"f32": fma}),),
        memory=(MemoryLevel("L2", 256 << 10, 1e12), MemoryLevel("DRAM", 0, 4e10)),
        programs=NOMINAL_CORES,
        lanes=LANES[isa],
        page_size=PAGE_SIZE,
        token_buckets=TOKEN_BUCKETS,
        fused_ops=FUSED_OPS,
        forms=frozenset(ELEMENT_BITS),
        gated_rows=GATED_ROWS,
        features=frozenset({HOST_OPS}),
    )
