"""Convolutions, their transposes, and convolutions that look where they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .ops_linear import INTEGER_TERMS
from .registry import Node, Tensor, Value, op
from .sampling import bilinear
from .windows import Windows, spatial_rank, windows_of

_CONVS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@op("Conv")
def conv(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Value:
    axes = spatial_rank(node, x)
    found = windows_of(node, x, node.attrs.get("kernel_shape") or list(w.shape[2:]))
    return convolved(node, x, w, b, found, axes)


def convolved(
    node: Node, x: Tensor, w: Tensor, b: Tensor | None, found: Windows, axes: int
) -> Tensor:
    """Even pads go to torch's own op, which many chips have a kernel for."""
    groups = node.attrs.get("group", 1)
    if found.before == found.after and all(isinstance(p, int) and p >= 0 for p in found.before):
        return _CONVS[axes](x, w, b, found.strides, found.before, found.dilations, groups)
    padded = found.padded(x, 0)
    return _CONVS[axes](padded, w, b, found.strides, 0, found.dilations, groups)


@op("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Value:
    """The full result, then what the pads cut from it."""
    axes = spatial_rank(node, x)
    strides = list(node.attrs.get("strides") or [1] * axes)
    dilations = list(node.attrs.get("dilations") or [1] * axes)
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    extra = list(node.attrs.get("output_padding") or [0] * axes)
    groups = node.attrs.get("group", 1)
    y = _TRANSPOSED[axes](x, w, None, strides, 0, 0, groups, dilations)
    before, after = _cuts(node, list(x.shape[2:]), strides, spans, extra)
    pads: list[Any] = []
    for axis in reversed(range(axes)):
        pads += [-before[axis], extra[axis] - after[axis]]
    y = F.pad(y, pads) if any(not isinstance(p, int) or p for p in pads) else y
    return y if b is None else y + b.reshape(-1, *[1] * axes)


def _cuts(
    node: Node, sizes: Sequence[Any], strides: list[int], spans: list[int], extra: list[int]
) -> tuple[list[Any], list[Any]]:
    """What to leave out at the start and the end of each axis."""
    axes = len(strides)
    mode, wanted = node.attrs.get("auto_pad", "NOTSET"), node.attrs.get("output_shape")
    if not wanted and mode in ("NOTSET", "VALID"):
        pads = list(node.attrs.get("pads") or [0] * (2 * axes))
        return (pads[:axes], pads[axes:]) if mode == "NOTSET" else ([0] * axes, [0] * axes)
    wanted = (
        list(wanted)[-axes:] if wanted else [n * s for n, s in zip(sizes, strides, strict=True)]
    )
    before, after = [], []
    for n, step, span, more, size in zip(sizes, strides, spans, extra, wanted, strict=True):
        total = step * (n - 1) + more + span - size
        small = total // 2
        before.append(small if mode == "SAME_UPPER" else total - small)
        after.append(total - small if mode == "SAME_UPPER" else small)
    return before, after


@op("DeformConv")
def deform_conv(
    node: Node,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
) -> Value:
    """Each tap of each window reads between pixels, as far away as ``offset`` says."""
    if x.dim() != 4:
        node.refuse(f"expected images of two axes, got {x.dim() - 2}")
    kernel = node.attrs.get("kernel_shape") or list(w.shape[2:])
    found = windows_of(node, x, kernel)
    groups, parts = node.attrs.get("group", 1), node.attrs.get("offset_group", 1)
    n, c = x.shape[:2]
    taps = kernel[0] * kernel[1]
    oh, ow = offset.shape[2:]
    moved = offset.reshape(n, parts, taps, 2, oh, ow)
    rows, columns = _tap_places(found, oh, ow)
    images = x.reshape(n * parts, c // parts, *x.shape[2:])
    at_y = (rows + moved[:, :, :, 0]).reshape(n * parts, -1)
    at_x = (columns + moved[:, :, :, 1]).reshape(n * parts, -1)
    seen = bilinear(images, at_y, at_x).reshape(n, parts, c // parts, taps, oh * ow)
    if mask is not None:
        seen = seen * mask.reshape(n, parts, 1, taps, oh * ow)
    m = w.shape[0]
    columns_of = seen.reshape(n, groups, c // groups * taps, oh * ow)
    weights = w.reshape(1, groups, m // groups, c // groups * taps)
    y = torch.matmul(weights, columns_of).reshape(n, m, oh, ow)
    return y if b is None else y + b.reshape(-1, 1, 1)


def _tap_places(found: Windows, oh: Any, ow: Any) -> tuple[Tensor, Tensor]:
    """Row and column of every tap of every window, [taps, oh, ow]."""
    kh, kw = found.kernel
    (sh, sw), (dh, dw), (ph, pw) = found.strides, found.dilations, found.before
    rows = (torch.arange(oh) * sh - ph).reshape(1, 1, oh, 1) + (torch.arange(kh) * dh).reshape(
        kh, 1, 1, 1
    )
    columns = (torch.arange(ow) * sw - pw).reshape(1, 1, 1, ow) + (torch.arange(kw) * dw).reshape(
        1, kw, 1, 1
    )
    shape = (kh, kw, oh, ow)
    return (
        rows.expand(shape).reshape(kh * kw, oh, ow).to(torch.float32),
        columns.expand(shape).reshape(kh * kw, oh, ow).to(torch.float32),
    )


# Of integers ----------------------------------------------------------------------------------


@op("ConvInteger")
def conv_integer(
    node: Node,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
) -> Value:
    return integer_convolution(node, x, w, x_zero, w_zero)


def integer_convolution(
    node: Node, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None
) -> Tensor:
    """Exact, in f32: channels a few at a time, so that every partial sum fits 24 bits."""
    axes = spatial_rank(node, x)
    found = windows_of(node, x, node.attrs.get("kernel_shape") or list(w.shape[2:]))
    left = x.to(torch.int32) if x_zero is None else x.to(torch.int32) - x_zero.to(torch.int32)
    right = w.to(torch.int32)
    if w_zero is not None:
        shape = [-1] + [1] * (w.dim() - 1) if w_zero.numel() > 1 else []
        right = right - w_zero.to(torch.int32).reshape(shape)
    padded, right = found.padded(left.to(torch.float32), 0), right.to(torch.float32)
    groups, inside = node.attrs.get("group", 1), int(w.shape[1])
    taps = 1
    for size in w.shape[2:]:
        taps *= int(size)
    if taps > INTEGER_TERMS:
        node.refuse(f"expected kernels of at most {INTEGER_TERMS} elements, got {taps}")
    step = INTEGER_TERMS // taps
    by_group = padded.reshape(padded.shape[0], groups, inside, *padded.shape[2:])
    total: Tensor | None = None
    for start in range(0, inside, step):
        stop = min(start + step, inside)
        part = by_group[:, :, start:stop].flatten(1, 2)
        y = _CONVS[axes](
            part, right[:, start:stop], None, found.strides, 0, found.dilations, groups
        )
        total = y.to(torch.int32) if total is None else total + y.to(torch.int32)
    assert total is not None
    return total
