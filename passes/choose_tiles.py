"""Tile choice by a cost model: candidates from the target's granules, ranked by modelled time.

Candidates that do not fit on chip are removed first. The model is a roofline per program, times the
waves that the grid needs. Where candidates have been measured, those compete alone: a measured time
wins over any modelled one. Others may carry a correction, how much longer than modelled the same
tile took on a problem like this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import PassError
from ..ir.target import Target

Tile = Mapping[str, int]


@dataclass(frozen=True)
class TileCost:
    """What one candidate costs for one problem size; all sizes concrete."""

    programs: int
    """Programs of the grid."""
    flops: float
    """Arithmetic of one program, padding and unpacking included."""
    bytes: float
    """Bytes one program reads and writes outside the nearest memory level."""
    on_chip_bytes: int
    """What one program keeps in the nearest memory level."""
    measured: float | None = None
    """Seconds, where the chip has done this very problem with this tile."""
    correction: float = 1.0
    """What the modelled time is multiplied by."""


@dataclass(frozen=True)
class TileChoice:
    """The winner and why: what bounds it, who came second, who was refused."""

    tile: Tile
    seconds: float
    bound: str
    on_chip_bytes: int
    on_chip_limit: int
    runner_up: str
    refused: tuple[str, ...]
    on_chip_name: str = ""
    """The memory level that the bytes count against."""
    programs: int = 0
    """Programs of the grid, at the row count that the tile was chosen for."""
    per_unit: int = 0
    """Programs that one core, SM or cluster runs one after the other."""
    rows: int = 0
    """That row count; 0: not told."""

    def reason(self) -> str:
        """One line for the report."""
        fit = f"{self.on_chip_bytes} of {self.on_chip_limit} bytes on chip"
        bound = self.bound if self.bound == "measured" else f"{self.bound}-bound"
        time = f"{bound}, {self.seconds * 1e6:.1f} us"
        return f"{tile_text(self.tile)}: {time}, {fit}{self.runner_up}"


def choose_tile(
    target: Target, unit: str, dtype: str, candidates: Sequence[tuple[Tile, TileCost]]
) -> TileChoice:
    """The candidate of least time that fits; ties go to the first listed."""
    near = target.memory[0]
    fitting, refused = [], []
    for tile, cost in candidates:
        if near.bytes and cost.on_chip_bytes > near.bytes:
            refused.append(
                f"{tile_text(tile)} needs {cost.on_chip_bytes} of {near.bytes} bytes of {near.name}"
            )
        else:
            fitting.append((*modelled(target, unit, dtype, cost), tile, cost))
    if not fitting:
        raise PassError(f"{target.name}:{target.arch}: no tile fits: {'; '.join(refused)}")
    measured = [(c.measured, "measured", t, c) for _, _, t, c in fitting if c.measured is not None]
    ranked = sorted(measured or fitting, key=lambda entry: entry[0])
    seconds, bound, tile, cost = ranked[0]
    second = (
        f"; next {tile_text(ranked[1][2])} at {ranked[1][0] * 1e6:.1f} us" if ranked[1:] else ""
    )
    return TileChoice(
        tile,
        seconds,
        bound,
        cost.on_chip_bytes,
        near.bytes,
        second,
        tuple(refused),
        near.name,
        cost.programs,
        -(-cost.programs // target.programs),
    )


def _peak(target: Target, unit: str, dtype: str) -> float:
    for candidate in target.units:
        if candidate.name == unit and dtype in candidate.peak_flops:
            return candidate.peak_flops[dtype] / target.programs
    raise PassError(f"{target.name}:{target.arch}: unit {unit!r} has no stated rate for {dtype}")


def modelled(target: Target, unit: str, dtype: str, cost: TileCost) -> tuple[float, str]:
    """Waves of programs, each bounded by its arithmetic or by its share of the bandwidth."""
    peak, bandwidth = _peak(target, unit, dtype), target.memory[-1].bytes_per_second
    waves = -(-cost.programs // target.programs)
    compute = waves * cost.flops / peak * cost.correction
    busy = min(cost.programs, target.programs)
    memory = waves * busy * cost.bytes / bandwidth * cost.correction
    return (compute, "compute") if compute >= memory else (memory, "memory")


def tile_text(tile: Tile) -> str:
    """``BLOCK_M=32 BLOCK_K=64``"""
    return " ".join(f"{name}={value}" for name, value in tile.items())
