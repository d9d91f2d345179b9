"""Calls of the vendor's operators through the adapter's face, which the emulator exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk import knobs
from sglk.errors import DeviceError
from sglk.ir.dim import dim
from sglk.ir.dtype import F32
from sglk.ir.graph import Graph
from sglk.ir.interpret import interpret
from sglk.ir.ops.elementwise import Silu
from sglk.ir.ops.linear import Linear
from sglk.ir.ops.norm import AddRmsNorm, RmsNorm
from sglk.ir.rewrite import clone
from sglk.ir.types import TensorType
from sglk.targets.backend import open_backend
from sglk.targets.conformance.chip import Chip
from sglk.targets.kunlun import vendor_rows
from sglk.targets.kunlun.capabilities import chip
from sglk.targets.kunlun.device.library import XreDeviceError, XreLibrary
from sglk.targets.kunlun.device.vendor import VendorAdapter, slots_of
from sglk.targets.kunlun.emulator.build import NATIVE
from sglk.targets.registry import open_device

CALLS = re.findall(r"^//   (\w+_f32) ", (NATIVE / "vendor_adapter.h").read_text(), re.MULTILINE)
"""What the header says that there is."""


@pytest.fixture
def adapter(bench: Any) -> VendorAdapter:
    return VendorAdapter(bench.library)


def call(bench: Any, adapter: VendorAdapter, name: str, *values: int | float) -> None:
    kinds = ["f32" if isinstance(value, float) else "i64" for value in values]
    adapter.call(name.encode(), slots_of(values, kinds), bench.xpu.stream)
    bench.xpu.wait()


def test_the_header_the_emulator_and_the_rows_know_the_same_calls(adapter: VendorAdapter) -> None:
    assert set(CALLS) == {"rmsnorm_f32", "add_rmsnorm_f32", "matmul_f32"}
    adapter.require(f"vendor.{name}" for name in CALLS)
    assert {name.replace("-", "_") + "_f32" for name in vendor_rows.ADAPTED} == set(CALLS)


def test_a_program_calls_the_operators_that_the_configuration_names(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"vendor_operators": ["rmsnorm", "add-rmsnorm", "matmul"]}))
    graph, n = Graph("norms"), dim("n")
    x = graph.input("x", TensorType(F32, (n, 64)))
    w, m = graph.param("w", TensorType(F32, (64,))), graph.param("m", TensorType(F32, (80, 64)))
    total, y = graph.append(AddRmsNorm(1e-5), x, graph.emit(RmsNorm(1e-5), x, w), w)
    graph.outputs = [graph.emit(Silu(), graph.emit(Linear(), y, m)), total]
    rng = np.random.default_rng(2)
    params = {"w": rng.standard_normal(64), "m": rng.standard_normal((80, 64))}
    params = {name: array.astype(np.float32) for name, array in params.items()}
    with knobs.override(kunlun_config=str(config)):
        one = Chip(open_backend("kunlun"), open_device("emulator"), tmp_path)
        artifact = one.compile(graph, params)
    kernels = artifact.program("forward").kernels
    assert [k for k in kernels if k.startswith("vendor.")] == [f"vendor.{name}" for name in CALLS]
    with artifact, one.loaded(artifact) as executable:
        for rows in (1, 70):
            a = rng.standard_normal((rows, 64)).astype(np.float32)
            got = executable.run("forward", {"x": a})
            wanted = interpret(clone(graph, {"n": rows}), {"x": a}, params)
            for value, each in zip(graph.outputs, wanted, strict=True):
                np.testing.assert_allclose(got[value.name], each, rtol=1e-4, atol=1e-4)


def test_results_are_those_of_the_operator(bench: Any, adapter: VendorAdapter) -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 24), (7, 24)))
    bias, out = rng.standard_normal(7).astype(np.float32), np.zeros((5, 7), np.float32)
    places = [bench.put(array) for array in (x, w, out, bias)]
    call(bench, adapter, "matmul_f32", *places, 5, 7, 24, 2.0)
    bench.xpu.download(out, places[2])
    np.testing.assert_allclose(out, 2 * x @ w.T + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "argument"), [(3, 0), (2, 2)])
def test_an_operand_past_its_allocation_breaks_the_device(
    bench: Any, adapter: VendorAdapter, rows: int, argument: int
) -> None:
    x, w, short = np.ones((2, 8), np.float32), np.ones(8, np.float32), np.ones(12, np.float32)
    places = [bench.put(array) for array in (x, w, short)]
    sentence = rf"rmsnorm_f32: argument {argument}: .* past the end .*limit dma_bounds"
    with pytest.raises(XreDeviceError, match=sentence):
        call(bench, adapter, "rmsnorm_f32", *places, rows, 8, 1e-5)
    with pytest.raises(XreDeviceError, match="does not work since"):
        bench.xpu.allocate(16)


def test_an_operand_that_was_freed_is_named(bench: Any, adapter: VendorAdapter) -> None:
    places = [bench.put(np.ones(8, np.float32)) for _ in range(3)]
    bench.xpu.free(places[1])
    with pytest.raises(XreDeviceError, match=r"argument 1: .*use after free"):
        call(bench, adapter, "rmsnorm_f32", *places, 1, 8, 1e-5)


def test_wrong_calls_are_refused(bench: Any, adapter: VendorAdapter) -> None:
    with pytest.raises(XreDeviceError, match="rmsnorm_f32: expected 6 arguments, got 2"):
        call(bench, adapter, "rmsnorm_f32", 1, 2)
    with pytest.raises(DeviceError, match=r"operators rmsnorm_f32, moe_fc, got none for moe_fc"):
        adapter.require(["vendor.rmsnorm_f32", "vendor.moe_fc"])


def test_an_adapter_that_does_not_fit_is_one_sentence(library: XreLibrary) -> None:
    with pytest.raises(DeviceError, match=r"SGLK_KUNLUN_ADAPTER: expected a library at /no\.so"):
        VendorAdapter(library, "/no.so")
    with pytest.raises(DeviceError, match=r"libc\.so\.6: expected an adapter with sglk_vendor"):
        VendorAdapter(library, "libc.so.6")


def test_no_operator_is_named_until_somebody_has_an_adapter() -> None:
    fact = chip("xpu3").fact("vendor_operators")
    assert (fact.value, fact.confidence) == ((), "unknown")
