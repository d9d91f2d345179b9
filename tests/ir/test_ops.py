"""Every op of the catalogue, by one sample each: text form, shape rule, reference and cost."""

from __future__ import annotations

import numpy as np
import pytest
from sglk.errors import VerifyError
from sglk.ir import ops  # noqa: F401  (fills the catalogue)
from sglk.ir.blocks import BlockArray
from sglk.ir.dim import concrete, dim
from sglk.ir.dtype import BF16, BOOL, I64, U32, round_bf16
from sglk.ir.graph import Graph
from sglk.ir.op import OPS, Op, result_types
from sglk.ir.ops.activations import GroupSums, QuantizeRows, RoundRows
from sglk.ir.ops.attention import Attention, PagedAttention, RopeWriteKv, WriteKv
from sglk.ir.ops.elementwise import Binary, Bitcast, Cast, Unary, Where
from sglk.ir.ops.indexing import PutAxis, TakeAxis
from sglk.ir.ops.linear import GatedLinear, Linear, MatMul
from sglk.ir.ops.moe import ExpertLinear, ExpertMlp, MoeRoute
from sglk.ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from sglk.ir.ops.order import CumSum, PutAlong, TakeAlong, TopK
from sglk.ir.ops.recurrence import CausalConv, LinearRecurrence, SlotConv, SlotRecurrence
from sglk.ir.ops.reduce import Argmax, Argmin, Max, Mean, Min, Prod, Softmax, Sum
from sglk.ir.ops.rope import Rope, RopeTable
from sglk.ir.ops.shape import Broadcast, Concat, Iota, Reshape, Slice, Transpose
from sglk.ir.ops.sparse import Embedding, GatherRows
from sglk.ir.ops.spatial import AvgPool, Convolution, MaxPool
from sglk.ir.parser import parse_graph, parse_type
from sglk.ir.rewrite import clone
from sglk.ir.testing import random_array
from sglk.ir.types import TensorType
from sglk.ir.verify import verify

SIZES = {"tokens": 5, "seqs": 2, "pages": 3, "rows": 2, "kv_slots": 32, "num_slots": 4}
T = dim("tokens")
STATE = "f32[2, 2, kv_slots, 2, 8]"
PLACES = ["i32[seqs + 1]", "i32[seqs]", "i32[seqs]"]
VALUES = ["f32[tokens, 4, 5]", "f32[tokens, 4, 3]", "f32[tokens, 4]"]
PAGED = ["f32[tokens, 4, 8]", STATE, "i32[seqs + 1]", "i32[seqs]", "i32[seqs, pages]"]

SAMPLES: dict[str, tuple[Op, list[str]]] = {
    "attention": (
        Attention(scale=0.25, window=3, softcap=30.0, has_sinks=True),
        ["f32[1, 4, tokens, 8]", "f32[1, 2, tokens, 8]", "f32[1, 2, tokens, 8]", "f32[4]"],
    ),
    "paged_attention": (PagedAttention(layer=1, scale=0.25, page_size=8, window=4), PAGED),
    "write_kv": (
        WriteKv(layer=1, kv_dtype=BF16),
        ["bf16[2, 2, kv_slots, 2, 8]", "f32[tokens, 2, 8]", "f32[tokens, 2, 8]", "i32[tokens]"],
    ),
    "rope_write_kv": (
        RopeWriteKv(heads=4, layer=0, interleaved=True),
        ["f32[tokens, 64]", "f32[tokens, 4]", "f32[tokens, 4]", STATE, "i32[tokens]"],
    ),
    "causal_conv": (CausalConv(has_bias=True), ["f32[1, 6, tokens]", "f32[6, 3]", "f32[6]"]),
    "slot_conv": (
        SlotConv(layer=1),
        ["f32[2, num_slots, 2, 6]", *PLACES, "f32[tokens, 6]", "f32[6, 3]"],
    ),
    "linear_recurrence": (
        LinearRecurrence(has_rate=True),
        [*["f32[1, tokens, 2, 3]"] * 2, "f32[1, tokens, 4, 1]", "f32[1, tokens, 4]", "f32[4, 3]"],
    ),
    "slot_recurrence": (
        SlotRecurrence(layer=0, has_beta=True),
        ["f32[1, num_slots, 4, 3, 5]", *PLACES, *["f32[tokens, 2, 3]"] * 2, *VALUES],
    ),
    "linear": (
        Linear(has_bias=True, has_residual=True, activation="gelu_tanh"),
        ["f32[tokens, 32]", "q4_1[6, 32]", "f32[6]", "f32[tokens, 6]"],
    ),
    "gated_linear": (GatedLinear("silu"), ["f32[tokens, 32]", "q8_0[12, 32]"]),
    "matmul": (MatMul(), ["f32[3, tokens, 4]", "f32[1, 4, tokens]"]),
    "moe_route": (MoeRoute(top_k=2, renormalize=False), ["f32[tokens, 6]"]),
    "expert_linear": (ExpertLinear(), ["f32[tokens, 8]", "f32[4, 6, 8]", "i32[tokens, 2]"]),
    "expert_mlp": (
        ExpertMlp("silu"),
        ["f32[tokens, 8]", "f32[4, 12, 8]", "f32[4, 5, 6]", "i32[tokens, 2]", "f32[tokens, 2]"],
    ),
    "top_k": (TopK(3), ["f32[tokens, 6]"]),
    "take_along": (TakeAlong(), ["f32[tokens, 6]", "i32[tokens, 2]"]),
    "put_along": (PutAlong(), ["f32[tokens, 6]", "i32[tokens, 2]", "f32[tokens, 2]"]),
    "cumsum": (CumSum(), ["f32[tokens, 6]"]),
    "rmsnorm": (RmsNorm(eps=1e-5), ["f32[tokens, 8]", "f32[8]"]),
    "add_rmsnorm": (AddRmsNorm(), ["bf16[tokens, 8]", "bf16[tokens, 8]", "bf16[8]"]),
    "layernorm": (LayerNorm(eps=1e-12), ["f32[tokens, 8]", "f32[8]", "f32[8]"]),
    "sum": (Sum(axis=0), ["i32[tokens, 3]"]),
    "mean": (Mean(keepdim=True), ["f16[tokens, 3]"]),
    "max": (Max(axis=1, keepdim=True), ["f32[tokens, 3]"]),
    "min": (Min(), ["i32[tokens, 3]"]),
    "prod": (Prod(axis=0), ["f32[tokens, 3]"]),
    "argmax": (Argmax(), ["f32[tokens, 9]"]),
    "argmin": (Argmin(keepdim=True), ["f32[tokens, 9]"]),
    "softmax": (Softmax(axis=0), ["f32[tokens, 3]"]),
    "rope_table": (RopeTable(scale=1.5), ["i32[tokens]", "f32[4]"]),
    "rope": (Rope(interleaved=True), ["f32[tokens, 2, 10]", "f32[tokens, 4]", "f32[tokens, 4]"]),
    "reshape": (Reshape((T, 2, 4)), ["f32[tokens, 8]"]),
    "transpose": (Transpose((2, 0, 1)), ["f32[2, tokens, 3]"]),
    "slice": (Slice(axis=1, start=1, stop=7, step=2), ["f32[tokens, 8]"]),
    "concat": (Concat(axis=0), ["i32[tokens]", "i32[2]", "i32[tokens]"]),
    "broadcast": (Broadcast((3, T, 4)), ["f32[tokens, 1]"]),
    "iota": (Iota(T * 2 + 1, I64), []),
    "embedding": (Embedding(), ["q4_0[7, 32]", "i32[1, tokens]"]),
    "gather_rows": (GatherRows(), ["f32[tokens, 4]", "i32[rows]"]),
    "take_axis": (TakeAxis(axis=1), ["f32[tokens, 4, 2]", "i32[rows]"]),
    "put_axis": (PutAxis(1, "add"), ["f32[tokens, 4]", "i32[rows]", "f32[tokens, rows]"]),
    "convolution": (
        Convolution((2, 1), (1, 0), (1, 0), (1, 2), groups=2, has_bias=True),
        ["f32[1, 4, tokens, 7]", "f32[6, 2, 3, 2]", "f32[6]"],
    ),
    "max_pool": (MaxPool((3, 2), (2, 1), (1, 0), (1, 0), (1, 1)), ["f32[1, 4, tokens, 5]"]),
    "avg_pool": (
        AvgPool((3,), (2,), (1,), (2,), (1,), count_padding=True, pads=(1,)),
        ["f32[1, 4, tokens]"],
    ),
    "where": (Where(), ["bool[tokens, 1]", "f32[tokens, 4]", "f32[]"]),
    "cast": (Cast(BF16), ["f32[tokens, 4]"]),
    "bitcast": (Bitcast(U32), ["f32[tokens, 4]"]),
    "round_rows": (RoundRows(), ["f32[tokens, 64]"]),
    "group_sums": (GroupSums(), ["f32[tokens, 64]"]),
    "quantize_rows": (QuantizeRows(), ["f32[tokens, 64]"]),
}
_ELEMENTS = {"number": "f32", "float": "f32", "integer": "i32", "any": "i32", "bool": "bool"}
for _name, _class in OPS.items():
    if issubclass(_class, Unary):
        SAMPLES[_name] = (_class(), [f"{_ELEMENTS[_class.on]}[tokens, 4]"])
    elif issubclass(_class, Binary):
        _dtype = _ELEMENTS[_class.on]
        SAMPLES[_name] = (_class(), [f"{_dtype}[tokens, 4]", f"{_dtype}[1, 4]"])


def sample_graph(name: str) -> Graph:
    op, types = SAMPLES[name]
    graph = Graph("sample")
    for i, text in enumerate(types):
        home = graph.state if "_slots, " in text else graph.param if i % 2 else graph.input
        home(f"x{i}", parse_type(text))
    operands = [graph.find(f"x{i}") for i in range(len(types))]
    graph.outputs = list(graph.append(op, *operands, source="model.py:7 forward"))
    return graph


def sample_array(name: str, i: int, type: TensorType, rng: np.random.Generator) -> object:
    """Random, but for operands that must be consistent with others."""
    sequences = {
        2: np.array([0, 2, 5], np.int32),
        3: np.array([2, 7], np.int32),
        4: np.array([[1, 2, 0], [3, 0, 0]], np.int32),
    }
    if name == "paged_attention" and i in sequences:
        return sequences[i]
    places = {1: np.array([0, 2, 5]), 2: np.array([2, 7]), 3: np.array([3, 1])}
    if name.startswith("slot_") and i in places:
        return places[i].astype(np.int32)
    return random_array(type, rng, SIZES)


def test_every_op_has_a_sample() -> None:
    assert sorted(OPS) == sorted(SAMPLES), "an op without a sample (or a sample without an op)"


@pytest.mark.parametrize("name", sorted(OPS))
def test_its_text_reads_back(name: str) -> None:
    graph = sample_graph(name)
    verify(graph)
    again = parse_graph(graph.as_text())
    verify(again)
    assert again.as_text() == graph.as_text()
    assert [n.op for n in again.nodes] == [n.op for n in graph.nodes]
    assert again.nodes[0].source == "model.py:7 forward"


@pytest.mark.parametrize("name", sorted(OPS))
def test_its_reference_gives_the_types_of_its_shape_rule(name: str) -> None:
    graph = clone(sample_graph(name), SIZES)
    node, rng = graph.nodes[0], np.random.default_rng(0)
    arrays = [sample_array(name, i, v.type, rng) for i, v in enumerate(node.inputs)]
    result = node.op.reference(*arrays)
    results = result if isinstance(result, tuple) else (result,)
    for array, value in zip(results, node.outputs, strict=True):
        assert tuple(array.shape) == value.type.shape
        assert isinstance(array, BlockArray) or array.dtype == value.type.dtype.numpy


@pytest.mark.parametrize("name", sorted(OPS))
def test_its_reference_leaves_its_operands_alone(name: str) -> None:
    graph = clone(sample_graph(name), SIZES)
    node, rng = graph.nodes[0], np.random.default_rng(1)
    arrays = [sample_array(name, i, v.type, rng) for i, v in enumerate(node.inputs)]
    plain = [a for a in arrays if isinstance(a, np.ndarray)]
    before = [a.copy() for a in plain]
    for array in plain:
        array.flags.writeable = False
    node.op.reference(*arrays)
    for a, b in zip(plain, before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", sorted(OPS))
def test_its_cost_is_a_whole_number_for_every_size(name: str) -> None:
    (node,) = sample_graph(name).nodes
    cost = node.op.cost([v.type for v in node.inputs], [v.type for v in node.outputs])
    assert concrete(cost.flops, SIZES) >= 0
    assert concrete(cost.bytes, SIZES) > 0


@pytest.mark.parametrize("name", sorted(OPS))
def test_it_refuses_a_wrong_number_of_operands(name: str) -> None:
    op, types = SAMPLES[name]
    operands = [parse_type(t) for t in types]
    surplus = [*operands, TensorType(BOOL, (3, 1, 9))]
    with pytest.raises(VerifyError):
        result_types(op, surplus)
    if operands and name != "concat":
        with pytest.raises(VerifyError):
            result_types(op, operands[:-1])


@pytest.mark.parametrize("name", sorted(set(OPS) - {"iota", "concat"}))
def test_it_refuses_operands_of_another_kind(name: str) -> None:
    """A block matrix fits only where weights go, and there it is of the wrong rank."""
    op, types = SAMPLES[name]
    with pytest.raises(VerifyError):
        result_types(op, [parse_type("q4_1[4, 2, 32]") for _ in types])


def test_a_second_op_of_the_same_name_is_refused() -> None:
    with pytest.raises(VerifyError, match=r"op rmsnorm: defined twice, in sglk\.ir\.ops\.norm"):
        type("RmsNorm", (Op,), {"name": "rmsnorm", "__module__": "elsewhere"})


def test_an_op_without_rules_says_so() -> None:
    nameless = type("Nameless", (Op,), {"__module__": __name__})()
    with pytest.raises(VerifyError, match="has no shape rule"):
        nameless.infer()
    with pytest.raises(VerifyError, match="has no reference"):
        nameless.reference()


def test_bf16_results_are_rounded_when_a_graph_runs() -> None:
    from sglk.ir.interpret import interpret

    graph = parse_graph(
        "graph g(%a: bf16[4], %b: bf16[4]) {\n  %c: bf16[4] = mul(%a, %b)\n  return %c\n}"
    )
    rng = np.random.default_rng(2)
    a, b = (round_bf16(rng.standard_normal(4, np.float32)) for _ in range(2))
    (c,) = interpret(graph, {"a": a, "b": b})
    np.testing.assert_array_equal(c, round_bf16(a * b))
    assert not np.array_equal(c, a * b)
