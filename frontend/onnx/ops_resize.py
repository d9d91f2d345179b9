"""Resize, upsample, and grids: reading images between their pixels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .registry import Node, Tensor, Value, op, outside_trace
from .sampling import gathered

Floats = NDArray[np.float64]
FEW = 4
"""Points that a result reads along an axis; more are a product with a matrix."""


@op("Upsample")
def upsample(node: Node, x: Tensor, scales: Tensor) -> Value:
    """Opset 9: whole or broken factors, pixels at their upper left corners."""
    mode = node.attrs.get("mode", "nearest")
    factors = [float(s) for s in node.numbers(scales)]
    kind = "nearest" if mode == "nearest" else "linear"
    for axis, factor in enumerate(factors):
        size = int(np.floor(x.shape[axis] * factor))
        rule = Rule(kind, "asymmetric", "floor")
        x = resized(node, x, axis, size, factor, rule) if factor != 1 else x
    return x


@dataclass(frozen=True)
class Rule:
    """How values between points are found."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0
    region: tuple[float, float] = (0.0, 1.0)


@op("Resize")
def resize(
    node: Node,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Value:
    """One axis after the other: all modes are separable."""
    axes = [a % x.dim() for a in node.attrs.get("axes", range(x.dim()))]
    wanted, factors = _targets(node, x, axes, scales, sizes)
    crop = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    regions = node.numbers(roi) if crop and roi is not None else []
    for place, axis in enumerate(axes):
        region = (regions[place], regions[len(axes) + place]) if regions else (0.0, 1.0)
        same = wanted[place] == x.shape[axis] and factors[place] == 1 and region == (0.0, 1.0)
        if not same:
            rule = _rule(node, region)
            x = resized(node, x, axis, wanted[place], factors[place], rule)
    return x


def _rule(node: Node, region: tuple[float, float]) -> Rule:
    attrs = node.attrs
    return Rule(
        attrs.get("mode", "nearest"),
        attrs.get("coordinate_transformation_mode", "half_pixel"),
        attrs.get("nearest_mode", "round_prefer_floor"),
        attrs.get("cubic_coeff_a", -0.75),
        bool(attrs.get("antialias", 0)),
        bool(attrs.get("exclude_outside", 0)),
        attrs.get("extrapolation_value", 0.0),
        region,
    )


def _targets(
    node: Node, x: Tensor, axes: list[int], scales: Tensor | None, sizes: Tensor | None
) -> tuple[list[Any], list[float]]:
    """The size and the factor of each axis."""
    if sizes is not None and sizes.numel():
        wanted = node.ints(sizes)
        factors = [w / x.shape[a] for w, a in zip(wanted, axes, strict=True)]
        policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            wanted = [int(np.floor(factor * x.shape[a] + 0.5)) for a in axes]
        return wanted, factors
    if scales is None:
        node.refuse("expected scales or sizes, got neither")
    factors = [float(s) for s in node.numbers(scales)]
    return [_scaled(x.shape[a], f) for a, f in zip(axes, factors, strict=True)], factors


def _scaled(size: Any, factor: float) -> Any:
    if isinstance(size, int):
        return int(np.floor(size * factor))
    return size * int(factor) if factor == int(factor) else torch.sym_int(size * factor)  # type: ignore[no-untyped-call]


def resized(node: Node, x: Tensor, axis: int, size: Any, factor: float, rule: Rule) -> Tensor:
    """One axis of ``size`` points: each the sum of a few weighted points of the old axis."""
    old = x.shape[axis]
    if not (isinstance(old, int) and isinstance(size, int)):
        return _of_any_size(node, x, axis, size, factor, rule)
    if size == 0:
        return x.narrow(axis, 0, 0)
    places, weights, outside = _points(node, rule, old, size, factor)
    if rule.mode == "nearest":
        y = x.index_select(axis, _constant(places[:, 0]))
    elif places.shape[1] <= FEW:
        shape = [size if i == axis else 1 for i in range(x.dim())]
        y = _weighted(x, axis, places, weights, shape)
    else:
        matrix = np.zeros((size, old))
        np.add.at(matrix, (np.arange(size)[:, None], places), weights)
        y = torch.matmul(x.movedim(axis, -1), _constant(matrix.T).to(x.dtype)).movedim(-1, axis)
    if outside.any():
        mask = _constant(outside).reshape([size if i == axis else 1 for i in range(x.dim())])
        y = torch.where(mask, torch.full((), rule.extrapolation, dtype=y.dtype), y)
    return y


def _weighted(
    x: Tensor, axis: int, places: NDArray[np.int64], weights: Floats, shape: list[int]
) -> Tensor:
    total: Tensor | None = None
    for tap in range(places.shape[1]):
        weight = _constant(weights[:, tap]).to(torch.float32).reshape(shape)
        part = x.index_select(axis, _constant(places[:, tap])) * weight
        total = part if total is None else total + part
    assert total is not None
    return total.to(x.dtype)


def _constant(array: NDArray[Any]) -> Tensor:
    """A tensor that the trace takes as it is."""
    with outside_trace():
        dtype = torch.float32 if array.dtype == np.float64 else None
        return torch.tensor(array.tolist(), dtype=dtype)


def _points(
    node: Node, rule: Rule, old: int, size: int, factor: float
) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]:
    """For each result the points it reads [size, taps], their weights, and whether it lies outside
    the region."""
    at = _coordinates(node, rule, old, size, factor)
    outside = np.zeros(size, np.bool_)
    if rule.coordinates == "tf_crop_and_resize":
        outside = (at < 0) | (at > old - 1)
    if rule.mode == "nearest":
        chosen = _nearest(node, rule.nearest, at).clip(0, old - 1).astype(np.int64)
        return chosen[:, None], np.ones((size, 1)), outside
    reach = {"linear": 1, "cubic": 2}.get(rule.mode)
    if reach is None:
        node.refuse(f"expected mode nearest, linear or cubic, got {rule.mode!r}")
    stretch = min(factor, 1.0) if rule.antialias else 1.0
    span = int(np.ceil(reach / stretch))
    places = np.floor(at).astype(np.int64)[:, None] + np.arange(-span + 1, span + 1)
    distance = (places - at[:, None]) * stretch
    weights = _triangle(distance) if reach == 1 else _cubic(distance, rule.cubic)
    if rule.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    if rule.exclude_outside:
        weights = np.where((places < 0) | (places >= old), 0.0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    return places.clip(0, old - 1), weights, outside


def _coordinates(node: Node, rule: Rule, old: int, size: int, factor: float) -> Floats:
    """Where the results lie on the old axis."""
    y = np.arange(size, dtype=np.float64)
    width = factor * old
    if rule.coordinates == "align_corners":
        return y * 0 if width == 1 else y * (old - 1) / (width - 1)
    if rule.coordinates == "asymmetric":
        return y / factor
    if rule.coordinates == "tf_crop_and_resize":
        start, end = rule.region
        if width == 1:
            return y * 0 + (end - start) * (old - 1) / 2 + start * (old - 1)
        return y * (end - start) * (old - 1) / (width - 1) + start * (old - 1)
    if rule.coordinates == "pytorch_half_pixel" and width == 1:
        return y * 0 - 0.5
    if rule.coordinates in ("half_pixel", "pytorch_half_pixel"):
        return (y + 0.5) / factor - 0.5
    if rule.coordinates != "half_pixel_symmetric":
        node.refuse(f"expected a coordinate transformation of ONNX, got {rule.coordinates!r}")
    return old / 2 * (1 - size / width) + (y + 0.5) / factor - 0.5


def _nearest(node: Node, how: str, at: Floats) -> Floats:
    if how == "round_prefer_floor":
        return np.ceil(at - 0.5)
    if how == "round_prefer_ceil":
        return np.floor(at + 0.5)
    if how not in ("floor", "ceil"):
        node.refuse(f"expected a nearest_mode of ONNX, got {how!r}")
    return np.floor(at) if how == "floor" else np.ceil(at)


def _triangle(distance: Floats) -> Floats:
    return np.asarray(np.clip(1 - np.abs(distance), 0, 1), np.float64)


def _cubic(distance: Floats, a: float) -> Floats:
    x = np.abs(distance)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))


def _of_any_size(node: Node, x: Tensor, axis: int, size: Any, factor: float, rule: Rule) -> Tensor:
    """Sizes that are not known: nearest points by whole factors, which is what models do."""
    whole = int(factor)
    good = rule.mode == "nearest" and whole == factor and whole >= 1
    floors = rule.coordinates == "asymmetric" and rule.nearest == "floor"
    centred = rule.coordinates in ("half_pixel", "pytorch_half_pixel")
    if not good or not (floors or (centred and rule.nearest.startswith("round"))):
        node.refuse(
            f"expected a known size of axis {axis}, or nearest points by a whole factor, got "
            f"{rule.mode} by {factor:g} (fix the size with --dim)"
        )
    return x.repeat_interleave(whole, axis)


# Grids ----------------------------------------------------------------------------------------


@op("GridSample")
def grid_sample(node: Node, x: Tensor, grid: Tensor) -> Value:
    """x [n, c, ...] at the places that grid [n, ..., axes] names from -1 to 1, last axis first."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        node.attrs.get("mode", "linear"), node.attrs.get("mode", "linear")
    )
    padding = node.attrs.get("padding_mode", "zeros")
    corners = bool(node.attrs.get("align_corners", 0))
    sizes = list(x.shape[2:])
    spots = grid.reshape(grid.shape[0], -1, len(sizes))
    taps = []
    for axis, size in enumerate(sizes):
        at = spots[..., len(sizes) - 1 - axis]
        at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
        taps.append(_axis_taps(node, at, size, mode, padding, corners))
    flat = x.reshape(*x.shape[:2], -1)
    total: Tensor | None = None
    for chosen in itertools.product(*taps):
        place, weight = _joined(chosen, sizes)
        part = gathered(flat, place) * weight.unsqueeze(1)
        total = part if total is None else total + part
    assert total is not None
    return total.reshape(*x.shape[:2], *grid.shape[1:-1])


def _axis_taps(
    node: Node, at: Tensor, size: int, mode: str, padding: str, corners: bool
) -> list[tuple[Tensor, Tensor]]:
    """The points read along one axis, and their weights."""
    if mode not in ("nearest", "linear", "cubic"):
        node.refuse(f"expected mode nearest, linear or cubic, got {mode!r}")
    at = torch.round(at) if mode == "nearest" else at
    at = _within(at, size, padding, corners)
    if mode == "nearest":
        return [_tap(at, torch.ones_like(at), size, padding, corners)]
    low = torch.floor(at)
    found = []
    for step in range(0, 2) if mode == "linear" else range(-1, 3):
        distance = (at - low - step).abs()
        weight = 1 - distance if mode == "linear" else _cubic_weight(distance)
        found.append(_tap(low + step, weight, size, padding, corners))
    return found


def _cubic_weight(x: Tensor, a: float = -0.75) -> Tensor:
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, inner, outer)


def _tap(
    at: Tensor, weight: Tensor, size: int, padding: str, corners: bool
) -> tuple[Tensor, Tensor]:
    if padding == "zeros":
        weight = torch.where((at >= 0) & (at <= size - 1), weight, 0.0)
    at = _within(at, size, padding, corners)
    return at.clamp(0, size - 1).to(torch.int64), weight


def _within(at: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    """Places outside moved in: to the border, or reflected at it as often as needed."""
    if padding == "border":
        return at.clamp(0, size - 1)
    if padding != "reflection":
        return at
    low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
    if span == 0:
        return torch.zeros_like(at)
    turn = torch.remainder(at - low, 2 * span)
    return torch.where(turn > span, 2 * span - turn, turn) + low


def _joined(chosen: Sequence[tuple[Tensor, Tensor]], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One flat place and one weight from those of all axes."""
    place, weight = chosen[0]
    for (at, factor), size in zip(chosen[1:], sizes[1:], strict=True):
        place, weight = place * size + at, weight * factor
    return place, weight
