"""What passes may know of a chip: plain data. Behaviour lives in ``targets/<name>/``; unknown capability means no."""

from __future__ import annotations

from dataclasses import dataclass, field

from .dtype import DType


@dataclass(frozen=True)
class Unit:
    """One kind of arithmetic: its dtypes and their peak rates in FLOP/s for the whole chip."""

    name: str
    peak_flops: dict[str, float]


@dataclass(frozen=True)
class MemoryLevel:
    """One level, nearest first. ``bytes`` is what one program may use of it; 0: no bound."""

    name: str
    bytes: int
    bytes_per_second: float


@dataclass(frozen=True)
class Target:
    """Facts of one chip (or one class of CPUs)."""

    name: str
    arch: str
    dtypes: frozenset[DType]
    units: tuple[Unit, ...]
    memory: tuple[MemoryLevel, ...]
    programs: int
    """Programs that run at the same time: cores, SMs or clusters."""
    lanes: int
    """f32 elements of one vector operation."""
    page_size: int
    """Tokens per KV page."""
    token_buckets: tuple[int, ...]
    """Upper bounds of the token counts that get their own kernel variants; the last bucket has none."""
    fused_ops: frozenset[str] = field(default_factory=frozenset)
    """Fused ops that the operator table has a row for; fusion passes make no others."""

    def supports(self, dtype: DType) -> bool:
        return dtype in self.dtypes
