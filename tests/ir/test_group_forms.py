"""Group forms: names, sizes, exact values, and the ops that take matrices of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sglk.errors import VerifyError
from sglk.ir.dtype import F32, dtype
from sglk.ir.forms import GroupForm, form_named
from sglk.ir.graph import Graph
from sglk.ir.groups import E4M3_VALUES, GroupArray, random_groups
from sglk.ir.ops.linear import Linear
from sglk.ir.ops.sparse import Embedding
from sglk.ir.parser import parse_graph
from sglk.ir.quantized import concat
from sglk.ir.types import TensorType

NAMES = (
    "i4_g32_f16",
    "i4_g128_f16_z",
    "i4_row_f32",
    "i8_g64_bf16_z",
    "i8_row_bf16",
    "e4m3_g128_f32",
    "e4m3_row_bf16",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_all_of_a_form(name: str) -> None:
    form = form_named(name)
    assert form is not None and form.name == name
    assert dtype(name) == dtype(name) and dtype(name).form == form
    assert dtype(name).is_block and dtype(name).is_float


@pytest.mark.parametrize(
    "name", ["i4_g48_f16", "e4m3_g128_f32_z", "i3_g32_f16", "i4_g0_f16", "i4_g32_f64", "q4_1"]
)
def test_other_names_are_no_forms(name: str) -> None:
    assert form_named(name) is None


def test_an_unknown_name_is_no_dtype() -> None:
    with pytest.raises(VerifyError, match="i4_g48_f16"):
        dtype("i4_g48_f16")


def test_bytes_count_scales_and_zero_points() -> None:
    form = GroupForm("i4", 128, "f16", True)
    assert form.row_bytes(256) == 128 + 2 * (2 + 1)
    assert TensorType(dtype(form.name), (10, 256)).bytes == 10 * form.row_bytes(256)
    array = random_groups(form.name, (10, 256), np.random.default_rng(0))
    assert array.nbytes == 10 * form.row_bytes(256)


def test_e4m3_values_are_those_of_the_standard_type() -> None:
    bytes_ = np.arange(256, dtype=np.uint8)
    wanted = torch.from_numpy(bytes_).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(E4M3_VALUES, wanted)
    np.testing.assert_array_equal(np.signbit(E4M3_VALUES[:255]), np.signbit(wanted[:255]))


@pytest.mark.parametrize("name", NAMES)
def test_values_are_differences_times_scales(name: str) -> None:
    """One number at a time, in Python's own arithmetic rounded once to f32."""
    array = random_groups(name, (3, 160), np.random.default_rng(1))
    form, got = array.form, array.dequantize()
    scales = array.scales()
    for n, k in np.ndindex(3, 160):
        g = 0 if form.group is None else k // form.group
        stored = int(array.q[n, k])
        zero = form.zero if array.zero is None else int(array.zero[n, g])
        number = float(E4M3_VALUES[stored]) if form.is_float else float(stored - zero)
        assert got[n, k] == np.float32(number * float(scales[n, g]))


def test_rows_are_taken_and_stacked_as_they_are() -> None:
    rng = np.random.default_rng(2)
    first, second = (random_groups("i4_g32_f16_z", (n, 64), rng) for n in (4, 6))
    both = concat([first, second])
    wanted = np.concatenate([first.dequantize(), second.dequantize()])
    np.testing.assert_array_equal(both.dequantize(), wanted)
    np.testing.assert_array_equal(both[2:7].dequantize(), wanted[2:7])
    np.testing.assert_array_equal(both.take_rows([9, 0, 5]).dequantize(), wanted[[9, 0, 5]])
    with pytest.raises(VerifyError, match="one type"):
        concat([first, random_groups("i4_g64_f16_z", (4, 64), rng)])


def test_parts_that_do_not_fit_the_name_are_refused() -> None:
    q, scale = np.zeros((2, 64), np.uint8), np.ones((2, 2), np.float16)
    GroupArray("i4_g32_f16", (2, 64), q, scale)
    with pytest.raises(VerifyError, match="scales"):
        GroupArray("i4_g64_f16", (2, 64), q, scale)
    with pytest.raises(VerifyError, match="zero points"):
        GroupArray("i4_g32_f16_z", (2, 64), q, scale)
    with pytest.raises(VerifyError, match="multiple of 32"):
        GroupArray("i4_g32_f16", (2, 60), q[:, :60], scale)


def test_graphs_of_forms_read_back_and_compute() -> None:
    graph = Graph("toy")
    ids = graph.input("ids", TensorType(dtype("i32"), (3,)))
    table = graph.param("table", TensorType(dtype("e4m3_g128_f32"), (8, 128)))
    weight = graph.param("weight", TensorType(dtype("i4_g128_f16_z"), (5, 128)))
    rows = graph.emit(Embedding(), table, ids)
    graph.outputs = [graph.emit(Linear(), rows, weight)]
    assert parse_graph(graph.as_text()).as_text() == graph.as_text()
    assert graph.outputs[0].type == TensorType(F32, (3, 5))
