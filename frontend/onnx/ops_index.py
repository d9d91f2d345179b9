"""Elements picked and put by index."""

from __future__ import annotations

import torch

from .ops_logic import signed
from .registry import Node, Size, Tensor, Value, op, outside_trace


def wrapped(indices: Tensor, length: Size) -> Tensor:
    """Negative indices count from the end."""
    indices = signed(indices).to(torch.int64)
    return torch.where(indices < 0, indices + length, indices)


@op("Gather")
def gather(node: Node, x: Tensor, indices: Tensor) -> Value:
    axis = node.attrs.get("axis", 0) % x.dim()
    places = wrapped(indices, x.shape[axis])
    picked = x.index_select(axis, places.reshape(-1))
    return picked.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@op("GatherElements")
def gather_elements(node: Node, x: Tensor, indices: Tensor) -> Value:
    axis = node.attrs.get("axis", 0)
    return torch.gather(x, axis, wrapped(indices, x.shape[axis]))


@op("GatherND")
def gather_nd(node: Node, x: Tensor, indices: Tensor) -> Value:
    """Batch dims are counted along; the last axis of ``indices`` addresses the next ones."""
    batch, depth = node.attrs.get("batch_dims", 0), int(indices.shape[-1])
    inner = indices.dim() - 1 - batch
    places = [
        torch.arange(x.shape[i]).reshape([-1 if j == i else 1 for j in range(batch + inner)])
        for i in range(batch)
    ]
    places += [wrapped(indices[..., i], x.shape[batch + i]) for i in range(depth)]
    return x[tuple(places)]


@op("Scatter", "ScatterElements")
def scatter_elements(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Value:
    axis = node.attrs.get("axis", 0)
    places = wrapped(indices, x.shape[axis])
    how = node.attrs.get("reduction", "none")
    if how == "none":
        return torch.scatter(x, axis, places, updates)
    if how == "add":
        return torch.scatter_add(x, axis, places, updates)
    named = {"mul": "prod", "max": "amax", "min": "amin"}[how]
    return torch.scatter_reduce(x, axis, places, updates, named)


@op("ScatterND")
def scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Value:
    """As a scatter of rows of a flat view: the addressed axes become one."""
    depth = int(indices.shape[-1])
    rows, width = 1, 1
    place = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for i in range(depth):
        place = place * x.shape[i] + wrapped(indices[..., i], x.shape[i])
        rows = rows * x.shape[i]
    for length in x.shape[depth:]:
        width = width * length
    flat, given = x.reshape(rows, width), updates.reshape(-1, width)
    places = place.reshape(-1, 1).expand(given.shape)
    how = node.attrs.get("reduction", "none")
    if how == "none":
        return torch.scatter(flat, 0, places, given).reshape(x.shape)
    if how == "add":
        return torch.scatter_add(flat, 0, places, given).reshape(x.shape)
    named = {"mul": "prod", "max": "amax", "min": "amin"}[how]
    return torch.scatter_reduce(flat, 0, places, given, named).reshape(x.shape)


@op("Compress")
def compress(node: Node, x: Tensor, condition: Tensor) -> Value:
    places = [i for i, chosen in enumerate(node.numbers(condition)) if chosen]
    kept = torch.tensor(places, dtype=torch.int64)
    axis = node.attrs.get("axis")
    return x.reshape(-1).index_select(0, kept) if axis is None else x.index_select(axis, kept)


@op("NonZero")
def non_zero(node: Node, x: Tensor) -> Value:
    with outside_trace():
        return torch.nonzero(node.known(x)).T.contiguous()


@op("OneHot")
def one_hot(node: Node, indices: Tensor, depth: Tensor, values: Tensor) -> Value:
    """An index outside -depth .. depth - 1 has no place: all are off."""
    (count,) = node.ints(depth)
    rank = indices.dim() + 1
    axis = node.attrs.get("axis", -1) % rank
    places = indices if not indices.dtype.is_floating_point else indices.to(torch.int64)
    hot = wrapped(places, count).unsqueeze(axis)
    steps = torch.arange(count).reshape([-1 if i == axis else 1 for i in range(rank)])
    off, on = values[0], values[1]
    return torch.where(hot == steps, on, off)


@op("Trilu")
def trilu(node: Node, x: Tensor, k: Tensor | None = None) -> Value:
    diagonal = int(node.ints(k)[0]) if k is not None else 0
    rows = torch.arange(x.shape[-2]).unsqueeze(1)
    columns = torch.arange(x.shape[-1]).unsqueeze(0)
    upper = node.attrs.get("upper", 1)
    kept = columns - rows >= diagonal if upper else columns - rows <= diagonal
    return torch.where(kept, x, torch.zeros((), dtype=x.dtype))


@op("Unique")
def unique(node: Node, x: Tensor) -> Value:
    """How many there are depends on the numbers; order and places as NumPy gives them."""
    with outside_trace():
        return _unique(node.known(x), node.attrs.get("axis"), bool(node.attrs.get("sorted", 1)))


def _unique(values: Tensor, axis: int | None, in_order: bool) -> tuple[Tensor, ...]:
    flat = values.reshape(-1, 1) if axis is None else values.movedim(axis, 0)
    rows = flat.reshape(flat.shape[0], -1)
    found, inverse = torch.unique(rows, dim=0, sorted=True, return_inverse=True)
    counts = torch.bincount(inverse, minlength=len(found))
    first = torch.stack([torch.nonzero(inverse == i)[0, 0] for i in range(len(found))])
    if not in_order:
        order = torch.argsort(first)
        places = torch.argsort(order)
        found, first, counts, inverse = found[order], first[order], counts[order], places[inverse]
    shaped = found.reshape(-1) if axis is None else found.reshape(-1, *flat.shape[1:])
    return shaped if axis is None else shaped.movedim(0, axis), first, inverse, counts
