"""Counters over the tokens of one request become reads of the positions input.

``position_ids[0, i]`` is by contract the index of token i in its own sequence. For one request
captured from its first token, ``iota(tokens)[i]`` is that same number, and row i of
``slice(table, c, c + tokens)`` is row ``position + c`` of the table. Neither holds any longer once
tokens of several requests are mixed, so both are rewritten before the proof.
"""

from __future__ import annotations

import numpy as np

from ..ir.dim import as_dim, dim
from ..ir.dtype import I32
from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Add, Cast
from ..ir.ops.shape import Iota, Reshape, Slice
from ..ir.ops.sparse import GatherRows
from ..ir.types import TensorType

TOKENS = dim("tokens")


def positions_for_counters(graph: Graph) -> None:
    """Rewrite both forms where they count exactly ``tokens``; other counts will be refused."""
    position_ids = next((v for v in graph.inputs if v.name == "position_ids"), None)
    if position_ids is None:
        return
    for node in list(graph.nodes):
        if isinstance(node.op, Iota) and node.op.size == TOKENS:
            graph.replace(node.outputs[0], _positions(graph, node, position_ids, node.op))
        elif isinstance(node.op, Slice) and _is_table_head(node, node.op):
            graph.replace(node.outputs[0], _table_rows(graph, node, position_ids, node.op))
    graph.erase_dead()


def _positions(graph: Graph, node: Node, position_ids: Value, op: Iota) -> Value:
    flat = graph.emit(Reshape((TOKENS,)), position_ids, before=node)
    return flat if op.dtype == I32 else graph.emit(Cast(op.dtype), flat, before=node)


def _is_table_head(node: Node, op: Slice) -> bool:
    """Rows start .. start + tokens of a value that has no token axis itself."""
    shape = node.inputs[0].type.shape
    whole = all(isinstance(d, int) for d in shape) and all(d == 1 for d in shape[: op.axis])
    counts_tokens = op.step == 1 and as_dim(op.stop - op.start) == TOKENS
    return whole and counts_tokens and isinstance(op.start, int)


def _table_rows(graph: Graph, node: Node, position_ids: Value, op: Slice) -> Value:
    rows = graph.emit(Reshape((TOKENS,)), position_ids, before=node)
    if op.start:
        offset = graph.const(np.array(op.start, np.int32), TensorType(I32, ()))
        rows = graph.emit(Add(), rows, offset, before=node)
    table = node.inputs[0]
    if op.axis:
        table = graph.emit(Reshape(table.type.shape[op.axis :]), table, before=node)
    found = graph.emit(GatherRows(), table, rows, before=node)
    shape = node.outputs[0].type.shape
    return found if found.type.shape == shape else graph.emit(Reshape(shape), found, before=node)
