"""Arithmetic, powers, roundings, trigonometry: one element at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch

from .registry import Node, Tensor, Value, op

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Log": torch.log,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}


@op(*_UNARY)
def unary(node: Node, x: Tensor) -> Value:
    return _UNARY[node.op_type](x)


@op("Identity")
def identity(node: Node, x: Value) -> Value:
    return x


_ARITHMETIC: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
}


@op(*_ARITHMETIC)
def arithmetic(node: Node, a: Tensor, b: Tensor) -> Value:
    return _wide(_ARITHMETIC[node.op_type], a, b)


def _wide(function: Callable[..., Tensor], *xs: Tensor) -> Tensor:
    """Torch has no arithmetic on unsigned integers wider than a byte: int64 has the same low bits,
    and the cast back wraps."""
    dtype = xs[0].dtype
    if dtype in (torch.uint16, torch.uint32, torch.uint64):
        return function(*(x.to(torch.int64) for x in xs)).to(dtype)
    return function(*xs)


@op("Div")
def div(node: Node, a: Tensor, b: Tensor) -> Value:
    if a.dtype.is_floating_point:
        return torch.div(a, b)
    return _wide(lambda x, y: torch.div(x, y, rounding_mode="trunc"), a, b)


@op("Mod")
def mod(node: Node, a: Tensor, b: Tensor) -> Value:
    """Python's sign rule, or C's with ``fmod``."""
    if node.attrs.get("fmod", 0):
        return _wide(torch.fmod, a, b)
    return _wide(torch.remainder, a, b)


@op("Pow")
def pow(node: Node, a: Tensor, b: Tensor) -> Value:
    """The result has the type of the base."""
    if a.dtype == b.dtype and not a.dtype.is_floating_point:
        return torch.pow(a, b)
    return torch.pow(a.to(torch.promote_types(a.dtype, b.dtype)), b).to(a.dtype)


@op("Sum")
def sum(node: Node, *xs: Tensor) -> Value:
    return reduce(torch.add, xs)


@op("Mean")
def mean(node: Node, *xs: Tensor) -> Value:
    return reduce(torch.add, xs) / len(xs)


@op("Max", "Min")
def extreme(node: Node, *xs: Tensor) -> Value:
    function = torch.maximum if node.op_type == "Max" else torch.minimum
    return reduce(lambda a, b: _wide(function, a, b), xs)


@op("Clip")
def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Value:
    if low is not None:
        x = _wide(torch.maximum, x, low)
    return x if high is None else _wide(torch.minimum, x, high)
