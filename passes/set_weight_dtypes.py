"""Gives weights the element types that the artifact stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import PassError
from ..ir.dtype import F32, DType
from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Binary, Cast, Unary
from ..ir.ops.linear import GatedLinear, Linear
from ..ir.ops.moe import ExpertLinear
from ..ir.ops.shape import Reshape
from ..ir.ops.sparse import Embedding
from .base import Pass


@dataclass(frozen=True)
class SetWeightDtypes(Pass):
    """
    param %w: f32[N, K]; %y = linear(%x, %w)   ->   param %w: bf16[N, K]; %y = linear(%x, %w)
    For parameters that only linears, experts and embeddings read, which take any float type. Norms,
    biases and other vectors stay f32, so does a weight that another op reads too.
    """

    name: ClassVar[str] = "set-weight-dtypes"
    keeps_numbers: ClassVar[bool] = False  # weights are rounded
    dtype: DType = F32
    """For weights without a stored type."""
    stored: tuple[tuple[str, DType], ...] = ()
    """Parameter name and its own type, kept whatever ``dtype`` is."""
    form: DType | None = None
    """A form of few bits for weights of linears alone, but for those that make logits; where rows
    are no multiple of its blocks they get ``dtype``."""

    def run(self, graph: Graph) -> bool:
        stored = dict(self.stored)
        heads = _heads(graph) if self.form else set()
        changed = False
        for param in graph.params:
            if param.type.dtype == F32 and _is_matrix_weight(graph, param):
                made = self.form if _takes_form(param, self.form, heads) else None
                changed |= _retype(param, stored.get(param.name, made or self.dtype))
        for node in list(graph.nodes):
            changed |= self._cast_computed(graph, node)
        return changed

    def _cast_computed(self, graph: Graph, node: Node) -> bool:
        """A weight computed from parameters, such as a transpose, is rounded after that."""
        at = _weight_index(node)
        if at is None or self.dtype.is_block or self.dtype == F32:
            return False
        weight = node.inputs[at]
        turned = weight.producer
        if (
            weight.type.dtype != F32
            or turned is None
            or any(v.kind != "param" for v in turned.inputs)
        ):
            return False
        graph.set_input(node, at, graph.emit(Cast(self.dtype), weight, before=node))
        return True


def _heads(graph: Graph) -> set[Node]:
    """Linears that make outputs, through nothing but a cap or a scale: of language models the
    logits, where rounded weights cost most and are read for few rows."""
    heads: set[Node] = set()
    todo = list(graph.outputs)
    while todo:
        node = todo.pop().producer
        if node is not None and isinstance(node.op, Linear):
            heads.add(node)
        elif node is not None and isinstance(node.op, Unary | Binary | Reshape):
            todo += node.inputs
    return heads


def _takes_form(param: Value, form: DType | None, heads: set[Node]) -> bool:
    if form is None:
        return False
    width = param.type.shape[-1]
    linears = all(isinstance(node.op, Linear | GatedLinear) for node in param.uses)
    fits = param.type.rank == 2 and isinstance(width, int) and width % form.block == 0
    return linears and fits and not heads & set(param.uses)


def _weight_index(node: Node) -> int | None:
    """Which operand of the node is a weight of any float type."""
    if isinstance(node.op, Linear | GatedLinear | ExpertLinear):
        return 1
    return 0 if isinstance(node.op, Embedding) else None


def _is_matrix_weight(graph: Graph, value: Value) -> bool:
    if not value.uses or graph.is_output(value):
        return False
    for node in value.uses:
        places = [i for i, v in enumerate(node.inputs) if v is value]
        if places != [_weight_index(node)]:
            return False
    return True


def _retype(param: Value, dtype: DType) -> bool:
    """Results keep their types: linears and embeddings give f32 whatever the weight's type."""
    if dtype == param.type.dtype:
        return False
    width = param.type.shape[-1]
    if dtype.is_block and (not isinstance(width, int) or width % dtype.block):
        raise PassError(
            f"set-weight-dtypes: {param.name}: expected rows of a multiple of {dtype.block} "
            f"elements for {dtype}, got {param.type} (keep it f32)"
        )
    param.type = param.type.with_dtype(dtype)
    return True
