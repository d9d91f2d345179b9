"""Shape rules: what each op refuses, and what it makes of symbolic sizes."""

from __future__ import annotations

import pytest
from sglk.errors import VerifyError
from sglk.ir.dim import cdiv, dim
from sglk.ir.dtype import BF16, BOOL, I32
from sglk.ir.op import Op, result_types
from sglk.ir.ops.attention import Attention, PagedAttention, RopeWriteKv, WriteKv
from sglk.ir.ops.elementwise import Add, And, Bitcast, Cast, Div, Exp, Where
from sglk.ir.ops.linear import GatedLinear, Linear, MatMul
from sglk.ir.ops.moe import MoeRoute
from sglk.ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from sglk.ir.ops.reduce import Argmax, Mean, Softmax, Sum
from sglk.ir.ops.rope import Rope, RopeTable
from sglk.ir.ops.shape import Broadcast, Concat, Iota, Reshape, Slice, Transpose
from sglk.ir.ops.sparse import Embedding, GatherRows
from sglk.ir.parser import parse_type

T = dim("tokens")
Q, K = "f32[1, 4, tokens, 8]", "f32[1, 2, tokens, 8]"
STATE = "f32[2, 2, kv_slots, 2, 8]"
PAGED = ["f32[tokens, 4, 8]", STATE, "i32[seqs + 1]", "i32[seqs]", "i32[seqs, pages]"]
TABLES = ["f32[tokens, 4]", "f32[tokens, 4]"]


def paged(index: int, text: str) -> list[str]:
    return [*PAGED[:index], text, *PAGED[index + 1 :]]


REFUSED: list[tuple[Op, list[str], str]] = [
    (Attention(1.0), [Q, K, "f32[1, 2, tokens, 4, 1]"], "expected q"),
    (Attention(1.0), [Q, "f32[1, 2, tokens, 4]", "f32[1, 2, tokens, 4]"], "expected q"),
    (Attention(1.0), [Q, "f32[2, 2, tokens, 8]", "f32[2, 2, tokens, 8]"], "expected q"),
    (Attention(1.0), [Q, "bf16[1, 2, tokens, 8]", "bf16[1, 2, tokens, 8]"], "expected q"),
    (Attention(1.0), [Q, "f32[1, 3, tokens, 8]", "f32[1, 3, tokens, 8]"], "over 3 KV heads, got 4"),
    (Attention(1.0), [Q, "f32[1, 2, keys, 8]", "f32[1, 2, keys, 8]"], "as many keys as queries"),
    (Attention(1.0), [Q, K, K, "f32[4]"], "1 sink operands"),
    (Attention(1.0, has_sinks=True), [Q, K, K], "0 sink operands"),
    (Attention(1.0, has_sinks=True), [Q, K, K, "f32[2]"], r"expected sinks \[4\]"),
    (Attention(1.0, window=0), [Q, K, K], "window 0"),
    (PagedAttention(0, 1.0, 8), paged(0, "f32[tokens, 4, 6]"), "for the state"),
    (PagedAttention(0, 1.0, 8), paged(0, "f32[tokens, 3, 8]"), "over 2 KV heads, got 3"),
    (PagedAttention(0, 1.0, 8), paged(1, "f32[2, 3, kv_slots, 2, 8]"), "expected a state"),
    (PagedAttention(0, 1.0, 8), paged(2, "i32[seqs]"), r"query_start \[S\+1\]"),
    (PagedAttention(0, 1.0, 8), paged(3, "f32[seqs]"), "expected integers"),
    (PagedAttention(0, 1.0, 8), paged(4, "i32[pages, seqs]"), r"page_table \[S, P\]"),
    (PagedAttention(2, 1.0, 8), PAGED, "with layer 2"),
    (PagedAttention(-1, 1.0, 8), PAGED, "with layer -1"),
    (PagedAttention(0, 1.0, 0), PAGED, "for the state"),
    (PagedAttention(0, 1.0, 8, has_sinks=True), PAGED, "0 sink operands"),
    (WriteKv(0), [STATE, "f32[tokens, 2, 8]", "f32[tokens, 2, 4]", "i32[tokens]"], "expected k, v"),
    (WriteKv(0), [STATE, "f32[tokens, 1, 8]", "f32[tokens, 1, 8]", "i32[tokens]"], "expected k, v"),
    (WriteKv(0), [STATE, "f32[tokens, 2, 8]", "f32[tokens, 2, 8]", "i32[rows]"], "expected k, v"),
    (WriteKv(0), [STATE, "f32[tokens, 2, 8]", "f32[tokens, 2, 8]", "f32[tokens]"], "expected k, v"),
    (WriteKv(0, BF16), [STATE, "f32[tokens, 2, 8]", "f32[tokens, 2, 8]", "i32[tokens]"], "a bf16"),
    (RopeWriteKv(4, 0), ["f32[tokens, 60]", *TABLES, STATE, "i32[tokens]"], r"qkv \[T, 64\]"),
    (RopeWriteKv(4, 0), ["f32[1, tokens, 64]", *TABLES, STATE, "i32[tokens]"], r"qkv \[T, N\]"),
    (RopeWriteKv(4, 0), ["f32[tokens, 64]", *TABLES, STATE, "i32[rows]"], "slots|got"),
    (RopeWriteKv(4, 0, BF16), ["f32[tokens, 64]", *TABLES, STATE, "i32[tokens]"], "a bf16 state"),
    (Rope(), ["f32[tokens, 2, 6]", *TABLES], "2R <= 6"),
    (Rope(), ["f32[tokens, 2, 8]", "f32[rows, 4]", "f32[rows, 4]"], r"f32\[tokens, R\]"),
    (Rope(), ["f32[tokens, 2, 8]", "f32[tokens, 4]", "f32[tokens, 3]"], "expected cos and sin"),
    (Rope(), ["f32[tokens, 16]", *TABLES], r"x \[T, H, D\]"),
    (RopeTable(), ["f32[tokens]", "f32[4]"], "expected positions"),
    (RopeTable(), ["i32[1, tokens]", "f32[4]"], "expected positions"),
    (RopeTable(), ["i32[tokens]", "bf16[4]"], "expected positions"),
    (Linear(), ["f32[tokens, 8]", "f32[3, 9]"], "expected x f32"),
    (Linear(), ["f16[tokens, 8]", "f32[3, 8]"], "expected x f32"),
    (Linear(), ["f32[tokens, 8]", "i32[3, 8]"], "expected x f32"),
    (Linear(has_bias=True), ["f32[tokens, 8]", "f32[3, 8]"], "0 optional operands"),
    (Linear(has_bias=True), ["f32[tokens, 8]", "f32[3, 8]", "f32[4]"], r"a bias f32\[3\]"),
    (Linear(has_bias=True), ["f32[tokens, 8]", "f32[3, 8]", "bf16[3]"], r"a bias f32\[3\]"),
    (Linear(has_residual=True), ["f32[tokens, 8]", "f32[3, 8]", "f32[3]"], "a residual"),
    (Linear(activation="swish"), ["f32[tokens, 8]", "f32[3, 8]"], "'swish' .known: silu"),
    (GatedLinear("silu"), ["f32[tokens, 8]", "f32[3, 8]"], "even row count"),
    (GatedLinear("silu"), ["f32[tokens, 8]", "f32[4, 9]"], r"w \[2N, K\]"),
    (GatedLinear("swish"), ["f32[tokens, 8]", "f32[4, 8]"], "activation 'swish'"),
    (MatMul(), ["f32[tokens, 8]", "f32[9, 3]"], r"\[..., M, K\]"),
    (MatMul(), ["f32[tokens, 8]", "bf16[8, 3]"], "one dtype"),
    (MatMul(), ["f32[8]", "f32[8, 3]"], r"\[..., M, K\]"),
    (MatMul(), ["f32[2, 3, 8]", "f32[4, 8, 3]"], "equal dims or 1, got 2 and 4"),
    (MoeRoute(3), ["f32[tokens, 2]"], "E >= 3"),
    (MoeRoute(0), ["f32[tokens, 2]"], "E >= 0"),
    (MoeRoute(1), ["f32[tokens, experts]"], "E >= 1"),
    (RmsNorm(), ["f32[tokens, 8]", "f32[9]"], "weight of the last dim"),
    (RmsNorm(), ["f32[tokens, 8]", "bf16[8]"], "weight of the last dim"),
    (RmsNorm(), ["f32[]", "f32[]"], "weight of the last dim"),
    (AddRmsNorm(), ["f32[tokens, 8]", "f32[1, 8]", "f32[8]"], "expected equal types"),
    (AddRmsNorm(), ["f32[tokens, 8]", "f32[tokens, 8]", "f32[tokens]"], "weight of the last"),
    (LayerNorm(), ["f32[tokens, 8]", "f32[8]", "f32[1]"], "weight and bias"),
    (LayerNorm(), ["i32[tokens, 8]", "i32[8]", "i32[8]"], "weight and bias"),
    (Sum(axis=2), ["f32[tokens, 8]"], "expected an axis"),
    (Sum(), ["bool[tokens, 8]"], "expected numbers"),
    (Mean(), ["i32[tokens, 8]"], "expected floats"),
    (Argmax(axis=-3), ["f32[tokens, 8]"], "expected an axis"),
    (Softmax(axis=1), ["f32[tokens]"], "expected an axis"),
    (Softmax(), ["i32[tokens]"], "expected floats"),
    (Reshape((T, 3)), ["f32[tokens, 4]"], r"expected 4\*tokens elements"),
    (Reshape((-2, -3)), ["f32[6]"], "at least 0"),
    (Reshape((4, 16)), ["q4_1[2, 32]"], "whole blocks|plain dtype"),
    (Transpose((0, 0)), ["f32[2, 3]"], "a permutation of 2 axes"),
    (Transpose((1, 0)), ["q4_1[32, 32]"], "a permutation of 2 axes"),
    (Slice(2, 0, 1), ["f32[2, 3]"], "expected an axis"),
    (Slice(0, 1, 3), ["f32[2, 3]"], "lies outside"),
    (Slice(0, 2, 1), ["f32[4]"], "lies outside"),
    (Slice(0, -3, T), ["f32[tokens]"], "lies outside"),
    (Slice(0, 0, 2, 0), ["f32[4]"], "positive step"),
    (Slice(1, 0, 32), ["q4_1[2, 64]"], "axis 0 with step 1"),
    (Concat(1), ["q4_1[2, 64]", "q4_1[2, 64]"], "along axis 0 only"),
    (Concat(0), [], "at least one operand"),
    (Concat(0), ["f32[2, 3]", "f32[2, 4]"], "equal types but for axis 0"),
    (Concat(0), ["f32[2]", "i32[2]"], "equal types but for axis 0"),
    (Concat(0), ["f32[]", "f32[]"], "expected an axis"),
    (Broadcast((3, T)), ["f32[2, tokens]"], "to be 1 or those of"),
    (Broadcast((T,)), ["f32[2, tokens]"], "to be 1 or those of"),
    (Iota(T, BOOL), [], "a dtype of numbers"),
    (Embedding(), ["f32[4]", "i32[tokens]"], "float table"),
    (Embedding(), ["i32[4, 8]", "i32[tokens]"], "float table"),
    (Embedding(), ["f32[4, 8]", "f32[tokens]"], "integer ids"),
    (GatherRows(), ["f32[tokens, 8]", "f32[rows]"], "rows i32"),
    (GatherRows(), ["f32[tokens, 8]", "i32[1, rows]"], "rows i32"),
    (GatherRows(), ["f32[]", "i32[rows]"], "rows i32"),
    (Add(), ["f32[tokens]", "i32[tokens]"], "expected equal dtypes"),
    (Bitcast(I32), ["f16[tokens]"], "of one width"),
    (Bitcast(BF16), ["f16[tokens]"], "of one width"),
    (Add(), ["f32[tokens]", "f32[seqs]"], "equal dims or 1, got tokens and seqs"),
    (Add(), ["bool[2]", "bool[2]"], "expected number elements"),
    (Div(), ["i32[2]", "i32[2]"], "expected float elements"),
    (Exp(), ["i32[2]"], "expected float elements"),
    (And(), ["i32[2]", "i32[2]"], "expected bool elements"),
    (Where(), ["f32[2]", "f32[2]", "f32[2]"], "expected a bool condition"),
    (Where(), ["bool[2]", "f32[2]", "i32[2]"], "equal plain dtypes"),
    (Cast(I32), ["q4_1[2, 32]"], "expected plain dtypes"),
    (Cast(parse_type("q4_1[32]").dtype), ["f32[2, 32]"], "expected plain dtypes"),
    (RmsNorm(), ["f32[tokens, 8]"], "expected 2 operands, got 1"),
    (Linear(), ["f32[tokens, 8]"], r"expected 2\+ operands, got 1"),
]


@pytest.mark.parametrize(
    ("op", "types", "message"), REFUSED, ids=[f"{i}-{r[0].name}" for i, r in enumerate(REFUSED)]
)
def test_bad_operands_are_refused_with_the_reason(op: Op, types: list[str], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        result_types(op, [parse_type(t) for t in types])


ACCEPTED: list[tuple[Op, list[str], str]] = [
    (Add(), ["f32[tokens, 1, 4]", "f32[3, 1]"], "f32[tokens, 3, 4]"),
    (Add(), ["f32[tokens]", "f32[]"], "f32[tokens]"),
    (MatMul(), ["f32[3, 1, tokens, 8]", "f32[2, 8, tokens]"], "f32[3, 2, tokens, tokens]"),
    (Slice(0, 1, T, 2), ["f32[tokens, 4]"], "f32[cdiv(tokens - 1, 2), 4]"),
    (Slice(0, 0, 4), ["q4_1[6, 32]"], "q4_1[4, 32]"),
    (Concat(0), ["f32[tokens]", "f32[2]", "f32[tokens]"], "f32[2 * tokens + 2]"),
    (Reshape((1, T * 2, 4)), ["f32[tokens, 8]"], "f32[1, 2 * tokens, 4]"),
    (Reshape(()), ["f32[1, 1]"], "f32[]"),
    (Embedding(), ["q8_0[100, 64]", "i32[1, tokens]"], "f32[1, tokens, 64]"),
    (
        Attention(1.0, causal=False),
        [Q, "f32[1, 2, keys, 8]", "f32[1, 2, keys, 6]"],
        "f32[1, tokens, 4, 6]",
    ),
    (Sum(axis=-2), ["f32[tokens, 3]"], "f32[3]"),
    (Iota(cdiv(T, 16)), [], "i32[cdiv(tokens, 16)]"),
]


@pytest.mark.parametrize(
    ("op", "types", "wanted"), ACCEPTED, ids=[f"{i}-{r[0].name}" for i, r in enumerate(ACCEPTED)]
)
def test_symbolic_sizes_flow_through(op: Op, types: list[str], wanted: str) -> None:
    assert result_types(op, [parse_type(t) for t in types]) == (parse_type(wanted),)
