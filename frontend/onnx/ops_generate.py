"""Tensors made from nothing but numbers known at compile time."""

from __future__ import annotations

import torch

from .registry import TORCH_TYPES, Node, Tensor, Value, op, outside_trace


@op("Constant")
def constant(node: Node) -> Value:
    attrs = node.attrs
    if "value_string" in attrs or "value_strings" in attrs:
        node.refuse("expected numbers, got strings")
    for key in ("value", "sparse_value"):
        if key in attrs:
            return attrs[key]
    for key, dtype in (("value_float", torch.float32), ("value_floats", torch.float32)):
        if key in attrs:
            return torch.tensor(attrs[key], dtype=dtype)
    return torch.tensor(attrs["value_int" if "value_int" in attrs else "value_ints"])


@op("ConstantOfShape")
def constant_of_shape(node: Node, shape: Tensor) -> Value:
    value = node.attrs.get("value", torch.zeros(1, dtype=torch.float32))
    with outside_trace():
        number = value.reshape(-1)[0].item()
    return torch.full(node.ints(shape), number, dtype=value.dtype)


@op("EyeLike")
def eye_like(node: Node, x: Tensor) -> Value:
    dtype = TORCH_TYPES[node.attrs["dtype"]] if "dtype" in node.attrs else x.dtype
    rows = torch.arange(x.shape[0]).unsqueeze(1)
    columns = torch.arange(x.shape[1]).unsqueeze(0)
    return (columns - rows == node.attrs.get("k", 0)).to(dtype)


@op("Range")
def range_(node: Node, start: Tensor, limit: Tensor, delta: Tensor) -> Value:
    """Integers may be sizes; of floats the count is found here."""
    if not start.dtype.is_floating_point:
        (first,), (last,), (step,) = node.ints(start), node.ints(limit), node.ints(delta)
        return torch.arange(first, last, step, dtype=start.dtype)
    low, high, by = (float(node.numbers(x)[0]) for x in (start, limit, delta))
    count = max(-int(-(high - low) // by), 0)
    return torch.arange(count).to(start.dtype) * by + low


@op("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random(node: Node, *xs: Tensor) -> Value:
    node.refuse("expected numbers that follow from the inputs, got random ones (make it an input)")


@op("Bernoulli", "Multinomial")
def draw(node: Node, x: Tensor) -> Value:
    node.refuse("expected numbers that follow from the inputs, got random ones (make it an input)")
