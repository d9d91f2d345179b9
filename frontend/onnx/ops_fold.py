"""Parts written to computed places: columns back to images, caches, boxes that do not overlap."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from .registry import Node, Tensor, Value, op, outside_trace


@op("Col2Im")
def col2im(node: Node, x: Tensor, image: Tensor, block: Tensor) -> Value:
    """x [n, c * block elements, blocks]: each block added where it came from."""
    sizes, kernel = node.ints(image), [int(k) for k in node.ints(block)]
    axes = len(kernel)
    strides = list(node.attrs.get("strides") or [1] * axes)
    dilations = list(node.attrs.get("dilations") or [1] * axes)
    pads = list(node.attrs.get("pads") or [0] * (2 * axes))
    if not all(isinstance(size, int) for size in sizes):
        node.refuse(f"expected a known image_shape, got {sizes}")
    wide = [n + pads[i] + pads[axes + i] for i, n in enumerate(sizes)]
    places = _block_places(wide, kernel, strides, dilations)
    n, taps = x.shape[0], int(np.prod(kernel))
    columns = x.reshape(n, -1, taps * places.shape[1])
    flat = torch.zeros((n, columns.shape[1], int(np.prod(wide))), dtype=x.dtype)
    with outside_trace():
        where = torch.tensor(places.reshape(-1).tolist(), dtype=torch.int64)
    y = flat.index_add(2, where, columns).reshape(n, columns.shape[1], *wide)
    for axis, size in enumerate(sizes):
        y = y.narrow(axis + 2, pads[axis], size)
    return y


def _block_places(
    wide: list[int], kernel: list[int], strides: list[int], dilations: list[int]
) -> np.ndarray:
    """[taps, blocks]: where each tap of each block lies in the padded image."""
    counts = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, s, d in zip(wide, kernel, strides, dilations, strict=True)
    ]
    rows = []
    for tap in itertools.product(*map(range, kernel)):
        starts = [
            np.arange(count) * s + t * d
            for count, s, t, d in zip(counts, strides, tap, dilations, strict=True)
        ]
        rows.append(np.ravel_multi_index(np.meshgrid(*starts, indexing="ij"), wide).reshape(-1))
    return np.stack(rows)


@op("TensorScatter")
def tensor_scatter(node: Node, past: Tensor, update: Tensor, start: Tensor | None = None) -> Value:
    """Each sample's update written from its own place on; ``circular`` wraps at the end."""
    axis = node.attrs.get("axis", -2) % past.dim()
    count = update.shape[axis]
    steps = torch.arange(count)
    first = torch.zeros(past.shape[0], dtype=torch.int64) if start is None else start
    places = first.to(torch.int64).unsqueeze(1) + steps
    if node.attrs.get("mode", "linear") == "circular":
        places = places.remainder(past.shape[axis])
    shape = [past.shape[0] if i == 0 else count if i == axis else 1 for i in range(past.dim())]
    return past.scatter(axis, places.reshape(shape).expand(update.shape), update)


# Boxes ----------------------------------------------------------------------------------------


@op("NonMaxSuppression")
def non_max_suppression(
    node: Node,
    boxes: Tensor,
    scores: Tensor,
    most: Tensor | None = None,
    overlap: Tensor | None = None,
    least: Tensor | None = None,
) -> Value:
    """The number of results depends on the boxes, so these must be known at compile time."""
    with outside_trace():
        corners = _corners(node.known(boxes).numpy(), bool(node.attrs.get("center_point_box", 0)))
        marks = node.known(scores).numpy()
    limit = int(node.numbers(most)[0]) if most is not None else 0
    threshold = float(node.numbers(overlap)[0]) if overlap is not None else 0.0
    floor = float(node.numbers(least)[0]) if least is not None else -np.inf
    found: list[list[int]] = []
    for batch, of_class in itertools.product(range(marks.shape[0]), range(marks.shape[1])):
        kept = _kept(corners[batch], marks[batch, of_class], limit, threshold, floor)
        found += [[batch, of_class, box] for box in kept]
    with outside_trace():
        return torch.tensor(found, dtype=torch.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, centred: bool) -> np.ndarray:
    """[..., low x, low y, high x, high y]"""
    a, b, c, d = (boxes[..., i] for i in range(4))
    if centred:
        return np.stack([a - c / 2, b - d / 2, a + c / 2, b + d / 2], -1)
    return np.stack([np.minimum(b, d), np.minimum(a, c), np.maximum(b, d), np.maximum(a, c)], -1)


def _kept(
    boxes: np.ndarray, scores: np.ndarray, limit: int, threshold: float, floor: float
) -> list[int]:
    kept: list[int] = []
    for box in np.argsort(-scores, kind="stable"):
        if len(kept) == limit:
            break
        if scores[box] > floor and all(_overlap(boxes[box], boxes[k]) <= threshold for k in kept):
            kept.append(int(box))
    return kept


def _overlap(a: np.ndarray, b: np.ndarray) -> Any:
    """Common area over the area of both together."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if (sides <= 0).any():
        return 0.0
    common = sides.prod()
    return common / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - common)
