"""Sequences and optionals: lists that exist while the graph is traced, and no longer after."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .registry import Known, Node, Tensor, Value, op


@op("SequenceConstruct")
def construct(node: Node, *xs: Tensor) -> Value:
    return list(xs)


@op("SequenceEmpty")
def empty(node: Node) -> Value:
    return []


@op("SequenceLength")
def length(node: Node, xs: list[Tensor]) -> Value:
    return _number(len(xs), torch.int64)


def _number(value: Any, dtype: torch.dtype) -> Known:
    array = np.empty((), object)
    array[()] = value
    return Known(array, dtype)


def _place(node: Node, position: Tensor, count: int) -> int:
    """Counted from the end where negative."""
    place = int(node.ints(position)[0])
    if not -count <= place < count:
        node.refuse(f"expected a position in a sequence of {count}, got {place}")
    return place % count


@op("SequenceAt")
def at(node: Node, xs: list[Tensor], position: Tensor) -> Value:
    return xs[_place(node, position, len(xs))]


@op("SequenceInsert")
def insert(node: Node, xs: list[Tensor], x: Tensor, position: Tensor | None = None) -> Value:
    """Without a position at the end."""
    place = len(xs) if position is None else int(node.ints(position)[0])
    if not -len(xs) <= place <= len(xs):
        node.refuse(f"expected a position in a sequence of {len(xs)}, got {place}")
    place = place + len(xs) if place < 0 else place
    return [*xs[:place], x, *xs[place:]]


@op("SequenceErase")
def erase(node: Node, xs: list[Tensor], position: Tensor | None = None) -> Value:
    place = len(xs) - 1 if position is None else _place(node, position, len(xs))
    return [*xs[:place], *xs[place + 1 :]]


@op("SplitToSequence")
def split(node: Node, x: Tensor, sizes: Tensor | None = None) -> Value:
    """By 1, by one size (the last part may be smaller), or by the sizes given."""
    axis = node.attrs.get("axis", 0) % x.dim()
    if sizes is None:
        parts = list(torch.split(x, 1, axis))
        keep = node.attrs.get("keepdims", 1)
        return parts if keep else [part.squeeze(axis) for part in parts]
    counts = node.ints(sizes)
    if sizes.dim() == 0:
        return list(torch.split(x, counts[0], axis))
    return list(torch.split(x, counts, axis))


@op("ConcatFromSequence")
def concat(node: Node, xs: list[Tensor]) -> Value:
    axis = node.attrs["axis"]
    return torch.stack(xs, axis) if node.attrs.get("new_axis", 0) else torch.cat(xs, axis)


@op("Optional")
def optional(node: Node, x: Value = None) -> Value:
    return x


@op("OptionalHasElement")
def has_element(node: Node, x: Value = None) -> Value:
    return _number(x is not None, torch.bool)


@op("OptionalGetElement")
def get_element(node: Node, x: Value = None) -> Value:
    if x is None:
        node.refuse("expected an optional with an element, got one without")
    return x
