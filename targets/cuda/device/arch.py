"""Which variant of an artifact a chip runs.

A cubin runs on the chip it was made for and, within a major version, on higher minor ones; those
from sm_90 on use features of one chip alone (``sm_90a``), so there only the exact one fits. PTX
(``ptx_80``) is compiled by the driver for the same or a newer chip, with the same exception.

>>> best_of(["sm_80", "sm_90", "ptx_80"], (8, 9)), best_of(["sm_80", "sm_90", "ptx_80"], (12, 0))
('sm_80', 'ptx_80')
"""

from __future__ import annotations

import re
from collections.abc import Sequence

FIRST_EXACT = 90
"""From this version on Triton's code needs exactly its own chip."""
_ISA = re.compile(r"(sm|ptx)_?(\d+)(\d)")


def best_of(isas: Sequence[str], capability: tuple[int, int]) -> str | None:
    """The variant that fits a chip best; None when none does."""
    ranked = sorted((rank, isa) for isa in isas if (rank := _rank(isa, capability)) is not None)
    return ranked[-1][1] if ranked else None


def _rank(isa: str, capability: tuple[int, int]) -> tuple[bool, int] | None:
    """Higher is better: machine code before PTX, then the newest; None: does not run."""
    match = _ISA.fullmatch(isa)
    if match is None:
        return None
    made_for = (int(match[2]), int(match[3]))
    version = made_for[0] * 10 + made_for[1]
    is_code = match[1] == "sm"
    if made_for == capability:
        return is_code, version
    is_same_major = made_for[0] == capability[0]
    if made_for > capability or version >= FIRST_EXACT or (is_code and not is_same_major):
        return None
    return is_code, version
