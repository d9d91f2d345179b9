"""Which element of which source each element of a value is, through ops that only move or negate.

The ops' own references run on arrays of indices, so every spelling of a movement gives the same
map. A symbolic size stands at `NUM_TOKENS`: movements treat all indices of a symbolic axis alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.dim import symbols_of
from ..ir.graph import Node, Value
from ..ir.ops.elementwise import Neg
from ..ir.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from ..ir.rewrite import substitute_op
from ..ir.types import TensorType

NUM_TOKENS = 3
"""More than one, so that a movement across tokens shows."""
MOVES = (Neg, Reshape, Slice, Transpose, Concat, Broadcast)


@dataclass(frozen=True)
class IndexMap:
    """``sign * source.flat[index]`` for each element."""

    source: Value
    index: np.ndarray
    sign: np.ndarray


def index_map(value: Value) -> IndexMap | None:
    """Follow ``value`` up to the first op that is no movement; None if its parts have several."""
    node = value.producer
    if node is None or not isinstance(node.op, MOVES):
        index = np.arange(int(np.prod(small_shape(value.type)))).reshape(small_shape(value.type))
        return IndexMap(value, index, np.ones(index.shape, np.int8))
    parts = [index_map(v) for v in node.inputs]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts) or len({p.source for p in known}) != 1:
        return None
    return _moved(node, known)


def _moved(node: Node, parts: Sequence[IndexMap]) -> IndexMap:
    source = parts[0].source
    if isinstance(node.op, Neg):
        return IndexMap(source, parts[0].index, -parts[0].sign)
    op = substitute_op(node.op, sizes_of(node))
    index = op.reference(*(p.index for p in parts))
    return IndexMap(source, index, op.reference(*(p.sign for p in parts)))


def sizes_of(node: Node) -> dict[str, int]:
    """`NUM_TOKENS` for every symbol in the node's types."""
    types = [v.type for v in (*node.inputs, *node.outputs)]
    names = {name for t in types for d in t.shape for name in symbols_of(d)}
    return dict.fromkeys(names, NUM_TOKENS)


def small_shape(type: TensorType) -> tuple[int, ...]:
    """The shape with every symbol at `NUM_TOKENS`."""
    names = {name for d in type.shape for name in symbols_of(d)}
    return type.concrete(dict.fromkeys(names, NUM_TOKENS))
