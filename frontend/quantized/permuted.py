"""Products whose weight has its columns sorted by group (`desc_act`): inputs are gathered so."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...errors import FrontendError
from ...ir.dtype import I32
from ...ir.graph import Graph, Value
from ...ir.ops.indexing import TakeAxis
from ...ir.ops.linear import Linear
from ...ir.types import TensorType


def gather_inputs(graph: Graph, columns: Mapping[str, NDArray[np.int32]]) -> None:
    """
    %y = linear(%x, %w)   ->   %p = take_axis(%x, order of w's columns); %y = linear(%p, %w)
    The sums are those of the model in another order. Layers with one input and one order share it.
    """
    orders: dict[bytes, Value] = {}
    for param in graph.params:
        if param.name not in columns:
            continue
        order = columns[param.name]
        if order.tobytes() not in orders:
            kind = TensorType(I32, (order.size,))
            orders[order.tobytes()] = graph.const(order, kind)
        _gather(graph, param, orders[order.tobytes()])


def _gather(graph: Graph, weight: Value, order: Value) -> None:
    for node in list(weight.uses):
        if not isinstance(node.op, Linear) or node.inputs[0] is weight:
            raise FrontendError(
                f"{weight.name}: expected products alone to read a weight with sorted columns "
                f"(desc_act), got {node.op.name} (quantize the model without desc_act)"
            )
        x = node.inputs[0]
        gathered = graph.emit(TakeAxis(x.type.rank - 1), x, order, before=node, source=node.source)
        graph.set_input(node, 0, gathered)
