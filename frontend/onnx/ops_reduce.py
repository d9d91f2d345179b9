"""Reductions, running sums, and orders along axes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .ops_logic import signed
from .ops_shape import axes_of
from .registry import Node, Tensor, Value, op

_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceSum": lambda x, axes, keep: torch.sum(x, axes, keep, dtype=x.dtype),
    "ReduceMean": lambda x, axes, keep: _mean(x, axes, keep),
    "ReduceMax": lambda x, axes, keep: _extreme(torch.amax, x, axes, keep),
    "ReduceMin": lambda x, axes, keep: _extreme(torch.amin, x, axes, keep),
    "ReduceProd": lambda x, axes, keep: _product(x, axes, keep),
    "ReduceL1": lambda x, axes, keep: torch.sum(x.abs(), axes, keep, dtype=x.dtype),
    "ReduceL2": lambda x, axes, keep: torch.sqrt(torch.sum(x * x, axes, keep)),
    "ReduceSumSquare": lambda x, axes, keep: torch.sum(x * x, axes, keep, dtype=x.dtype),
    "ReduceLogSum": lambda x, axes, keep: torch.log(torch.sum(x, axes, keep)),
    "ReduceLogSumExp": lambda x, axes, keep: _log_sum_exp(x, axes, keep),
}


@op(*_REDUCTIONS)
def reduction(node: Node, x: Tensor, axes: Tensor | None = None) -> Value:
    """Without axes over all of them, or over none with ``noop_with_empty_axes``."""
    chosen = axes_of(node, axes) or list(node.attrs.get("axes", []))
    if not chosen and node.attrs.get("noop_with_empty_axes", 0):
        return _REDUCTIONS[node.op_type](x.unsqueeze(0), [0], False)
    places = [axis % x.dim() for axis in chosen] or list(range(x.dim()))
    if not places:
        return _REDUCTIONS[node.op_type](x.unsqueeze(0), [0], False)
    return _REDUCTIONS[node.op_type](x, places, bool(node.attrs.get("keepdims", 1)))


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.dtype.is_floating_point:
        return torch.mean(x, axes, keep)
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    return torch.div(torch.sum(x, axes, keep), count, rounding_mode="trunc").to(x.dtype)


def _extreme(function: Callable[..., Tensor], x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Of nothing: the type's own end, as ONNX says."""
    if any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes):
        largest = function is torch.amin
        if x.dtype.is_floating_point:
            end: float = float("inf") if largest else float("-inf")
        elif x.dtype == torch.bool:
            end = largest
        else:
            info = torch.iinfo(x.dtype)
            end = info.max if largest else info.min
        shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
        return torch.full(shape, end, dtype=x.dtype)
    if x.dtype == torch.bool:
        return function(x.to(torch.int32), axes, keep).to(torch.bool)
    return function(x, axes, keep)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    empty = any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes)
    if empty:
        return torch.log(torch.sum(torch.exp(x), axes, keep))
    return torch.logsumexp(x, axes, keep)


@op("ArgMax", "ArgMin")
def arg_extreme(node: Node, x: Tensor) -> Value:
    """Of equal elements the first, or the last with ``select_last_index``."""
    axis, keep = node.attrs.get("axis", 0), bool(node.attrs.get("keepdims", 1))
    find = torch.argmax if node.op_type == "ArgMax" else torch.argmin
    if not node.attrs.get("select_last_index", 0):
        return find(x, axis, keep)
    return x.shape[axis] - 1 - find(x.flip(axis), axis, keep)


@op("CumSum", "CumProd")
def running(node: Node, x: Tensor, axis: Tensor) -> Value:
    """``exclusive`` leaves an element out of its own sum; ``reverse`` runs from the end."""
    place = int(node.ints(axis)[0])
    function = torch.cumsum if node.op_type == "CumSum" else _products
    backwards = node.attrs.get("reverse", 0)
    x = x.flip(place) if backwards else x
    result = function(x, place, dtype=x.dtype)
    if node.attrs.get("exclusive", 0):
        shape = list(x.shape)
        shape[place] = 1
        first = torch.full(shape, 0 if node.op_type == "CumSum" else 1, dtype=x.dtype)
        rest = result.narrow(place, 0, x.shape[place] - 1)
        result = torch.cat([first, rest], place)
    return result.flip(place) if backwards else result


def _products(x: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    """In log2(n) rounds: each element times the one 1, 2, 4 ... places before it."""
    length, distance = x.shape[axis], 1
    while distance < length:
        shape = list(x.shape)
        shape[axis] = distance
        ones = torch.ones(shape, dtype=x.dtype)
        x = x * torch.cat([ones, x.narrow(axis, 0, length - distance)], axis)
        distance *= 2
    return x


@op("TopK")
def top_k(node: Node, x: Tensor, k: Tensor) -> Value:
    """By a stable order, so that of equal elements the first come first."""
    (count,) = node.ints(k)
    axis = node.attrs.get("axis", -1)
    largest = bool(node.attrs.get("largest", 1))
    values, places = torch.sort(signed(x), dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count).to(x.dtype), places.narrow(axis, 0, count)


@op("Hardmax")
def hardmax(node: Node, x: Tensor) -> Value:
    axis = node.attrs.get("axis", -1) % x.dim()
    first = torch.argmax(x, axis, keepdim=True)
    steps = torch.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    return (first == steps).to(x.dtype)


@op("Einsum")
def einsum(node: Node, *xs: Tensor) -> Value:
    return torch.einsum(node.attrs["equation"].replace(" ", ""), *xs)


@op("Det")
def det(node: Node, x: Tensor) -> Value:
    """By elimination with the largest pivot of each column, spelled out: matrices are small."""
    size = int(x.shape[-1])
    result = torch.ones(x.shape[:-2], dtype=x.dtype)
    for _ in range(size):
        pivot = torch.argmax(x[..., 0].abs(), -1, keepdim=True)
        row = torch.gather(x, -2, pivot.unsqueeze(-1).expand(*x.shape[:-2], 1, x.shape[-1]))
        top = row[..., 0, 0]
        sign = torch.where(pivot[..., 0] == 0, 1.0, -1.0).to(x.dtype)
        result = result * top * sign
        safe = torch.where(top == 0, torch.ones_like(top), top)
        steps = torch.arange(x.shape[-2]).unsqueeze(-1)
        swapped = torch.where(steps == pivot.unsqueeze(-1), x[..., :1, :], x)
        rest = swapped[..., 1:, :]
        x = (rest - rest[..., :1] * row / safe.unsqueeze(-1).unsqueeze(-1))[..., 1:]
    return result
