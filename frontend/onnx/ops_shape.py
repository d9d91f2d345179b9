"""Shapes asked for and changed, parts taken and joined: nothing is computed."""

from __future__ import annotations

import torch

from .registry import Known, Node, Size, Tensor, Value, op
from .sizes import larger, objects, smaller

_BEYOND = 2**31 - 1
"""A bound from here on means the end."""


def axes_of(node: Node, axes: Tensor | None) -> list[int]:
    """Axes as Python numbers."""
    return [] if axes is None else [int(axis) for axis in node.ints(axes)]


@op("Shape")
def shape(node: Node, x: Tensor) -> Value:
    """A slice of the shape: bounds are cut to the rank, as Python does."""
    sizes = list(x.shape)[node.attrs.get("start", 0) : node.attrs.get("end")]
    return Known(objects(sizes))


@op("Size")
def size(node: Node, x: Tensor) -> Value:
    total: Size = 1
    for length in x.shape:
        total = total * length
    return Known(objects([total], ()))


@op("Reshape")
def reshape(node: Node, x: Tensor, shape: Tensor) -> Value:
    """0 keeps a size (unless ``allowzero``), -1 is what is left."""
    wanted = node.ints(shape)
    if not node.attrs.get("allowzero", 0):
        wanted = [x.shape[i] if _is(n, 0) else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


def _is(number: Size, value: int) -> bool:
    """Without a guard on a symbolic size."""
    return isinstance(number, int) and number == value


@op("Flatten")
def flatten(node: Node, x: Tensor) -> Value:
    axis = node.attrs.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    rows: Size = 1
    for length in x.shape[:axis]:
        rows = rows * length
    columns: Size = 1
    for length in x.shape[axis:]:
        columns = columns * length
    return x.reshape(rows, columns)


@op("Squeeze")
def squeeze(node: Node, x: Tensor, axes: Tensor | None = None) -> Value:
    if axes is None and any(not isinstance(length, int) for length in x.shape):
        node.refuse("expected axes, got none for a shape with free sizes (fix them with --dim)")
    if axes is None:
        return x.squeeze()
    return x.squeeze(tuple(axes_of(node, axes)))


@op("Unsqueeze")
def unsqueeze(node: Node, x: Tensor, axes: Tensor) -> Value:
    places = axes_of(node, axes)
    rank = x.dim() + len(places)
    for place in sorted(place % rank for place in places):
        x = x.unsqueeze(place)
    return x


@op("Transpose")
def transpose(node: Node, x: Tensor) -> Value:
    return x.permute(node.attrs.get("perm", list(range(x.dim()))[::-1]))


@op("Concat")
def concat(node: Node, *xs: Tensor) -> Value:
    return torch.cat(xs, node.attrs["axis"])


@op("Expand")
def expand(node: Node, x: Tensor, shape: Tensor) -> Value:
    """Both sides broadcast: a size of 1 in ``shape`` keeps that of x."""
    wanted = node.ints(shape)
    rank = max(len(wanted), x.dim())
    wanted = [1] * (rank - len(wanted)) + wanted
    own = [1] * (rank - x.dim()) + list(x.shape)
    return x.expand([b if _is(a, 1) else a for a, b in zip(wanted, own, strict=True)])


@op("Tile")
def tile(node: Node, x: Tensor, repeats: Tensor) -> Value:
    return x.repeat(node.ints(repeats))


@op("Slice")
def slice_(
    node: Node,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Value:
    low, high = node.ints(starts), node.ints(ends)
    places = list(range(len(low))) if axes is None else axes_of(node, axes)
    strides = [1] * len(low) if steps is None else axes_of(node, steps)
    for start, end, axis, step in zip(low, high, places, strides, strict=True):
        x = _backwards(x, start, end, axis, step) if step < 0 else _cut(x, start, end, axis, step)
    return x


def _cut(x: Tensor, start: Size, end: Size, axis: int, step: int) -> Tensor:
    index: list[slice] = [slice(None)] * x.dim()
    length = x.shape[axis]
    if not isinstance(length, int):
        is_cut = _may_be_cut(start) or _may_be_cut(end)
        start, end = _inside(start, length), _inside(end, length)
        if is_cut:
            return x.index_select(axis, torch.arange(start, end, step))
    index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _may_be_cut(bound: Size) -> bool:
    """Whether some length of at least 1 is too small for the bound."""
    return isinstance(bound, int) and (bound < -1 or 2 <= bound < _BEYOND)


def _inside(bound: Size, length: torch.SymInt) -> Size:
    """A bound within a free length of at least 1, said so that torch assumes nothing of it."""
    if not isinstance(bound, int):
        return bound
    if bound < 0:
        return length + bound if bound == -1 else larger(length + bound, 0)
    return bound if bound < 2 else length if bound >= _BEYOND else smaller(bound, length)


def _backwards(x: Tensor, start: Size, end: Size, axis: int, step: int) -> Tensor:
    """Torch has no negative steps: the same elements of the axis turned round."""
    length = x.shape[axis]
    first = start + length if start < 0 else start
    first = larger(0, smaller(first, length - 1))
    last = end + length if end < 0 else end
    last = larger(-1, smaller(last, length - 1))
    return _cut(x.flip(axis), length - 1 - first, length - 1 - last, axis, -step)


@op("Split")
def split(node: Node, x: Tensor, sizes: Tensor | None = None) -> Value:
    """Into given sizes, or as many parts of one size, the last one smaller."""
    axis = node.attrs.get("axis", 0)
    if sizes is not None:
        return torch.split(x, node.ints(sizes), axis)
    count = node.attrs.get("num_outputs", node.num_outputs)
    return torch.split(x, -(-x.shape[axis] // count), axis)


@op("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Value:
    size = node.attrs["blocksize"]
    n, c, h, w = x.shape
    if node.attrs.get("mode", "DCR") == "DCR":
        parts = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // size**2, size, size, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // size**2, h * size, w * size)


@op("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Value:
    size = node.attrs["blocksize"]
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // size, size, w // size, size)
    order = (0, 1, 3, 5, 2, 4) if node.attrs.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return parts.permute(order).reshape(n, c * size**2, h // size, w // size)


@op("Pad")
def pad(
    node: Node,
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Value:
    """Negative pads cut. Edges, reflections and wraps are gathers, so any rank has them."""
    amounts = node.ints(pads)
    count = len(amounts) // 2
    places = list(range(count)) if axes is None else axes_of(node, axes)
    mode = node.attrs.get("mode", "constant")
    for place, before, after in zip(places, amounts[:count], amounts[count:], strict=True):
        if mode == "constant":
            x = _pad_constant(x, place, before, after, value)
        elif not (_is(before, 0) and _is(after, 0)):
            x = x.index_select(place, _reflected(node, mode, x.shape[place], before, after))
    return x


def _pad_constant(x: Tensor, axis: int, before: Size, after: Size, value: Tensor | None) -> Tensor:
    x = _cut(x, -before, x.shape[axis], axis, 1) if before < 0 else x
    x = _cut(x, 0, x.shape[axis] + after, axis, 1) if after < 0 else x
    parts = [x]
    for place, amount in ((0, before), (len(parts), after)):
        if amount > 0:
            parts.insert(place and len(parts), _filled(x, axis, amount, value))
    return torch.cat(parts, axis) if len(parts) > 1 else x


def _filled(x: Tensor, axis: int, length: Size, value: Tensor | None) -> Tensor:
    shape = list(x.shape)
    shape[axis] = length
    if value is None:
        return torch.zeros(shape, dtype=x.dtype)
    return value.reshape(()).to(x.dtype).expand(shape)


def _reflected(node: Node, mode: str, length: Size, before: Size, after: Size) -> Tensor:
    """Places along an axis of ``length`` that the padded axis reads."""
    places = torch.arange(-before, length + after)
    if mode == "edge":
        return places.clamp(0, length - 1)
    if mode == "wrap":
        return places.remainder(length)
    if mode != "reflect":
        node.refuse(f"expected mode constant, edge, reflect or wrap, got {mode!r}")
    last = length - 1
    folded: Tensor = last - (last - places.abs().remainder(2 * last)).abs()
    return folded


@op("CenterCropPad")
def center_crop_pad(node: Node, x: Tensor, shape: Tensor) -> Value:
    wanted = node.ints(shape)
    for axis, size in zip(node.attrs.get("axes", range(x.dim())), wanted, strict=True):
        extra = size - x.shape[axis]
        if extra < 0:
            start = (-extra) // 2
            x = _cut(x, start, start + size, axis, 1)
        elif extra > 0:
            x = _pad_constant(x, axis, extra // 2, extra - extra // 2, None)
    return x


@op("ReverseSequence")
def reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Value:
    """The first ``lengths[b]`` steps turned round, the rest as they are."""
    time, batch = node.attrs.get("time_axis", 0), node.attrs.get("batch_axis", 1)
    moved = x.movedim((batch, time), (0, 1))
    steps = torch.arange(moved.shape[1]).unsqueeze(0)
    ends = lengths.to(torch.int64).unsqueeze(1)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    places = places.reshape(*places.shape, *[1] * (x.dim() - 2)).expand(moved.shape)
    return moved.gather(1, places).movedim((0, 1), (batch, time))
