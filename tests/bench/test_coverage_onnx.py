"""Some tests of onnx's own backend suite, every mechanism among them, on both tiers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from sglk.bench.coverage_onnx import Row, by_reason, check, document, table
from sglk.bench.onnx_cases import STRINGS, TRAINING, Case, cases, node_cases

pytestmark = pytest.mark.filterwarnings("ignore")  # onnx's and torch's, about their own numbers
MODULES = (
    "abs", "add", "bitshift", "clip", "cumprod", "cumsum", "depthtospace", "det", "einsum",
    "expand", "gatherelements", "gathernd", "if_", "loop", "mod", "nonzero", "onehot", "pad",
    "pow", "reduce_log_sum_exp", "reducemax", "reshape", "reversesequence", "scan", "scatternd",
    "slice", "split", "string_concat", "topk", "trilu", "unique", "where",
)  # fmt: skip
INTERPRETED = (
    "test_bitshift_left_uint16", "test_clip_default_int8_min", "test_cumprod_1d_reverse",
    "test_cumsum_2d_negative_axis", "test_depthtospace_crd_mode_example", "test_det_nd",
    "test_einsum_batch_matmul", "test_expand_dim_changed", "test_gather_elements_negative_indices",
    "test_gathernd_example_int32_batch_dim1", "test_if", "test_loop11", "test_mod_mixed_sign_int8",
    "test_onehot_negative_indices", "test_reflect_pad", "test_pow_types_float32_int64",
    "test_reduce_log_sum_exp_keepdims_random", "test_reduce_max_empty_set",
    "test_reshape_zero_and_negative_dim", "test_reversesequence_time", "test_scan9_sum",
    "test_scatternd_max", "test_slice_neg_steps", "test_split_1d_uneven_split_opset18",
    "test_top_k_smallest", "test_tril_neg", "test_where_long_example",
)  # fmt: skip
COMPILED = ("test_add_bcast", "test_slice", "test_where_long_example", "test_loop11", "test_if")
FOLDED = ("test_nonzero_example", "test_unique_sorted_without_axis")
REFUSED = {"test_scan_sum": "opset 9 or later"}


@pytest.fixture(scope="module")
def tests() -> dict[str, Case]:
    return {case.name: case for case in node_cases(MODULES)}


@pytest.mark.parametrize("name", INTERPRETED)
def test_node_test_passes(tests: dict[str, Case], name: str) -> None:
    row = check(tests[name], compiled=False)
    assert (row.verdict, row.reason) == ("pass", "")


@pytest.mark.parametrize("name", COMPILED)
def test_node_test_passes_from_an_artifact(tests: dict[str, Case], name: str) -> None:
    row = check(tests[name], compiled=True)
    assert (row.verdict, row.reason) == ("pass", "")


@pytest.mark.parametrize("name", FOLDED)
def test_values_that_decide_every_shape_are_compiled_in(tests: dict[str, Case], name: str) -> None:
    assert check(tests[name], compiled=False).verdict == "folded"


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_unsupported_tests_are_refused_by_name(
    tests: dict[str, Case], name: str, reason: str
) -> None:
    row = check(tests[name], compiled=False)
    assert row.verdict == "refused"
    assert reason in row.reason


def test_strings_do_not_count(tests: dict[str, Case]) -> None:
    assert check(tests["test_string_concat"], compiled=False).verdict == "excepted"
    assert tests["test_string_concat"].excepted == STRINGS


def test_models_with_data_are_tests_too() -> None:
    found = {case.name: case for case in cases(["simple"])}
    assert check(found["test_sign_model"], compiled=False).verdict == "pass"
    (old,) = (c for c in cases(["pytorch-converted"]) if c.name == "test_PReLU_2d_multiparam")
    assert check(old, compiled=False).verdict == "pass"
    assert found["test_gradient_of_add"].excepted == TRAINING


def test_other_numbers_are_wrong_and_other_exceptions_are_errors() -> None:
    info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "neg", [info], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x = np.array([1, 2], np.float32)

    def verdict(wanted: object) -> str:
        case = Case("test", "node", model, lambda: iter([([x], [wanted])]), 1e-3, 1e-7, "")
        return check(case, compiled=False).verdict

    assert verdict(-x) == "pass"
    assert verdict(x) == "wrong"
    assert verdict(-x[:1]) == "wrong"
    assert verdict("no array") == "error"


def test_the_page_counts_and_names() -> None:
    rows = [
        Row("a", "node", "Add", "pass"),
        Row("b", "node", "Conv", "refused", "no kernel"),
        Row("c", "node", "Str", "excepted", "strings"),
    ]
    assert table(rows)[-1] == "| node | 3 | 1 | 0 | 1 | 0 | 0 | 1 | 50.0 % |"
    assert by_reason(rows, "refused") == ["Conv x1: no kernel"]
    page = document({"compiled": rows, "interpreted": rows[:1]})
    assert "## refused: 1\n\n- Conv x1: no kernel" in page
    assert page.count("| suite |") == 2
