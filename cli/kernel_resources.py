"""Registers, shared memory and spills of GPU kernels, for ``sglk show --report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WARP = 32
REGISTERS = 65536
"""Of a multiprocessor, in all architectures from 8.0 to 12.0."""
REGISTER_STEP = 8
"""Registers of a thread are given in steps."""
THREADS = 2048
"""Of a multiprocessor at most; some have 1,536."""
BARE_SHARED = 1024
"""Bytes of shared memory that every program takes for itself."""
EXPANDING = "expand_blocks."


def resource_lines(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table for each architecture: kernels that spill, then those of fewest programs, first.

    Empty where compilers tell no resources.
    """
    lines = []
    shared_bytes = _shared_bytes()
    for isa in dict.fromkeys(isa for kernel in kernels for isa in kernel.get("resources", {})):
        told = [k for k in kernels if isa in k.get("resources", {})]
        known = [k for k in told if k["resources"][isa].get("regs") is not None]
        if known:
            rows = sorted((_row(k, isa, shared_bytes.get(isa)) for k in known), key=lambda r: r[0])
            lines += ["", f"resources of kernels, {isa}", _HEAD, *(text for _, text in rows)]
    return lines


def _shared_bytes() -> dict[str, int]:
    """Shared memory that a program may have at most, nearly all of a multiprocessor's."""
    from ..targets.cuda.facts import CHIPS

    return {chip.isa: int(chip.shared_bytes.value) for chip in CHIPS.values()}


_HEAD = "  warps  regs  shared  spills  programs a multiprocessor, limited by"


def _row(kernel: Mapping[str, Any], isa: str, shared: int | None) -> tuple[tuple[Any, ...], str]:
    resources = kernel["resources"][isa]
    count, why = programs(resources, shared)
    size = "x".join(str(kernel["constants"][n]) for n in "NK" if n in kernel["constants"])
    name = kernel["source"].rpartition(".")[0] + f" {size}" * bool(size)
    text = (
        f"  {resources['num_warps']:5d} {resources['regs']:5d} {resources['shared']:7d} "
        f"{resources['spills']:7d}  {count:2d} by {why:<13}  {name}  {kernel['symbol']}"
    )
    if resources["spills"]:
        text += f"  ({_spill_reason(kernel, resources)})"
    return (-resources["spills"], count, name, kernel["symbol"]), text


def programs(resources: Mapping[str, Any], shared: int | None) -> tuple[int, str]:
    """How many programs share a multiprocessor, and what there is no more of.

    >>> programs({"num_warps": 8, "regs": 168, "shared": 197632}, 232448)
    (1, 'registers')
    >>> programs({"num_warps": 4, "regs": 90, "shared": 98304}, 232448)
    (2, 'shared memory')
    """
    threads = WARP * resources["num_warps"]
    each = -(-max(resources["regs"], 1) // REGISTER_STEP) * REGISTER_STEP
    limits = {"registers": REGISTERS // (each * threads), "threads": THREADS // threads}
    if shared is not None:
        limits["shared memory"] = shared // (resources["shared"] + BARE_SHARED)
    why = min(limits, key=lambda name: limits[name])
    return limits[why], why


def _spill_reason(kernel: Mapping[str, Any], resources: Mapping[str, Any]) -> str:
    limit = kernel.get("options", {}).get("maxnreg")
    if limit is not None:
        return f"kept to {limit} registers so that more programs share a multiprocessor"
    return f"more values at once than the {resources['regs']} registers of a thread hold"


def expansion_lines(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    """What becomes of weights of block types on a target that expands them."""
    if not any(kernel["source"].startswith(EXPANDING) for kernel in kernels):
        return []
    return ["  block types  stay in blocks in the file; the device makes them bf16 when it loads"]
