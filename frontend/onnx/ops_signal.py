"""Fourier transforms, short-time ones, mel scales, windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .registry import TORCH_TYPES, Node, Tensor, Value, op, outside_trace

MAX_LENGTH = 1 << 18
MAX_ODD = 4097
"""Points of a transform whose table is kept."""
FEW = 4


@op("DFT")
def dft(node: Node, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Value:
    """x [..., 1] is real, [..., 2] complex; the axis is an attribute before opset 20."""
    place = node.attrs.get("axis", 1) if node.opset < 20 else -2
    place = int(node.ints(axis)[0]) if axis is not None else place
    place %= x.dim()
    inverse, half = bool(node.attrs.get("inverse", 0)), bool(node.attrs.get("onesided", 0))
    whole = 2 * (x.shape[place] - 1) if inverse and half else x.shape[place]
    points = whole if length is None else node.ints(length)[0]
    moved = x.movedim(place, -2)
    return transformed(node, moved, points, inverse, half).movedim(-2, place)


def transformed(node: Node, x: Tensor, points: Any, inverse: bool, half: bool) -> Tensor:
    """x [..., n, 1 or 2] -> [..., points, 2], cut or padded with zeros to ``points``.

    One-sided forward leaves out the mirrored half; one-sided inverse puts it in and gives reals.
    """
    if not isinstance(points, int) or points > MAX_LENGTH:
        node.refuse(f"expected a known length of at most {MAX_LENGTH}, got {points}")
    x = _fitted(x, points // 2 + 1 if inverse and half else points)
    real = x[..., 0]
    imaginary = torch.zeros_like(real) if x.shape[-1] == 1 else x[..., 1]
    if inverse and half:
        real, imaginary = (_mirrored(p, points, s) for p, s in ((real, 1), (imaginary, -1)))
    real, imaginary = _spectrum(node, real, imaginary, points, 1 if inverse else -1)
    if inverse:
        real, imaginary = real * (1 / points), imaginary * (1 / points)
    if inverse and half:
        return real.unsqueeze(-1)
    y = torch.stack([real, imaginary], -1)
    return y[..., : points // 2 + 1, :] if half else y


def _mirrored(part: Tensor, points: int, sign: int) -> Tensor:
    """The whole spectrum of real numbers from its first half."""
    rest = part[..., 1 : (points + 1) // 2].flip(-1)
    return torch.cat([part, rest * sign], -1)


def _spectrum(
    node: Node, real: Tensor, imaginary: Tensor, n: int, sign: int
) -> tuple[Tensor, Tensor]:
    """Over the last axis: halved while that goes (even places are the transform of sums, odd ones
    of turned differences), then by a table."""
    if n == 1:
        return real, imaginary
    if n % 2:
        return _by_table(node, real, imaginary, n, sign)
    h = n // 2
    angles = 2 * math.pi * np.arange(h) / n
    cos, sin = _table(np.cos(angles), real.dtype), _table(sign * np.sin(angles), real.dtype)
    more = [p[..., :h] + p[..., h:] for p in (real, imaginary)]
    less = [p[..., :h] - p[..., h:] for p in (real, imaginary)]
    turned = [less[0] * cos - less[1] * sin, less[0] * sin + less[1] * cos]
    both = [torch.stack([a, b], -2) for a, b in zip(more, turned, strict=True)]
    found = _spectrum(node, both[0], both[1], h, sign)
    real, imaginary = (p.transpose(-1, -2).flatten(-2) for p in found)
    return real, imaginary


def _by_table(
    node: Node, real: Tensor, imaginary: Tensor, n: int, sign: int
) -> tuple[Tensor, Tensor]:
    """Of odd length: points k and n - k share a cosine, and their sines differ by the sign."""
    if n > MAX_ODD:
        node.refuse(f"expected a length whose odd part is at most {MAX_ODD}, got {n}")
    h = (n - 1) // 2
    angles = 2 * math.pi * (np.outer(np.arange(1, h + 1), np.arange(n)) % n) / n
    cos, sin = (_table(t, real.dtype) for t in (np.cos(angles), sign * np.sin(angles)))
    sums = [p[..., 1 : h + 1] + p[..., h + 1 :].flip(-1) for p in (real, imaginary)]
    differences = [p[..., 1 : h + 1] - p[..., h + 1 :].flip(-1) for p in (real, imaginary)]
    even = [_product(p[..., :1], s, cos) for p, s in zip((real, imaginary), sums, strict=True)]
    odd = [_product(torch.zeros_like(real[..., :1]), d, sin) for d in differences]
    return even[0] - odd[1], even[1] + odd[0]


def _product(first: Tensor, parts: Tensor, table: Tensor) -> Tensor:
    """first + parts @ table; a few parts in plain order, which keeps small sums exact."""
    count = int(table.shape[0])
    if count > FEW:
        return first + parts @ table
    for k in range(count):
        first = first + parts[..., k : k + 1] * table[k]
    return first


def _fitted(x: Tensor, rows: int) -> Tensor:
    size = x.shape[-2]
    if size >= rows:
        return x[..., :rows, :]
    zeros = torch.zeros((*x.shape[:-2], rows - size, x.shape[-1]), dtype=x.dtype)
    return torch.cat([x, zeros], -2)


def _table(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    with outside_trace():
        return torch.tensor(array.tolist(), dtype=dtype)


@op("STFT")
def stft(
    node: Node,
    x: Tensor,
    step: Tensor,
    window: Tensor | None = None,
    length: Tensor | None = None,
) -> Value:
    """x [batch, n, 1 or 2] -> [batch, frames, points, 2]."""
    stride = int(node.ints(step)[0])
    if length is None and window is None:
        node.refuse("expected a window or a frame_length, got neither")
    points = int(window.shape[0] if window is not None else node.ints(length)[0])
    x = x.unsqueeze(-1) if x.dim() == 2 else x
    frames = x.unfold(1, points, stride).transpose(2, 3)
    if window is not None:
        frames = frames * window.reshape(-1, 1)
    return transformed(node, frames, points, False, bool(node.attrs.get("onesided", 1)))


@op("MelWeightMatrix")
def mel_weights(
    node: Node, bins: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor
) -> Value:
    """Triangles evenly spaced on the mel scale, over the bins of a spectrum: numbers known now."""
    count, points, rate_hz = (int(node.numbers(v)[0]) for v in (bins, length, rate))
    edges_hz = [float(node.numbers(v)[0]) for v in (low, high)]
    spectrum = points // 2 + 1
    first, last = 2595 * np.log10(1 + np.array(edges_hz) / 700)
    mels = first + np.arange(count + 2) * (last - first) / (count + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    places = ((points + 1) * hertz // rate_hz).astype(int)
    matrix = np.zeros((spectrum, count))
    for i in range(count):
        lower, centre, upper = places[i : i + 3]
        if centre == lower:
            matrix[centre, i] = 1
        for j in range(lower, centre + 1):
            matrix[j, i] = (j - lower) / (centre - lower) if centre > lower else matrix[j, i]
        for j in range(centre, upper):
            matrix[j, i] = (upper - j) / (upper - centre)
    return _table(matrix, TORCH_TYPES[node.attrs.get("output_datatype", 1)])


@op("HannWindow", "HammingWindow", "BlackmanWindow")
def window(node: Node, size: Tensor) -> Value:
    """Sums of cosines; periodic ones leave out the last point."""
    count = int(node.ints(size)[0])
    parts = {
        "HannWindow": (0.5, 0.5, 0.0),
        "HammingWindow": (25 / 46, 21 / 46, 0.0),
        "BlackmanWindow": (0.42, 0.5, 0.08),
    }[node.op_type]
    period = count if node.attrs.get("periodic", 1) else max(count - 1, 1)
    at = 2 * np.pi * np.arange(count) / period
    values = parts[0] - parts[1] * np.cos(at) + parts[2] * np.cos(2 * at)
    return _table(values, TORCH_TYPES[node.attrs.get("output_datatype", 1)])
