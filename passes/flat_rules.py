"""The rules of `flat_tokens`: how each op acts on flat tokens, and when it mixes them.

A captured value of shape [1, tokens, ...] or [1, heads, tokens, ...] becomes [tokens, ...]: the
token axis first, a leading 1 before it (the batch) dropped, the other axes in their order. A value
without a token axis stays as it is. A rule emits the flat op, or raises `Refusal` with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import sympy

from ..ir.dim import Dim, prod, symbols_of
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.elementwise import Binary, Cast, Unary, Where
from ..ir.ops.indexing import PutAxis, TakeAxis
from ..ir.ops.linear import GatedLinear, Linear, MatMul
from ..ir.ops.moe import ExpertLinear, MoeRoute
from ..ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from ..ir.ops.order import CumSum, PutAlong, TakeAlong, TopK
from ..ir.ops.reduce import Reduce, Softmax
from ..ir.ops.rope import Rope, RopeTable
from ..ir.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from ..ir.ops.sparse import Embedding, GatherRows

MIXES = "the tokens axis"


class Refusal(Exception):
    """Why one node is not proved to work on each token alone."""


@dataclass
class Flattener:
    """The graph being built and what each captured value became."""

    graph: Graph
    tokens: sympy.Symbol
    """First dim of flat values: ``tokens``, and ``rows`` once rows were gathered."""
    page_size: int
    inputs: dict[str, Value] = field(default_factory=dict)
    states: dict[tuple[Dim, Dim], Value] = field(default_factory=dict)
    """The current version of each state by (KV heads, head width)."""
    layers: dict[tuple[Dim, Dim], int] = field(default_factory=dict)
    slot_states: dict[tuple[Dim, ...], Value] = field(default_factory=dict)
    """The current version of each state of slots by the shape of a slot."""
    slot_layers: dict[tuple[Dim, ...], int] = field(default_factory=dict)
    known: dict[Value, Value] = field(default_factory=dict)
    refused: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.captured_tokens = self.tokens

    def token_axis(self, value: Value) -> int | None:
        """The axis of the captured value that counts tokens; None when it has none."""
        name = self.captured_tokens.name
        axes = [i for i, d in enumerate(value.type.shape) if name in symbols_of(d)]
        if not axes:
            return None
        if len(axes) > 1:
            raise Refusal(f"pairs tokens with tokens in {value.type}")
        if value.type.shape[axes[0]] != self.captured_tokens:
            raise Refusal(f"merges, cuts or joins {MIXES} in {value.type}")
        return axes[0]

    def kept(self, value: Value) -> list[int]:
        """Axes that the flat value has after its token axis, in order."""
        token = self.token_axis(value)
        first = 1 if token and value.type.shape[0] == 1 else 0
        return [i for i in range(first, value.type.rank) if i != token]

    def shape(self, value: Value) -> tuple[Dim, ...]:
        """The shape of the flat value."""
        if self.token_axis(value) is None:
            return value.type.shape
        return (self.tokens, *(value.type.shape[i] for i in self.kept(value)))

    def has_tokens(self, value: Value) -> bool:
        return self.token_axis(value) is not None

    def emit(self, node: Node, op: Op, *inputs: Value) -> Value:
        return self.graph.emit(op, *inputs, source=node.source)

    def reshaped(self, node: Node, value: Value, shape: Sequence[Dim]) -> Value:
        """``value`` (already flat) in another shape of the same elements."""
        if value.type.shape == tuple(shape):
            return value
        return self.emit(node, Reshape(tuple(shape)), value)

    def finish(self, node: Node, *results: Value) -> None:
        """Note what the node's outputs became, in their flat shapes."""
        for old, new in zip(node.outputs, results, strict=True):
            self.known[old] = self.reshaped(node, new, self.shape(old))


Rule = Callable[[Flattener, Node], None]
RULES: dict[type[Op], Rule] = {}
R = TypeVar("R", bound=Rule)


def rule(*ops: type[Op]) -> Callable[[R], R]:
    """Adds the rule for these ops and their subclasses."""

    def add(function: R) -> R:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return add


def flatten_node(flat: Flattener, node: Node) -> None:
    """Emit the flat form of one captured node. What depends on a refused value is passed over."""
    if any(v in flat.refused for v in node.inputs):
        flat.refused.update(node.outputs)
        return
    if _counts_tokens(node.op):
        raise Refusal("depends on the number of tokens")
    touches = [flat.has_tokens(v) for v in (*node.inputs, *node.outputs)]
    if not any(touches):
        _copy(flat, node)
        return
    for kind in type(node.op).__mro__:
        if kind in RULES:
            RULES[kind](flat, node)
            return
    raise Refusal("has no rule for flat tokens")


def _counts_tokens(op: Op) -> bool:
    """A symbol in an attribute, but for ops whose result shape it only names."""
    values = [getattr(op, f.name) for f in dataclasses.fields(op)]
    return not isinstance(op, Reshape | Broadcast) and any(
        isinstance(v, sympy.Basic) and symbols_of(v) for v in values
    )


def _copy(flat: Flattener, node: Node) -> None:
    names = [v.name for v in node.outputs]
    inputs = [flat.known[v] for v in node.inputs]
    outputs = flat.graph.append(node.op, *inputs, source=node.source, names=names)
    flat.known.update(zip(node.outputs, outputs, strict=True))


def expect_free(flat: Flattener, values: Sequence[Value], what: str) -> None:
    """``values`` must depend on no token."""
    if any(flat.has_tokens(v) for v in values):
        raise Refusal(f"has a {what} that depends on tokens")


def _expect_no_token_axis(flat: Flattener, value: Value, axis: int, doing: str) -> None:
    if axis == flat.token_axis(value):
        raise Refusal(f"{doing} {MIXES} of {value.type}")


def _with_axis(
    flat: Flattener, node: Node, value: Value, axis: int, doing: str
) -> tuple[Value, int]:
    """The flat value and where ``axis`` of the captured one lies in it; a dropped 1 is put back."""
    _expect_no_token_axis(flat, value, axis, doing)
    if axis in flat.kept(value):
        return flat.known[value], 1 + flat.kept(value).index(axis)
    others = [i for i in range(value.type.rank) if i != flat.token_axis(value)]
    shape = (flat.tokens, *(value.type.shape[i] for i in others))
    return flat.reshaped(node, flat.known[value], shape), 1 + others.index(axis)


# Elementwise ------------------------------------------------------------------------------------


@rule(Unary, Cast)
def _one_operand(flat: Flattener, node: Node) -> None:
    flat.finish(node, flat.emit(node, node.op, flat.known[node.inputs[0]]))


@rule(Binary, Where)
def _elementwise(flat: Flattener, node: Node) -> None:
    operands = [_aligned(flat, node, v) for v in node.inputs]
    flat.finish(node, flat.emit(node, node.op, *operands))


@rule(Broadcast)
def _broadcast(flat: Flattener, node: Node) -> None:
    x = _aligned(flat, node, node.inputs[0])
    flat.finish(node, flat.emit(node, Broadcast(flat.shape(node.outputs[0])), x))


def _aligned(flat: Flattener, node: Node, value: Value) -> Value:
    """An operand of a broadcasting op, its dims lined up with those of the flat result."""
    out = node.outputs[0]
    missing = out.type.rank - value.type.rank
    token = flat.token_axis(value)
    if token is not None and token + missing != flat.token_axis(out):
        raise Refusal(f"pairs tokens with tokens or another axis: {value.type} in {out.type}")
    axes = [i - missing for i in flat.kept(out)]
    if token is None:
        shape = tuple(value.type.shape[i] for i in axes if i >= 0)
    else:
        shape = (flat.tokens, *(value.type.shape[i] if i >= 0 else 1 for i in axes))
    return flat.reshaped(node, flat.known[value], shape)


# Movement ---------------------------------------------------------------------------------------


@rule(Reshape)
def _reshape(flat: Flattener, node: Node) -> None:
    """Row-major order is kept if as many elements lie before the token axis as did."""
    (x,), (y,) = node.inputs, node.outputs
    old, new = flat.token_axis(x), flat.token_axis(y)
    if old is None or new is None or prod(x.type.shape[:old]) != prod(y.type.shape[:new]):
        raise Refusal(f"merges or splits {MIXES}: {x.type} to {y.type}")
    flat.finish(node, flat.known[x])


@rule(Transpose)
def _transpose(flat: Flattener, node: Node) -> None:
    assert isinstance(node.op, Transpose)
    (x,) = node.inputs
    kept = flat.kept(x)
    order = [1 + kept.index(p) for p in node.op.permutation if p in kept]
    moved = flat.known[x]
    if order != sorted(order):
        moved = flat.emit(node, Transpose((0, *order)), moved)
    flat.finish(node, moved)


@rule(Slice)
def _slice(flat: Flattener, node: Node) -> None:
    assert isinstance(node.op, Slice)
    (x,) = node.inputs
    y, axis = _with_axis(flat, node, x, node.op.axis, "cuts")
    flat.finish(node, flat.emit(node, dataclasses.replace(node.op, axis=axis), y))


@rule(Concat)
def _concat(flat: Flattener, node: Node) -> None:
    assert isinstance(node.op, Concat)
    found = [_with_axis(flat, node, v, node.op.axis, "joins along") for v in node.inputs]
    ranks = {value.type.rank for value, _ in found}
    assert len(ranks) == 1  # parts of one shape but for the axis keep or drop the same axes
    parts, axes = zip(*found, strict=True)
    flat.finish(node, flat.emit(node, Concat(axes[0]), *parts))


# Reductions, products, norms --------------------------------------------------------------------


@rule(Reduce, Softmax)
def _reduce(flat: Flattener, node: Node) -> None:
    assert isinstance(node.op, Reduce | Softmax)
    (x,) = node.inputs
    y, axis = _with_axis(flat, node, x, node.op.axis % x.type.rank, "reduces")
    flat.finish(node, flat.emit(node, dataclasses.replace(node.op, axis=axis), y))


@rule(TopK, CumSum, TakeAlong, PutAlong)
def _along(flat: Flattener, node: Node) -> None:
    """Ops along the last axis, all operands of one shape but for it."""
    for value in (*node.inputs, *node.outputs):
        if flat.token_axis(value) != flat.token_axis(node.outputs[0]):
            raise Refusal(f"puts {value.type} beside values of other tokens")
        _expect_no_token_axis(flat, value, value.type.rank - 1, "orders")
    flat.finish(node, *flat.graph.append(node.op, *_all(flat, node), source=node.source))


@rule(RmsNorm, LayerNorm, AddRmsNorm)
def _norm(flat: Flattener, node: Node) -> None:
    data = 2 if isinstance(node.op, AddRmsNorm) else 1
    for value in node.inputs[:data]:
        _expect_no_token_axis(flat, value, value.type.rank - 1, "reduces")
    expect_free(flat, node.inputs[data:], "weight")
    flat.finish(node, *flat.graph.append(node.op, *_all(flat, node), source=node.source))


@rule(Linear, GatedLinear)
def _linear(flat: Flattener, node: Node) -> None:
    x, weight, *rest = node.inputs
    _expect_no_token_axis(flat, x, x.type.rank - 1, "contracts")
    has_residual = isinstance(node.op, Linear) and node.op.has_residual
    expect_free(flat, [weight, *(rest[:-1] if has_residual else rest)], "weight")
    flat.finish(node, flat.emit(node, node.op, *_all(flat, node)))


@rule(MatMul)
def _matmul(flat: Flattener, node: Node) -> None:
    """Token rows times matrices that are free of tokens, or a product of its own for each token."""
    a, b = node.inputs
    (y,) = node.outputs
    token = flat.token_axis(y)
    if token is not None and token < y.type.rank - 2:
        operands = [_aligned(flat, node, v) for v in (a, b)]
        flat.finish(node, flat.emit(node, node.op, *operands))
        return
    if token == y.type.rank - 1:
        _matrix_times_tokens(flat, node, a, b)
        return
    expect_free(flat, [b], "right side")
    _expect_no_token_axis(flat, a, a.type.rank - 1, "contracts")
    if prod(b.type.shape[:-2]) == 1:
        x, w = flat.known[a], flat.reshaped(node, flat.known[b], b.type.shape[-2:])
        flat.finish(node, flat.emit(node, node.op, x, w))
        return
    *lead, width = (a.type.shape[i] for i in flat.kept(a))
    rows = flat.reshaped(node, flat.known[a], (flat.tokens, *lead, 1, width))
    flat.finish(node, flat.emit(node, node.op, rows, flat.known[b]))


def _matrix_times_tokens(flat: Flattener, node: Node, a: Value, b: Value) -> None:
    """Matrices that are free of tokens times columns that are tokens: [M, K] times [K, 1] each."""
    expect_free(flat, [a], "left side")
    columns = flat.known[b]
    columns = flat.reshaped(node, columns, (*columns.type.shape, 1))
    flat.finish(node, flat.emit(node, node.op, flat.known[a], columns))


@rule(MoeRoute, Rope, RopeTable, ExpertLinear)
def _by_row(flat: Flattener, node: Node) -> None:
    """Ops on [T, ...] rows."""
    if isinstance(node.op, ExpertLinear):
        expect_free(flat, node.inputs[1:2], "weight")
    if any(flat.token_axis(v) not in (0, None) for v in (*node.inputs, *node.outputs)):
        raise Refusal("expects tokens on the first axis")
    if isinstance(node.op, RopeTable):
        expect_free(flat, node.inputs[1:], "frequency")
    flat.finish(node, *flat.graph.append(node.op, *_all(flat, node), source=node.source))


def _all(flat: Flattener, node: Node) -> list[Value]:
    return [flat.known[v] for v in node.inputs]


# Rows by index ----------------------------------------------------------------------------------


@rule(Embedding)
def _embedding(flat: Flattener, node: Node) -> None:
    expect_free(flat, node.inputs[:1], "table")
    flat.finish(node, flat.emit(node, node.op, *_all(flat, node)))


@rule(TakeAxis, PutAxis)
def _along_known(flat: Flattener, node: Node) -> None:
    """Parts of an axis of features, by indices that no token decides."""
    assert isinstance(node.op, TakeAxis | PutAxis)
    x, ids, *source = node.inputs
    expect_free(flat, [ids], "choice of parts")
    if any(flat.token_axis(v) != flat.token_axis(x) for v in source):
        raise Refusal(f"puts {source[0].type} into {x.type}")
    placed = [_with_axis(flat, node, v, node.op.axis, "picks along") for v in (x, *source)]
    op = dataclasses.replace(node.op, axis=placed[0][1])
    values = [value for value, _ in placed]
    flat.finish(node, flat.emit(node, op, values[0], flat.known[ids], *values[1:]))


@rule(GatherRows)
def _gather_rows(flat: Flattener, node: Node) -> None:
    if flat.has_tokens(node.inputs[0]):
        raise Refusal(f"picks rows along {MIXES}")
    flat.finish(node, flat.emit(node, node.op, *_all(flat, node)))
