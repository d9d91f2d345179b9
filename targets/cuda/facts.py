"""What passes may know of an NVIDIA GPU: one `Target` per architecture, from typed figures.

Each figure has its source. Where an architecture has several chips, the figures are those of the
chip named; they rank tiles and split work, and a kernel that fits here fits its siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import LoweringError
from ...ir.dtype import BF16, BOOL, F16, F32, I8, I32, I64, U8
from ...ir.target import MemoryLevel, Target, Unit

PAGE_SIZE = 64
"""Tokens of a KV page: a page of one head is a tile of 64 keys, rows of 128 to 256 bytes."""
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Decode graphs up to 256; above, prompts. The last bucket has no bound."""
TENSOR_MAPS = "tensor_maps"
"""Feature: tiles copied by tensor maps (TMA)."""
DEPENDENT_LAUNCH = "dependent_launch"
"""Feature: a kernel may start while the one ahead of it ends (programmatic dependent launch)."""
FP8_PRODUCTS = "fp8_products"
"""Feature: tensor cores multiply e4m3 (Ada and Hopper tuning guides)."""
FP8_CAPABILITY = 89
FUSED_OPS = frozenset(
    {"expert_mlp", "gated_linear", "linear", "rope_write_kv", "rope_write_kv.norms"}
)
WARP = 32
DTYPES = frozenset({F32, BF16, F16, I8, U8, I32, I64, BOOL})


@dataclass(frozen=True)
class Figure:
    """A number and where it is from."""

    value: float
    source: str


@dataclass(frozen=True)
class Chip:
    """Facts of one architecture, by the chip that its figures are of."""

    arch: str
    chip: str
    capability: int
    """Compute capability: 90 is 9.0."""
    multiprocessors: Figure
    shared_bytes: Figure
    """Shared memory that one block may have (opt-in)."""
    l2_bytes: Figure
    dram: Figure
    """Bytes per second."""
    bf16: Figure
    """Dense tensor-core FLOP/s, f32 sums."""
    fp8: Figure | None
    f32: Figure
    """FLOP/s without tensor cores."""

    @property
    def isa(self) -> str:
        """The variant's name in an artifact: ``sm_90``."""
        return f"sm_{self.capability}"

    @property
    def features(self) -> frozenset[str]:
        """What came with compute capability 8.9 and 9.0 (programming guide)."""
        since = {FP8_PRODUCTS: FP8_CAPABILITY, TENSOR_MAPS: 90, DEPENDENT_LAUNCH: 90}
        return frozenset(name for name, first in since.items() if self.capability >= first)


_GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability"
_MEASURED = "measured on an H200 (bench of this project)"


def _chip(
    arch: str, chip: str, sheet: str, sms: int, shared_kib: int, l2_mib: float, dram: float,
    bf16: float, fp8: float | None, f32: float, measured: str = "",
) -> Chip:  # fmt: skip
    """Rates in TB/s and TFLOP/s, from the data sheet or measured."""
    rate = measured or sheet
    return Chip(
        arch=arch,
        chip=chip,
        capability=int(arch.removeprefix("sm")),
        multiprocessors=Figure(sms, sheet),
        shared_bytes=Figure(shared_kib << 10, _GUIDE),
        l2_bytes=Figure(int(l2_mib * (1 << 20)), sheet),
        dram=Figure(dram * 1e12, rate),
        bf16=Figure(bf16 * 1e12, rate),
        fp8=None if fp8 is None else Figure(fp8 * 1e12, rate),
        f32=Figure(f32 * 1e12, sheet),
    )


CHIPS = {
    c.arch: c
    for c in (
        _chip("sm80", "A100 80 GB", "A100 datasheet", 108, 163, 40, 2.04, 312, None, 19.5),
        _chip("sm86", "A10", "A10 datasheet", 72, 99, 6, 0.6, 125, None, 31.2),
        _chip("sm89", "L40S", "L40S datasheet", 142, 99, 96, 0.864, 362, 733, 91.6),
        _chip("sm90", "H200", "H200 datasheet", 132, 227, 60, 4.6, 786, 1481, 67, _MEASURED),
        _chip("sm100", "B200", "B200 datasheet", 148, 227, 126, 8.0, 2250, 4500, 80),
        _chip("sm120", "RTX 5090", "RTX Blackwell whitepaper", 170, 99, 96, 1.79, 209.5, 419, 105),
    )
}  # fmt: skip
DEFAULT_ARCHES = ("sm90",)


def chips_named(arches: Sequence[str]) -> tuple[Chip, ...]:
    """The chips of ``--target cuda:ARCH,ARCH``, each once; an unknown one raises `LoweringError`.

    >>> [chip.isa for chip in chips_named(["sm90", "sm_80"])]
    ['sm_90', 'sm_80']
    """
    names = [arch.replace("sm_", "sm") for arch in arches or DEFAULT_ARCHES]
    unknown = [name for name in names if name not in CHIPS]
    if unknown:
        raise LoweringError(
            f"--target cuda: expected architectures among {', '.join(CHIPS)}, got {unknown[0]!r}"
        )
    return tuple(CHIPS[name] for name in dict.fromkeys(names))


def weakest(chips: Sequence[Chip]) -> Chip:
    """The chip whose features all have: one program serves every variant of an artifact."""
    return min(chips, key=lambda chip: (len(chip.features), chip.shared_bytes.value))


def forms_of(chip: Chip) -> frozenset[str]:
    """Elements of weights that products read (`ir.forms`); others are expanded to bf16.

    With ``--batch-invariant`` none: these products choose a kernel by the number of rows.
    """
    return frozenset(("i4", "i8", *(["e4m3"] if FP8_PRODUCTS in chip.features else [])))


def cuda_target(
    chips: Sequence[Chip], *, batch_invariant: bool = False, tuning: str = ""
) -> Target:
    """Facts that hold for all of these chips, and what the user asks for."""
    base = weakest(chips)
    rates = {"bf16": base.bf16.value} | ({"fp8": base.fp8.value} if base.fp8 else {})
    return Target(
        name="cuda",
        arch=base.isa,
        dtypes=DTYPES,
        units=(Unit("tensor", rates), Unit("vector", {"f32": base.f32.value})),
        memory=(
            MemoryLevel("shared", int(base.shared_bytes.value), base.bf16.value / 16),
            MemoryLevel("L2", int(base.l2_bytes.value), base.dram.value * 1.2),
            MemoryLevel("DRAM", 0, base.dram.value),
        ),
        programs=int(base.multiprocessors.value),
        lanes=WARP,
        page_size=PAGE_SIZE,
        token_buckets=TOKEN_BUCKETS,
        fused_ops=FUSED_OPS,
        activation_dtype=BF16,
        features=base.features,
        forms=frozenset() if batch_invariant else forms_of(base),
        batch_invariant=batch_invariant,
        tuning=tuning,
    )
