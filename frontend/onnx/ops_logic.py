"""Comparisons, truths, bits and choices."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .registry import Node, Tensor, Value, op

_COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
}
_TRUTHS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}
_BITS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}
_WIDE = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch stores but hardly computes with."""


def signed(x: Tensor) -> Tensor:
    """Unsigned integers wider than a byte as int64, which has the same order up to 2^63."""
    return x.to(torch.int64) if x.dtype in _WIDE else x


@op(*_COMPARE)
def compare(node: Node, a: Tensor, b: Tensor) -> Value:
    return _COMPARE[node.op_type](signed(a), signed(b))


@op(*_TRUTHS)
def truths(node: Node, a: Tensor, b: Tensor) -> Value:
    return _TRUTHS[node.op_type](a, b)


@op("Not")
def not_(node: Node, x: Tensor) -> Value:
    return torch.logical_not(x)


@op(*_BITS)
def bits(node: Node, a: Tensor, b: Tensor) -> Value:
    return _BITS[node.op_type](signed(a), signed(b)).to(a.dtype)


@op("BitwiseNot")
def bitwise_not(node: Node, x: Tensor) -> Value:
    return torch.bitwise_not(signed(x)).to(x.dtype)


@op("BitShift")
def bit_shift(node: Node, x: Tensor, count: Tensor) -> Value:
    left = node.attrs["direction"] == "LEFT"
    shift = torch.bitwise_left_shift if left else torch.bitwise_right_shift
    return shift(signed(x), signed(count)).to(x.dtype)


@op("Where")
def where(node: Node, condition: Tensor, a: Tensor, b: Tensor) -> Value:
    if a.dtype in _WIDE:
        return torch.where(condition, signed(a), signed(b)).to(a.dtype)
    return torch.where(condition, a, b)


@op("IsNaN")
def is_nan(node: Node, x: Tensor) -> Value:
    return torch.isnan(x)


@op("IsInf")
def is_inf(node: Node, x: Tensor) -> Value:
    above = bool(node.attrs.get("detect_positive", 1))
    below = bool(node.attrs.get("detect_negative", 1))
    if above and below:
        return torch.isinf(x)
    if above or below:
        return x == (math.inf if above else -math.inf)
    return torch.zeros_like(x, dtype=torch.bool)
