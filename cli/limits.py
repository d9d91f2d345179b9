"""What a machine reaches at best, as `bench/machine_limits.py` measured it and wrote it down."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SglkError

SIXTEEN_BIT = ("f32_fma", "bf16_dot", "bf16_tile")
"""Rates open to arithmetic on 16-bit or wider numbers."""
EIGHT_BIT = ("int8_dot", "int8_tile")


@dataclass(frozen=True)
class Limits:
    """``read_gb_per_s`` by MiB of the region read, ``tera_per_s`` by kind of arithmetic."""

    processor: str
    threads: int
    read_gb_per_s: Mapping[str, float]
    tera_per_s: Mapping[str, float]

    def bandwidth(self, working_set: float) -> float:
        """Bytes/s at the measured size that is nearest to ``working_set`` bytes.

        >>> Limits("", 2, {"32": 100.0, "1024": 40.0}, {}).bandwidth(600e6)
        40000000000.0
        """
        size = max(working_set, 1.0) / 2**20
        nearest = min(self.read_gb_per_s, key=lambda text: abs(math.log(float(text) / size)))
        return self.read_gb_per_s[nearest] * 1e9

    def rate(self, kinds: tuple[str, ...] = SIXTEEN_BIT) -> float:
        """Operations/s of the fastest of some kinds of arithmetic."""
        return max((self.tera_per_s.get(kind, 0.0) for kind in kinds), default=0.0) * 1e12


def known_limits(device: str, report: Mapping[str, Any]) -> Limits | None:
    """What a chip that an artifact is made for reaches, where its target knows; else None."""
    if device.partition(":")[0] != "cuda":
        return None
    from ..targets.cuda.facts import CHIPS

    chip = next((chip for chip in CHIPS.values() if chip.isa in report.get("isas", [])), None)
    if chip is None:
        return None
    reads = {"1024": chip.dram.value / 1e9}
    return Limits(chip.chip, 1, reads, {"bf16_tile": chip.bf16.value / 1e12})


def read_limits(path: Path) -> Limits:
    """A file that `get_limits` or ``-o`` wrote."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        return Limits(**record)
    except (OSError, ValueError, TypeError) as error:
        raise SglkError(f"{path}: expected measured limits of a machine ({error})") from error
