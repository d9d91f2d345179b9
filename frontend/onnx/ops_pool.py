"""Pools: largest, mean and Lp norm of windows, and the way back."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .registry import Node, Tensor, Value, op
from .windows import MAX_PARTS, Windows, spatial_rank, windows_of

_MAX: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MEAN: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_CONVS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@op("MaxPool")
def max_pool(node: Node, x: Tensor) -> Value:
    axes = spatial_rank(node, x)
    kernel = list(node.attrs["kernel_shape"])
    found = windows_of(node, x, kernel, ceil=bool(node.attrs.get("ceil_mode", 0)))
    if node.num_outputs > 1 or not x.dtype.is_floating_point:
        return _max_with_places(node, x, found)
    padded = found.padded(x, float("-inf"))
    return _MAX[axes](padded, kernel, found.strides, 0, found.dilations)


def _max_with_places(node: Node, x: Tensor, found: Windows) -> Value:
    """Element by element of the window, so that the first of equal ones wins."""
    taps = 1
    for size in found.kernel:
        taps *= size
    if taps > MAX_PARTS:
        node.refuse(f"expected windows of at most {MAX_PARTS} elements, got {taps}")
    places = _places(node, x)
    best: Tensor | None = None
    where: Tensor | None = None
    lowest = -float("inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    values = found.parts(found.padded(x, lowest))
    ids = found.parts(found.padded(places, -1))
    for (_, value), (_, place) in zip(values, ids, strict=True):
        if best is None or where is None:
            best, where = value, place
            continue
        better = (value > best) | ((where < 0) & (place >= 0))
        best, where = torch.where(better, value, best), torch.where(better, place, where)
    assert best is not None and where is not None
    return (best, where) if node.num_outputs > 1 else best


def _places(node: Node, x: Tensor) -> Tensor:
    """Where each element lies in the whole value; ``storage_order`` 1 counts columns first."""
    sizes = list(x.shape[2:])
    order = range(len(sizes)) if node.attrs.get("storage_order", 0) else range(len(sizes))[::-1]
    total = torch.zeros([1] * x.dim(), dtype=torch.int64)
    step = 1
    for axis in order:
        total = total + _along(sizes[axis], axis + 2, x.dim()) * step
        step = step * sizes[axis]
    for axis in (1, 0):
        total = total + _along(x.shape[axis], axis, x.dim()) * step
        step = step * x.shape[axis]
    return total.expand(x.shape)


def _along(size: int, axis: int, rank: int) -> Tensor:
    return torch.arange(size).reshape([size if i == axis else 1 for i in range(rank)])


@op("AveragePool")
def average_pool(node: Node, x: Tensor) -> Value:
    """Sums of windows over how many elements they see; pads count with ``count_include_pad``."""
    axes = spatial_rank(node, x)
    found = windows_of(
        node, x, list(node.attrs["kernel_shape"]), ceil=bool(node.attrs.get("ceil_mode", 0))
    )
    counts_pads = bool(node.attrs.get("count_include_pad", 0))
    if found.is_symmetric and set(found.dilations) == {1} and _is_small(found):
        pads = [int(p) for p in found.before]
        return _MEAN[axes](x, found.kernel, found.strides, pads, False, counts_pads)
    total = _sums(x, found, axes)
    ones = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype)
    if counts_pads:
        pads = [p for pair in zip(found.before, found.after, strict=True) for p in pair][::-1]
        ordered = [p for i in range(0, len(pads), 2) for p in (pads[i + 1], pads[i])]
        ones = F.pad(ones, ordered, value=1.0)
        count = _sums(ones, found, axes, padded=True)
    else:
        count = _sums(ones, found, axes)
    return total / count


def _is_small(found: Windows) -> bool:
    """Pads of at most half a window are what torch's own pool takes."""
    return all(
        isinstance(p, int) and 0 <= 2 * p <= k
        for p, k in zip(found.before, found.kernel, strict=True)
    )


def _sums(x: Tensor, found: Windows, axes: int, *, padded: bool = False) -> Tensor:
    """Of each window, as a convolution of every channel with ones."""
    c = x.shape[1]
    if padded:
        more = [r - a for r, a in zip(found.reach, found.after, strict=True)]
        seen = F.pad(x, [p for size in reversed(more) for p in (0, size)])
    else:
        seen = found.padded(x, 0)
    ones = torch.ones((c, 1, *found.kernel), dtype=x.dtype)
    return _CONVS[axes](seen, ones, None, found.strides, 0, found.dilations, c)


@op("LpPool")
def lp_pool(node: Node, x: Tensor) -> Value:
    axes = spatial_rank(node, x)
    found = windows_of(
        node, x, list(node.attrs["kernel_shape"]), ceil=bool(node.attrs.get("ceil_mode", 0))
    )
    p = node.attrs.get("p", 2)
    return _sums(x.abs() ** p, found, axes) ** (1.0 / p)


@op("GlobalAveragePool")
def global_average(node: Node, x: Tensor) -> Value:
    return x.mean(tuple(range(2, x.dim())), keepdim=True)


@op("GlobalMaxPool")
def global_max(node: Node, x: Tensor) -> Value:
    return x.amax(tuple(range(2, x.dim())), keepdim=True)


@op("GlobalLpPool")
def global_lp(node: Node, x: Tensor) -> Value:
    p = node.attrs.get("p", 2)
    return (x.abs() ** p).sum(tuple(range(2, x.dim())), keepdim=True) ** (1.0 / p)


@op("MaxUnpool")
def max_unpool(node: Node, x: Tensor, places: Tensor, shape: Tensor | None = None) -> Value:
    """Zeros, and the elements where the pool found them."""
    kernel = list(node.attrs["kernel_shape"])
    axes = len(kernel)
    strides = list(node.attrs.get("strides") or [1] * axes)
    pads = list(node.attrs.get("pads") or [0] * (2 * axes))
    sizes = [
        (n - 1) * s + k - before - after
        for n, s, k, before, after in zip(
            x.shape[2:], strides, kernel, pads[:axes], pads[axes:], strict=True
        )
    ]
    inner = [*x.shape[:2], *sizes]
    count = 1
    for size in inner:
        count = count * size
    flat = torch.zeros([count], dtype=x.dtype)
    y = flat.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(inner)
    if shape is None:
        return y
    wanted = node.ints(shape)
    more = [p for n, size in zip(wanted, inner, strict=True) for p in (n - size, 0)]
    return F.pad(y, more[::-1])


# Regions --------------------------------------------------------------------------------------


@op("MaxRoiPool")
def max_roi_pool(node: Node, x: Tensor, rois: Tensor) -> Value:
    """The largest of each part of a region of whole pixels; 0 where a part is empty."""
    height, width = node.attrs["pooled_shape"]
    scale = node.attrs.get("spatial_scale", 1.0)
    corners = torch.floor(rois[:, 1:] * scale + 0.5)
    images = x.index_select(0, rois[:, 0].to(torch.int64))
    columns = _bins(corners[:, 0], corners[:, 2], width, x.shape[3])
    rows = _bins(corners[:, 1], corners[:, 3], height, x.shape[2])
    low = float("-inf")
    wide = torch.where(columns[:, None, None], images.unsqueeze(3), low).amax(-1)
    turned = wide.transpose(2, 3).unsqueeze(2)
    best = torch.where(rows[:, None, :, None, :], turned, low).amax(-1)
    return torch.where(best == low, 0.0, best)


def _bins(start: Tensor, end: Tensor, count: int, size: int) -> Tensor:
    """[regions, count, size]: which pixels belong to each part along one axis."""
    length = torch.clamp(end - start + 1, min=1.0)
    part = (length / count).unsqueeze(1)
    steps = torch.arange(count).to(torch.float32)
    low = torch.clamp(torch.floor(steps * part) + start.unsqueeze(1), 0, size)
    high = torch.clamp(torch.ceil((steps + 1) * part) + start.unsqueeze(1), 0, size)
    pixels = torch.arange(size).to(torch.float32)
    return (pixels >= low.unsqueeze(2)) & (pixels < high.unsqueeze(2))


@op("RoiAlign")
def roi_align(node: Node, x: Tensor, rois: Tensor, batch: Tensor) -> Value:
    """Means (or largest) of samples on a grid within each part of a region."""
    ph, pw = node.attrs.get("output_height", 1), node.attrs.get("output_width", 1)
    half = node.attrs.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    corners = rois * node.attrs.get("spatial_scale", 1.0) - (0.5 if half else 0.0)
    sizes = corners[:, 2:] - corners[:, :2]
    sizes = sizes if half else sizes.clamp(min=1.0)
    ratio = node.attrs.get("sampling_ratio", 0)
    if ratio <= 0:
        node.refuse("expected a sampling_ratio above 0, got 0 (a grid per region)")
    columns = _samples(corners[:, 0], sizes[:, 0], pw, ratio)
    rows = _samples(corners[:, 1], sizes[:, 1], ph, ratio)
    images = x.index_select(0, batch.to(torch.int64))
    seen = _grid_of(images, rows, columns, node.attrs.get("mode", "avg") == "max")
    seen = seen.reshape(*seen.shape[:2], ph, ratio, pw, ratio)
    return seen.amax((3, 5)) if node.attrs.get("mode", "avg") == "max" else seen.mean((3, 5))


def _samples(start: Tensor, size: Tensor, parts: int, ratio: int) -> Tensor:
    """[regions, parts * ratio] places along one axis."""
    steps = (torch.arange(parts * ratio).to(torch.float32) + 0.5) / (parts * ratio)
    return start.unsqueeze(1) + size.unsqueeze(1) * steps


def _grid_of(x: Tensor, rows: Tensor, columns: Tensor, largest: bool) -> Tensor:
    """x [r, c, h, w] at rows [r, a] and columns [r, b] -> [r, c, a, b]. The largest is that of the
    four weighted neighbours, as the standard's own code has it."""
    corners = []
    for y, wy in _neighbours(rows, x.shape[2]):
        band = torch.gather(x, 2, y[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
        for z, wz in _neighbours(columns, x.shape[3]):
            places = z[:, None, None, :].expand(-1, x.shape[1], band.shape[2], -1)
            weights = (wy.unsqueeze(2) * wz.unsqueeze(1)).unsqueeze(1)
            corners.append(torch.gather(band, 3, places) * weights)
    if largest:
        return torch.maximum(
            torch.maximum(corners[0], corners[1]), torch.maximum(corners[2], corners[3])
        )
    return corners[0] + corners[1] + corners[2] + corners[3]


def _neighbours(at: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """The pixels before and after a place, and their weights; 0 beyond one pixel outside."""
    inside = (at >= -1.0) & (at <= size)
    place = at.clamp(0, size - 1)
    low = torch.floor(place)
    high = torch.clamp(low + 1, max=size - 1)
    part = place - low
    return [
        (low.to(torch.int64), torch.where(inside, 1 - part, 0.0)),
        (high.to(torch.int64), torch.where(inside, part, 0.0)),
    ]
