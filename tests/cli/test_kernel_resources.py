"""What the report says of registers, shared memory and spills."""

from __future__ import annotations

from typing import Any

from sglk.cli.kernel_resources import expansion_lines, resource_lines


def kernel(source: str, **more: Any) -> dict[str, Any]:
    resources = {"num_warps": 8, "regs": 128, "shared": 1024, "spills": 0, **more}
    return {
        "source": source, "symbol": f"{source}_1", "constants": {"N": 64, "K": 32}, "options": {},
        "resources": {"sm_90": resources},
    }  # fmt: skip


def test_spills_come_first_with_their_reason() -> None:
    kept = kernel("flash.flash", spills=200)
    kept["options"] = {"maxnreg": 128}
    lines = resource_lines([kernel("gemv.linear"), kept, kernel("big.linear", shared=200_000)])
    assert lines[1] == "resources of kernels, sm_90"
    assert "flash 64x32" in lines[3] and "kept to 128 registers" in lines[3]
    assert " 1 by shared memory" in lines[4] and " 2 by registers" in lines[5]


def test_targets_that_tell_no_resources_have_no_table() -> None:
    plain = kernel("linear.linear")
    del plain["resources"]["sm_90"]["regs"]
    assert resource_lines([plain, {"source": "a.b", "constants": {}}]) == []


def test_expanded_blocks_are_told() -> None:
    assert expansion_lines([kernel("gemv.linear")]) == []
    assert "bf16" in expansion_lines([kernel("expand_blocks.expand_blocks")])[0]
