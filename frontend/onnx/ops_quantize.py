"""Quantization: to integers and small floats and back, and arithmetic on quantized values."""

from __future__ import annotations

from typing import Any

import torch
from onnx import TensorProto

from .ops_conv import integer_convolution
from .ops_linear import matmul_integer
from .registry import TORCH_TYPES, Node, Tensor, Value, op
from .small_types import FLOATS, bounds, cast


@op("QuantizeLinear")
def quantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Value:
    """x / scale, rounded to even, plus the zero point, saturated."""
    to = node.attrs.get("output_dtype", 0) or TensorProto.UINT8
    to = node.input_types[2] if zero is not None else to
    precision = node.attrs.get("precision", 0)
    if precision:
        x, scale = x.to(TORCH_TYPES[precision]), scale.to(TORCH_TYPES[precision])
    ratio = x / _spread(node, scale, x)
    if to in FLOATS:
        saturate = bool(node.attrs.get("saturate", 1))
        return cast(node, ratio, TensorProto.FLOAT, to, saturate=saturate)
    shift = None if zero is None else _spread(node, zero, x)
    return saturated(torch.round(ratio), shift, to)


def saturated(whole: Tensor, shift: Tensor | None, to: int) -> Tensor:
    """Whole numbers in f32, moved by the zero point and held within the type."""
    whole = whole.to(torch.float32)
    moved = whole if shift is None else whole + shift.to(torch.float32)
    low, high = bounds(to)
    return moved.clamp(low, high).to(TORCH_TYPES[to])


def _spread(node: Node, factor: Tensor, x: Tensor) -> Tensor:
    """One factor for all, one per place of ``axis``, or one per block along it."""
    if factor.dim() == 0 or (factor.dim() == 1 and factor.shape[0] == 1):
        return factor.reshape(())
    axis, block = node.attrs.get("axis", 1) % x.dim(), node.attrs.get("block_size", 0)
    if block:
        return factor.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return factor.reshape([-1 if i == axis else 1 for i in range(x.dim())])


@op("DequantizeLinear")
def dequantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Value:
    """(x - zero point) * scale, in the type of the scale or the one that is asked for."""
    to = node.attrs.get("output_dtype", 0) or node.input_types[1]
    value = x.to(torch.float32)
    if zero is not None and node.input_types[0] not in FLOATS:
        value = value - _spread(node, zero, x).to(torch.float32)
    return (value * _spread(node, scale, x).to(torch.float32)).to(TORCH_TYPES[to])


@op("DynamicQuantizeLinear")
def dynamic_quantize(node: Node, x: Tensor) -> Value:
    """To uint8, with the range of x and zero in it."""
    low, high = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)
    scale = (high - low) / 255
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round((-low / safe).clamp(0, 255)).to(torch.uint8)
    return saturated(torch.round(x / safe), zero, TensorProto.UINT8), scale, zero


@op("QLinearMatMul")
def qlinear_matmul(
    node: Node,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Value:
    """Scales and zero points are one number, or one per row of A and column of B."""
    product: Tensor = matmul_integer(node, a, b, a_zero, b_zero)
    left = a_scale.unsqueeze(-1) if a_scale.dim() == 1 and a_scale.shape[0] != 1 else a_scale
    right = b_scale.unsqueeze(-2) if b_scale.dim() == 1 and b_scale.shape[0] != 1 else b_scale
    return _requantized(node, product, left * right, y_scale, y_zero, 7)


def _requantized(
    node: Node, exact: Tensor, scale: Tensor, y_scale: Tensor, y_zero: Tensor, place: int
) -> Tensor:
    factor = scale.to(torch.float32) / y_scale.to(torch.float32)
    moved = exact.to(torch.float32) * factor + y_zero.to(torch.float32)
    low, high = bounds(node.input_types[place])
    return torch.round(moved).clamp(low, high).to(y_zero.dtype)


@op("QLinearConv")
def qlinear_conv(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Value:
    exact = integer_convolution(node, x, w, x_zero, w_zero)
    shape: list[Any] = [-1] + [1] * (x.dim() - 2)
    if bias is not None:
        exact = exact + bias.to(torch.int32).reshape(shape)
    per_channel = w_scale.reshape(shape) if w_scale.numel() > 1 else w_scale.reshape(())
    return _requantized(node, exact, x_scale * per_channel, y_scale, y_zero, 7)
