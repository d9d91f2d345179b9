"""Casts between all element types, and bits read as another type."""

from __future__ import annotations

from onnx import TensorProto

from .registry import TORCH_TYPES, Node, Tensor, Value, op
from .small_types import FLOATS, INTEGERS, SCALE, cast


@op("Cast")
def cast_to(node: Node, x: Tensor) -> Value:
    return _cast(node, x, node.attrs["to"])


@op("CastLike")
def cast_like(node: Node, x: Tensor, like: Tensor) -> Value:
    return _cast(node, x, node.input_types[1])


def _cast(node: Node, x: Tensor, to: int) -> Tensor:
    return cast(
        node,
        x,
        node.input_types[0],
        to,
        saturate=bool(node.attrs.get("saturate", 1)),
        round_mode=node.attrs.get("round_mode", "up"),
    )


@op("BitCast")
def bit_cast(node: Node, x: Tensor) -> Value:
    """Types of one width; those that live in a wider type have other bits there."""
    source, to = node.input_types[0], node.attrs["to"]
    if to == source:
        return x
    wide = [t for t in (source, to) if t in (*FLOATS, *INTEGERS, SCALE) or t not in TORCH_TYPES]
    if wide:
        node.refuse(f"expected types of whole bytes, got {TensorProto.DataType.Name(wide[0])}")
    return x.view(TORCH_TYPES[to])
