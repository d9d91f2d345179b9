"""Parsing, errors, the object cache, machines."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sglk import knobs
from sglk.errors import LoweringError
from sglk.targets.kernels.ttir import to_ttir
from sglk.targets.tilec import (
    CppKernel,
    KernelCache,
    build,
    isa_named,
    isa_supported,
    native_isa,
    translate,
)
from sglk.targets.tilec.ir import F32, Pointer, Tensor
from sglk.targets.tilec.parser import literal, parse
from sglk.targets.tilec.run import load

HEAD = '#include "tilec.h"\nusing namespace tilec;\nextern "C" void {}(const int64_t* args, '
TAIL = "const int32_t* grid, int64_t begin, int64_t end) {{ *(float*)args[0] = {}; }}\n"


def _kernel(symbol: str, value: str) -> CppKernel:
    return CppKernel(symbol, HEAD.format(symbol) + TAIL.format(value), ("!tt.ptr<f32>",))


def test_parse_keeps_types_regions_and_places(kernels: ModuleType) -> None:
    signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "a": "fp32"}
    function = parse(to_ttir(kernels.axpy, signature, {"BLOCK": 64}))
    assert [str(arg.type) for arg in function.args] == ["!tt.ptr<f32>"] * 2 + ["i32", "f32"]
    load_op = next(op for op in function.walk() if op.name == "tt.load")
    assert load_op.result.type == Tensor((64,), F32)
    assert load_op.operands[0].type == Tensor((64,), Pointer(F32))
    assert load_op.loc.startswith("tilec_kernels.py:")
    assert all(op in operand.users for op in function.walk() for operand in op.operands)


@pytest.mark.parametrize(
    ("text", "value"), [("0xFF800000", float("-inf")), ("1.5e+00", 1.5), ("0x3F800000", 1.0)]
)
def test_float_literals(text: str, value: float) -> None:
    assert literal(text, F32) == value


def test_every_unknown_operation_is_named_at_once(kernels: ModuleType) -> None:
    text = to_ttir(kernels.asks_too_much, {"x": "*i32"}, {"N": 16})
    with pytest.raises(LoweringError, match=r"tt\.elementwise_inline_asm x1 \(at tilec_kernels"):
        translate(text, "k")


def test_a_fault_of_the_kernel_is_a_lowering_error(kernels: ModuleType) -> None:
    with pytest.raises(LoweringError, match="missing \\['y', 'n', 'a'\\]"):
        to_ttir(kernels.axpy, {"x": "*fp32"}, {"BLOCK": 64})
    with pytest.raises(LoweringError, match="expected x to be one of"):
        to_ttir(kernels.row_sums, {"x": "float", "y": "*fp32"}, {"N": 16})
    with pytest.raises(LoweringError, match="that compiles"):
        to_ttir(kernels.row_sums, {"x": "*fp32", "y": "*fp32"}, {"N": 15})


def test_translation_is_reproducible(kernels: ModuleType) -> None:
    text = to_ttir(kernels.row_sums, {"x": "*fp32", "y": "*fp32"}, {"N": 256})
    assert translate(text, "k").source == translate(text, "k").source


def test_cache_compiles_each_source_once(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    steps: list[tuple[int, int]] = []
    pair = [_kernel("one", "1.0f"), _kernel("two", "2.0f")]
    isa = isa_named("generic")
    library = build(pair, isa, cache=cache, progress=lambda done, of: steps.append((done, of)))
    assert (cache.hits, cache.misses, steps[-1]) == (0, 2, (2, 2))
    assert build(pair, isa, cache=cache) == library
    build([*pair, _kernel("three", "3.0f")], isa, cache=cache)
    assert (cache.hits, cache.misses) == (4, 3)
    found = np.zeros(1, np.float32)
    load(library).launch(pair[1], (found,), (1,))
    assert found[0] == 2.0
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("tmp")]


def test_extra_sources_join_the_library(tmp_path: Path) -> None:
    (tmp_path / "deep.h").write_text("#pragma once\n#define THREE 3.0f\n")
    extra = tmp_path / "extra.cpp"
    extra.write_text('#include "deep.h"\nextern "C" float three() { return THREE; }\n')
    source = 'extern "C" float three();\n' + _kernel("calls", "three()").source
    kernel = CppKernel("calls", source, ("!tt.ptr<f32>",))
    found = np.zeros(1, np.float32)
    library = build([kernel], isa_named("generic"), [extra], KernelCache(tmp_path / "cache"))
    load(library).launch(kernel, (found,), (1,))
    assert found[0] == 3.0


def test_compiler_messages_come_through(tmp_path: Path) -> None:
    with pytest.raises(LoweringError, match=r"(?s)bad: expected .* to succeed.*nonsense"):
        build([_kernel("bad", "nonsense")], isa_named("generic"), cache=KernelCache(tmp_path))


def test_misuse_is_refused(tmp_path: Path) -> None:
    twins = [_kernel("same", "1.0f"), _kernel("same", "2.0f")]
    with pytest.raises(LoweringError, match="two of 'same'"):
        build(twins, isa_named("generic"), cache=KernelCache(tmp_path))
    with pytest.raises(LoweringError, match="expected an ISA among"):
        isa_named("sparc")
    with pytest.raises(LoweringError, match="C identifier"):
        translate("", "not a name")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(LoweringError, match="writable folder"):
        build([_kernel("one", "1.0f")], isa_named("generic"), cache=KernelCache(blocked))


def test_default_cache_follows_the_knob(tmp_path: Path) -> None:
    with knobs.override(cache=str(tmp_path)):
        assert KernelCache().folder == tmp_path


def test_launch_checks_arguments(tmp_path: Path) -> None:
    kernel = _kernel("one", "1.0f")
    library = load(build([kernel], isa_named("generic"), cache=KernelCache(tmp_path)))
    with pytest.raises(LoweringError, match="expected 1 arguments"):
        library.launch(kernel, (), (1,))
    with pytest.raises(LoweringError, match="contiguous array"):
        library.launch(kernel, (np.zeros((4, 4), np.float32)[:, 1],), (1,))


def test_this_machine_runs_what_it_says() -> None:
    assert isa_supported("generic")
    assert isa_supported(native_isa().name)
