"""Ops that ONNX defines by other ops: the body of the definition, for given types of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference
import torch

from .registry import Slot


@cache
def schema_of(op_type: str, opset: int, domain: str) -> Any:
    """The op's schema, or None."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def has_body(schema: Any) -> bool:
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def body_of(
    schema: Any, node: onnx.NodeProto, opset: int, slots: Sequence[Slot]
) -> onnx.FunctionProto | None:
    """The definition for the model's opset; None if the op has none for these inputs."""
    if schema.has_function:
        version = _newest(schema.function_opset_versions, opset)
        data = schema.get_function_with_opset_version(version)
    else:
        version = _newest(schema.context_dependent_function_opset_versions, opset)
        types = [type_of(slot).SerializeToString() for slot in slots]
        data = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), types
        )
    return onnx.FunctionProto.FromString(data) if data else None


def _newest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def type_of(slot: Slot) -> onnx.TypeProto:
    """The type of a value as ONNX writes it; sizes that are symbolic are left open."""
    value: Any = slot.tensor if slot.sizes is None else slot.sizes.array
    proto = onnx.TypeProto()
    if value is None:
        return proto
    if isinstance(value, list):
        inner = type_of(Slot(value[0], elem_type=slot.elem_type)) if value else onnx.TypeProto()
        proto.sequence_type.elem_type.CopyFrom(inner)
        return proto
    proto.tensor_type.elem_type = slot.elem_type or _ELEM_TYPES.get(
        slot.sizes.dtype if slot.sizes is not None else value.dtype, 0
    )
    proto.tensor_type.shape.SetInParent()
    for size in value.shape:
        dim = proto.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
    return proto


_ELEM_TYPES = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.uint16: 4,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.uint32: 12,
    torch.uint64: 13,
    torch.complex64: 14,
    torch.bfloat16: 16,
}


def elem_type_of(slot: Slot) -> int:
    """The element type of a value: what inference said, else what torch's type stands for."""
    kind = type_of(slot)
    while kind.WhichOneof("value") == "sequence_type":
        kind = kind.sequence_type.elem_type
    return int(kind.tensor_type.elem_type)


_INFERENCE_ERRORS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError)


def output_types(
    schema: Any, node: onnx.NodeProto, slots: Sequence[Slot], opsets: Mapping[str, int]
) -> dict[str, int]:
    """Element types of a node's outputs where onnx's own inference tells them."""
    if schema is None or any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
        return {}
    types = {name: type_of(slot) for name, slot in zip(node.input, slots, strict=True) if name}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, node, types, opset_imports=imports)
    except (*_INFERENCE_ERRORS, RuntimeError, ValueError):
        return {}  # the node's function has a say of its own
    return {name: _elem_type(proto) for name, proto in found.items()}


def _elem_type(proto: onnx.TypeProto) -> int:
    while proto.WhichOneof("value") in ("sequence_type", "optional_type"):
        proto = getattr(proto, str(proto.WhichOneof("value"))).elem_type
    return int(proto.tensor_type.elem_type)


def bound(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """A node of a body with the caller's attributes in place of references to them."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            result.attribute.append(_bound_graphs(attribute, attributes))
        elif attribute.ref_attr_name in attributes:
            given = onnx.AttributeProto()
            given.CopyFrom(attributes[attribute.ref_attr_name])
            given.name = attribute.name
            result.attribute.append(given)
    return result


def _bound_graphs(
    attribute: onnx.AttributeProto, attributes: Mapping[str, onnx.AttributeProto]
) -> onnx.AttributeProto:
    if attribute.type != onnx.AttributeProto.GRAPH:
        return attribute
    result = onnx.AttributeProto()
    result.CopyFrom(attribute)
    nodes = [bound(node, attributes) for node in attribute.g.node]
    del result.g.node[:]
    result.g.node.extend(nodes)
    return result


def attributes_of(schema: Any, node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    """The node's attributes, and the schema's defaults of those it does not give."""
    found = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    return found | {attribute.name: attribute for attribute in node.attribute}
