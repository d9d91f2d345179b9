"""Cases of matrix products and of the tables that share their weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...ir.blocks import BLOCK_TYPES
from ...ir.dtype import BF16
from ...ir.graph import Graph, Value
from ...ir.op import Op
from ...ir.ops.activations import GroupSums, QuantizeRows, RoundRows
from ...ir.ops.elementwise import ACTIVATIONS, Cast
from ...ir.ops.linear import GatedLinear, Linear, MatMul
from ...ir.ops.sparse import Embedding
from .case import WEIGHT, Case, below, case

PLAIN = ("f32", "bf16", "f16")
FORMS = ("i4_g32_f16_z", "i4_row_f32", "i8_g64_bf16", "e4m3_g128_f32", "e4m3_row_bf16")
"""Of group forms: every element, scale and size of group in some, the last group cut short."""


def _width(weight: str) -> int:
    """K: two blocks of 32, or one of 256; a group of 128 and a half."""
    if weight in FORMS:
        return 192
    return max(64, BLOCK_TYPES[weight].elements) if weight in BLOCK_TYPES else 64


def _linear(weight: str, rows: int, x: str = "f32", **attributes: Any) -> Case:
    k = _width(weight)
    op = Linear(**attributes)
    operands = [f"{x}[n, {k}]", f"{WEIGHT}{weight}[{rows}, {k}]"]
    if op.has_bias:
        operands.append(f"{WEIGHT}f32[{rows}]")
    if op.has_residual:
        operands.append(f"{op.dtype}[n, {rows}]")
    return case(op, *operands)


def _gated(weight: str, rows: int, x: str = "f32", activation: str = "silu") -> Case:
    k = _width(weight)
    op = GatedLinear(activation)
    return case(op, f"{x}[n, {k}]", f"{WEIGHT}{weight}[{2 * rows}, {k}]")


def _edges() -> Iterable[Case]:
    """Outputs around 64, depths around powers of two, three dims."""
    for rows in (1, 63, 160):
        yield _linear("f32", rows)
    for k in (1, 33, 96, 192):
        yield case(Linear(), f"f32[n, {k}]", f"{WEIGHT}f32[64, {k}]")
    yield case(Linear(), "f32[n, 64]", f"{WEIGHT}f32[8, 64]", note="few outputs")
    yield case(Linear(), "f32[5, 64]", f"{WEIGHT}f32[65, 64]", note="of known size")
    yield case(Linear(), "f32[n, 3, 64]", f"{WEIGHT}bf16[64, 64]")
    yield case(Linear(), "bf16[n, 96]", f"{WEIGHT}bf16[48, 96]")
    yield case(Linear(dtype=BF16), "bf16[n, 96]", f"{WEIGHT}bf16[80, 96]")
    yield case(GatedLinear("silu", dtype=BF16), "bf16[n, 96]", f"{WEIGHT}bf16[128, 96]")
    yield case(GatedLinear("silu"), "f32[n, 96]", f"{WEIGHT}f32[128, 96]")


def _types() -> Iterable[Case]:
    for weight in (*PLAIN, *BLOCK_TYPES, *FORMS):
        yield _linear(weight, 65)
        yield _gated(weight, 64)
        yield _linear(weight, 64, "bf16")
        yield _gated(weight, 64, "bf16")


def _epilogues() -> Iterable[Case]:
    for activation in ACTIVATIONS:
        yield _linear("f32", 64, activation=activation)
        yield _gated("f32", 128, activation=activation)
    yield _linear("bf16", 65, has_bias=True, has_residual=True, activation="gelu_tanh")
    yield _linear("q4_1", 65, has_bias=True, has_residual=True)
    yield _linear("bf16", 64, "bf16", has_bias=True, has_residual=True)
    yield _linear("bf16", 64, "bf16", has_residual=True, dtype=BF16)


def _sides() -> Iterable[Case]:
    """Sums of x for weights with a minimum; integers with a scale for each group."""
    for weight in ("q4_1", "q4_k"):
        for op in (Linear(has_sums=True), GatedLinear("silu", has_sums=True)):
            yield _after(GroupSums(), op, weight)
            yield _after(RoundRows(), op, weight)
    for weight in ("q4_0", "q4_1", "q8_0", "q6_k"):
        yield _after(QuantizeRows(), Linear(has_scales=True), weight)
        yield _after(QuantizeRows(), GatedLinear("silu", has_scales=True), weight)


def _after(side: Op, op: Op, weight: str) -> Case:
    """With what stands before such a product and gives the operand that belongs to x."""

    def build(graph: Graph, leaves: Sequence[Value]) -> list[Value]:
        x, w = leaves
        *fewer, extra = graph.append(side, x)
        return [graph.emit(op, fewer[0] if fewer else x, w, extra)]

    k = _width(weight)
    operands = f"f32[n, {k}]", f"{WEIGHT}{weight}[128, {k}]"
    return case(op, *operands, build=build, note=f"after {side.name}")


def _rounded() -> Iterable[Case]:
    """Products that round x and w where rows are many, and what stands before them."""
    linear, gated = Linear(rounded_from=32), GatedLinear("silu", rounded_from=32)
    for weight in ("q4_0", "q4_1", "q8_0"):
        for product in (linear, gated):
            of_integers = replace(product, has_scales=True)
            yield _for_many(of_integers, of_integers, weight)
            of_sums = replace(product, has_sums=weight == "q4_1")
            yield _for_many(of_sums, of_sums, weight)
    for op in (QuantizeRows(), Cast(BF16)):
        yield _for_many(op, replace(linear, has_scales=True), "q4_1")


def _for_many(op: Op, product: Linear | GatedLinear, weight: str) -> Case:
    """A case about ``op`` in a product of few or many rows."""

    def build(graph: Graph, leaves: Sequence[Value]) -> list[Value]:
        x, w = leaves
        if product.has_scales:
            integers, scales = graph.append(QuantizeRows(), x)
            return [graph.emit(product, integers, w, scales, graph.emit(Cast(BF16), x))]
        rounded, sums = graph.append(RoundRows(), x)
        return [graph.emit(product, rounded, w, *([sums] if product.has_sums else []))]

    k = _width(weight)
    way = "int8" if product.has_scales else "bf16"
    operands = f"f32[n, {k}]", f"{WEIGHT}{weight}[128, {k}]"
    return case(op, *operands, build=build, note=f"in {product.name} of few or many, {way}")


def _matmul() -> Iterable[Case]:
    yield case(MatMul(), "f32[n, 4]", "f32[4, 6]")
    yield case(MatMul(), "f32[3, n, 4]", "f32[1, 4, n]")
    yield case(MatMul(), "f32[n, 17, 33]", "f32[n, 33, 5]", note="in batches")
    yield case(MatMul(), "f32[n, 2, 8, 64]", "f32[1, 2, 64, 70]", note="in batches")


def _embeddings() -> Iterable[Case]:
    for weight in (*PLAIN, *BLOCK_TYPES, *FORMS):
        k = _width(weight)
        yield case(Embedding(), f"{WEIGHT}{weight}[70, {k}]", "i32[n]", x1=below(70))
    yield case(Embedding(dtype=BF16), f"{WEIGHT}bf16[70, 96]", "i32[n]", x1=below(70))
    yield case(Embedding(), f"{WEIGHT}f32[50, 96]", "i32[1, n]", x1=below(50))
    for weight in ("f32", "bf16", "q8_0", "q4_k", "i8_g64_bf16"):
        for x in ("f32", "bf16"):
            yield _tied(weight, x)


def _tied(weight: str, x: str) -> Case:
    """A table that is also the weight of the head: one layout must serve both."""

    def build(graph: Graph, leaves: Sequence[Value]) -> list[Value]:
        table, ids, hidden = leaves
        return [graph.emit(Embedding(), table, ids), graph.emit(Linear(), hidden, table)]

    k = _width(weight)
    operands = f"{WEIGHT}{weight}[70, {k}]", "i32[n]", f"{x}[n, {k}]"
    return case(Embedding(), *operands, build=build, note="tied to a head", x1=below(70))


PRODUCTS: tuple[Case, ...] = (
    *_edges(),
    *_types(),
    *_epilogues(),
    *_sides(),
    *_rounded(),
    *_matmul(),
    *_embeddings(),
)
