"""The instruction sets as the compile side and the run-time side know them."""

from __future__ import annotations

import pytest
from sglk.errors import LoweringError
from sglk.targets.cpu.compile import isa_names, target_for
from sglk.targets.cpu.device.isa import VARIANTS, this_machine
from sglk.targets.cpu.facts import LANES
from sglk.targets.tilec.isa import ISAS, native_isa


def test_both_sides_need_the_same_of_a_machine() -> None:
    compiled = {isa.name: (isa.machine, isa.cpu_flags) for isa in ISAS.values()}
    loaded = {variant.name: (variant.machine, variant.flags) for variant in VARIANTS}
    assert compiled == loaded
    assert compiled.keys() == LANES.keys()
    assert native_isa().name == this_machine().best


def test_choices_of_instruction_sets() -> None:
    assert isa_names(("x86_64_v3", "x86_64_v4", "x86_64_v3")) == ("x86_64_v3", "x86_64_v4")
    assert isa_names(()) == (native_isa().name,)
    assert isa_names(("native", "generic")) == (native_isa().name, "generic")
    assert target_for(("x86_64_v4", "x86_64_v3")).lanes == 8  # facts of the narrowest
    with pytest.raises(LoweringError, match=r"among native, generic, .*got 'avx'"):
        isa_names(("generic", "avx"))
