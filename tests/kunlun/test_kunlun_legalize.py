"""Limits and hazards that TTIR shows: each named, with how sure we are, and where."""

from __future__ import annotations

import pytest
from sglk.targets.kunlun.capabilities import chip
from sglk.targets.kunlun.legalize import check_kernel, hazard_risks, memory_use

P800 = chip("xpu3")


def ttir(*lines: str, args: str = "%a: !tt.ptr<f32>") -> str:
    body = "\n    ".join((*lines, "tt.return"))
    return f"module {{\n  tt.func public @k({args}) {{\n    {body}\n  }}\n}}\n"


def tile(name: str, shape: str, element: str = "f32") -> str:
    zero = "0" if element.startswith("i") else "0.000000e+00"
    return f"%{name} = arith.constant dense<{zero}> : tensor<{shape}x{element}>"


def pointers(shape: str, size: int, element: str = "f32") -> tuple[str, ...]:
    """%p: a row of neighbours from %a on."""
    return (
        f"%r = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{shape}xi32>",
        f"%s = tt.splat %a : !tt.ptr<{element}> -> tensor<{shape}x!tt.ptr<{element}>>",
        f"%p = tt.addptr %s, %r : tensor<{shape}x!tt.ptr<{element}>>, tensor<{shape}xi32>",
    )


def limits(text: str) -> dict[str, str]:
    return {v.limit: v.mark for v in check_kernel(text, P800)}


def test_a_plain_copy_is_legal() -> None:
    load = "%v = tt.load %p : tensor<64x!tt.ptr<f32>>"
    text = ttir(*pointers("64", 64), load, "tt.store %p, %v : tensor<64x!tt.ptr<f32>>")
    assert check_kernel(text, P800) == []
    assert hazard_risks(text) == []
    assert memory_use(text, P800).params == 8 + 12


def test_a_violation_names_limit_mark_and_values() -> None:
    kinds = "tensor<8x16xf32> * tensor<16x16xf32> -> tensor<8x16xf32>"
    dot = f"%d = tt.dot %x, %y, %z : {kinds}"
    text = ttir(tile("x", "8x16"), tile("y", "16x16"), tile("z", "8x16"), dot)
    (found,) = check_kernel(text, P800)
    assert (found.limit, found.mark) == ("dot_size", "documented")
    assert "expected sizes of at least 16, got (8, 16, 16) (limit dot_size" in str(found)


@pytest.mark.parametrize("kind", ["f64", "f8E4M3FN"])
def test_types_that_no_unit_has(kind: str) -> None:
    assert limits(ttir(args=f"%a: !tt.ptr<{kind}>")) == {"dtype": "documented"}
    text = ttir(f"%x = arith.constant dense<0.000000e+00> : tensor<64x{kind}>")
    assert limits(text) == {"dtype": "documented"}


def test_parameters_are_bounded() -> None:
    many = ", ".join(f"%a{i}: !tt.ptr<f32>" for i in range(63))
    assert limits(ttir(args=many)) == {"param_bytes": "documented"}


def test_transposes_on_chip_are_small_unless_a_product_reads_them() -> None:
    trans = (
        "%t = tt.trans %x {order = array<i32: 1, 0>} : tensor<128x128xf32> -> tensor<128x128xf32>"
    )
    alone = ttir(tile("x", "128x128"), trans)
    assert "transpose_size" not in limits(alone), "nobody reads it"
    used = ttir(tile("x", "128x128"), trans, "%u = arith.addf %t, %t : tensor<128x128xf32>")
    assert limits(used)["transpose_size"] == "inferred"
    dot = "tensor<128x128xf32> * tensor<128x128xf32> -> tensor<128x128xf32>"
    read = ttir(tile("x", "128x128"), trans, f"%d = tt.dot %x, %t, %x : {dot}")
    assert limits(read) == {}
    wider = chip("xpu3", {"on_chip_transpose": 128})
    assert check_kernel(used, wider) == []


def test_a_tile_is_spread_over_the_cores() -> None:
    load = "%v = tt.load %p : tensor<16384x!tt.ptr<f32>>"
    text = ttir(*pointers("16384", 16384), load)
    assert limits(text)["tile_lanes"] == "documented"
    roomy = chip("xpu3", {"lm_buffer_bytes": 1024, "lm_bytes": 1 << 20, "lm_user_bytes": 1 << 19})
    assert check_kernel(text, roomy) == []


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("%u = math.exp2 %x : tensor<64xf32>", "math_accuracy"),
        ("%u = tt.histogram %i : tensor<64xi32> -> tensor<16xi32>", "operation"),
        ("%u = tt.join %x, %x : tensor<64xf32> -> tensor<64x2xf32>", "operation"),
        (
            "%u = tt.atomic_rmw fadd, acq_rel, gpu, %p, %x : "
            "(tensor<64x!tt.ptr<f32>>, tensor<64xf32>) -> tensor<64xf32>",
            "atomics_simulated",
        ),
    ],
)
def test_what_the_vendors_triton_lacks(line: str, limit: str) -> None:
    text = ttir(tile("x", "64"), tile("i", "64", "i32"), *pointers("64", 64), line)
    assert limits(text).get(limit) == "documented"


@pytest.mark.parametrize(
    ("lines", "risk"),
    [
        (
            (*pointers("64", 64), tile("m", "64", "i1"), tile("o", "64"),
             "%v = tt.load %p, %m, %o : tensor<64x!tt.ptr<f32>>"),
            "other",
        ),
        ((tile("x", "64"), "%u = arith.cmpf une, %x, %x : tensor<64xf32>"), "negative-zero"),
        ((tile("x", "32"), "%u = arith.mulf %x, %x : tensor<32xf32>"), "short-tail"),
        (
            (tile("m", "64", "i1"), tile("x", "64", "bf16"),
             "%u = arith.select %m, %x, %x : tensor<64xi1>, tensor<64xbf16>"),
            "where-bf16",
        ),
        (
            (tile("h", "64", "f16"), tile("x", "64"),
             "%w = arith.extf %h : tensor<64xf16> to tensor<64xf32>",
             "%u = arith.mulf %w, %x : tensor<64xf32>"),
            "half-product",
        ),
    ],
)  # fmt: skip
def test_silent_errors_are_seen_beforehand(lines: tuple[str, ...], risk: str) -> None:
    assert {r.limit for r in hazard_risks(ttir(*lines))} == {risk}
