"""Run an ONNX graph node by node with the functions of `registry.OPS`.

What is known of each value travels beside it (`Slot`). A node whose inputs are all known is
computed at once, outside the trace; arithmetic on symbolic sizes goes through `sizes.RULES`;
everything else is traced.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import onnx
import torch

from ...errors import FrontendError, SglkError
from .functions import (
    attributes_of,
    body_of,
    bound,
    elem_type_of,
    has_body,
    output_types,
    schema_of,
)
from .reader import Model, attribute_value, op_key
from .registry import (
    OPS,
    Known,
    Node,
    OpFunction,
    Refused,
    Slot,
    Subgraph,
    Value,
    outside_trace,
)
from .sizes import RULES, as_slot, fixed_slot, known_of, of_known, tensor_in

Scope: TypeAlias = MutableMapping[str, Slot]
MAX_FOLDED = 1 << 16
"""Elements of a result that is computed at once and kept as a constant: more would make the
artifact larger than the model."""
NEVER_FOLDED = frozenset({"DequantizeLinear"})
"""Weights stay as small as they are stored."""
_TORCH_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    NotImplementedError,
    ZeroDivisionError,
    OverflowError,
    AssertionError,
)


class Evaluator:
    """One run of a model's graph."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.opsets = model.opsets

    def run(self, graph: onnx.GraphProto, scope: Scope) -> list[Slot]:
        """The outputs of a graph whose inputs (and those of graphs around it) are in ``scope``."""
        for tensor in graph.initializer:
            if tensor.name not in scope:
                with outside_trace():
                    scope[tensor.name] = fixed_slot(self.model.tensor(tensor))
                scope[tensor.name].elem_type = tensor.data_type
        for proto in graph.node:
            self._node(proto, scope)
        return [scope[output.name] for output in graph.output]

    def _node(self, proto: onnx.NodeProto, scope: Scope) -> None:
        slots = [scope[name] if name else Slot() for name in proto.input]
        domain, op_type = op_key(proto)
        schema = schema_of(op_type, self.opsets.get(domain, 1), domain)
        where = f"{op_type} {proto.name or next(iter(proto.output), '')}".strip()
        with _sentences(where):
            if (domain, op_type) in OPS:
                types = output_types(schema, proto, slots, self.opsets)
                node = self._described(proto, slots, types, scope)
                results = self._results(node, OPS[domain, op_type], slots)
            else:
                types = {}
                results = self._expanded(schema, proto, slots)
        names = list(proto.output)
        if len(results) < len([name for name in names if name]):
            raise Refused(f"{where}: expected at most {len(results)} outputs, got {len(names)}")
        for name, slot in zip(names, results, strict=False):
            if types.get(name):
                slot = replace(slot, elem_type=types[name])
            if name:
                scope[name] = slot

    def _described(
        self,
        proto: onnx.NodeProto,
        slots: Sequence[Slot],
        types: Mapping[str, int],
        scope: Scope,
    ) -> Node:
        names = list(proto.output)
        while names and not names[-1]:
            names.pop()
        domain, op_type = op_key(proto)
        with outside_trace():
            attrs = {a.name: attribute_value(a) for a in proto.attribute}
        return Node(
            name=proto.name or next(iter(names), ""),
            op_type=op_type,
            domain=domain,
            opset=self.opsets.get(domain, 1),
            attrs=attrs,
            outputs=tuple(names),
            input_types=tuple(elem_type_of(slot) for slot in slots),
            output_types=tuple(types.get(name, 0) for name in names),
            evaluate=lambda body, values: self._subgraph(body, values, scope),
        )

    def _subgraph(self, body: Subgraph, values: Sequence[Value], scope: Scope) -> list[Slot]:
        given = {name: as_slot(v) for name, v in zip(body.inputs, values, strict=True)}
        return self.run(body.graph, ChainMap({**given}, scope))

    def _expanded(self, schema: Any, proto: onnx.NodeProto, slots: Sequence[Slot]) -> list[Slot]:
        """An op by its definition in other ops."""
        body = None
        if has_body(schema):
            body = body_of(schema, proto, self.opsets.get(proto.domain, 1), slots)
        if body is None:
            raise Refused(
                f"{proto.op_type}: expected an op that sglk has a function for, or that ONNX "
                "defines by other ops for these inputs, got neither"
            )
        scope: Scope = dict(zip(body.input, slots, strict=False))
        for name in body.input:
            scope.setdefault(name, Slot())
        attributes = attributes_of(schema, proto)
        outer = self.opsets
        self.opsets = {**outer, **{o.domain: o.version for o in body.opset_import}}
        try:
            for inner in body.node:
                self._node(bound(inner, attributes), scope)
        finally:
            self.opsets = outer
        return [scope.get(name, Slot()) for name in body.output]

    def _results(self, node: Node, function: OpFunction, slots: list[Slot]) -> list[Slot]:
        if _may_fold(node) and all(_is_fixed(slot) for slot in slots):
            values = [slot.fixed for slot in slots]
            node.slots = list(zip(values, slots, strict=True))
            with outside_trace():
                results = _listed(function(node, *values))
                folded = [_folded(result) for result in results]
            if all(slot is not None for slot in folded):
                return [slot for slot in folded if slot is not None]
        if node.domain == "" and (sized := _by_rule(node, slots)) is not None:
            return sized
        needs = frozenset[str]().union(*(slot.needs for slot in slots))
        values = [tensor_in(slot) for slot in slots]
        node.slots = list(zip(values, slots, strict=True))
        return [_traced(r, needs, node) for r in _listed(function(node, *values))]


@contextmanager
def _sentences(where: str) -> Iterator[None]:
    """A node's function may fail in torch; the user gets one sentence that names the node."""
    try:
        yield
    except SglkError:
        raise
    except _TORCH_ERRORS as error:
        text = " ".join(str(error).split())[:300]
        raise FrontendError(
            f"{where}: expected inputs that its function can compute with, got "
            f"{type(error).__name__}: {text}"
        ) from error


def _is_omitted(slot: Slot) -> bool:
    return slot.tensor is None and slot.sizes is None


def _is_fixed(slot: Slot) -> bool:
    return slot.fixed is not None or _is_omitted(slot)


def _may_fold(node: Node) -> bool:
    has_body = any(isinstance(value, Subgraph) for value in node.attrs.values())
    return not has_body and node.op_type not in NEVER_FOLDED


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _folded(result: Any) -> Slot | None:
    """The slot of a result computed at once; None if it is too large to keep."""
    if isinstance(result, Known):
        return of_known(result)
    if isinstance(result, torch.Tensor) and result.numel() > MAX_FOLDED:
        return None
    return result if isinstance(result, Slot) else fixed_slot(result)


def _by_rule(node: Node, slots: list[Slot]) -> list[Slot] | None:
    """The results of a node that only computes with sizes."""
    rule = RULES.get(node.op_type)
    is_known = all(_is_fixed(slot) or slot.sizes is not None for slot in slots)
    if rule is None or not is_known or not any(slot.sizes for slot in slots):
        return None
    if any(isinstance(slot.fixed, list) for slot in slots):
        return None
    result = rule(node, *(_known_in(slot) for slot in slots))
    return None if result is None else [of_known(known) for known in _listed(result)]


def _known_in(slot: Slot) -> Known | None:
    if slot.sizes is not None:
        return slot.sizes
    return None if slot.fixed is None else known_of(slot.fixed)


def _traced(result: Any, needs: frozenset[str], node: Node) -> Slot:
    """The slot of a traced result; an input handed through keeps what is known of it."""
    if isinstance(result, Slot):
        return result
    if isinstance(result, Known):
        return of_known(result)
    for value, slot in node.slots:
        if result is value and value is not None:
            return slot
    return Slot(result, needs=needs)
