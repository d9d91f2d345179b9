"""Windows that slide over spatial axes: pads, counts, and the parts that each window sees."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .registry import Node, Size, Tensor

MAX_PARTS = 1024
"""Elements of a window that is written out as slices."""


@dataclass(frozen=True)
class Windows:
    """How windows lie over the last axes of a value."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Size, ...]
    after: tuple[Size, ...]
    """What the node pads at the end of each axis."""
    reach: tuple[Size, ...]
    """What the windows need at the end: more with ``ceil_mode``, less where they do not fit."""
    counts: tuple[Size, ...]

    @property
    def axes(self) -> int:
        return len(self.kernel)

    @property
    def is_symmetric(self) -> bool:
        return self.before == self.after == self.reach

    def padded(self, x: Tensor, fill: float) -> Tensor:
        """Exactly what the windows see; a negative pad cuts."""
        pads = [p for pair in zip(self.before, self.reach, strict=True) for p in pair][::-1]
        ordered = [p for i in range(0, len(pads), 2) for p in (pads[i + 1], pads[i])]
        return F.pad(x, ordered, value=fill) if any(not _is_zero(p) for p in ordered) else x

    def parts(self, x: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Of a padded value: each place in the window, and what all windows have there."""
        for place in itertools.product(*map(range, self.kernel)):
            part = x
            for axis, at in enumerate(place):
                start = at * self.dilations[axis]
                stop = start + (self.counts[axis] - 1) * self.strides[axis] + 1
                index = [slice(None)] * (x.dim() - self.axes + axis)
                part = part[(*index, slice(start, stop, self.strides[axis]))]
            yield place, part


def _is_zero(size: Size) -> bool:
    return isinstance(size, int) and size == 0


def windows_of(node: Node, x: Tensor, kernel: Sequence[int], *, ceil: bool = False) -> Windows:
    """Pads from ``pads`` or ``auto_pad``; ``ceil`` counts a last window that begins inside."""
    axes = len(kernel)
    sizes = x.shape[-axes:]
    strides = tuple(node.attrs.get("strides") or [1] * axes)
    dilations = tuple(node.attrs.get("dilations") or [1] * axes)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    before, after = pads_of(node, sizes, spans, strides)
    counts = []
    for n, span, step, b, a in zip(sizes, spans, strides, before, after, strict=True):
        room = n + b + a - span
        count = (room + step - 1) // step + 1 if ceil else room // step + 1
        if ceil and isinstance(count, int) and (count - 1) * step >= n + b:
            count -= 1  # it would see padding alone
        counts.append(count)
    reach = tuple(
        (count - 1) * step + span - n - b
        for count, step, span, n, b in zip(counts, strides, spans, sizes, before, strict=True)
    )
    return Windows(
        tuple(kernel), strides, dilations, tuple(before), tuple(after), reach, tuple(counts)
    )


def pads_of(
    node: Node, sizes: Sequence[Any], spans: Sequence[int], strides: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """SAME gives ceil(size / stride) windows; its odd element goes to the end or the start."""
    axes = len(spans)
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = list(node.attrs.get("pads") or [0] * (2 * axes))
        return pads[:axes], pads[axes:]
    if mode == "VALID":
        return [0] * axes, [0] * axes
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        node.refuse(f"expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {mode!r}")
    before, after = [], []
    for n, span, step in zip(sizes, spans, strides, strict=True):
        total = ((n + step - 1) // step - 1) * step + span - n
        total = max(total, 0) if isinstance(total, int) else torch.sym_max(total, 0)  # type: ignore[no-untyped-call]
        small = total // 2
        before.append(small if mode == "SAME_UPPER" else total - small)
        after.append(total - small if mode == "SAME_UPPER" else small)
    return before, after


def spatial_rank(node: Node, x: Tensor, limit: int = 3) -> int:
    rank = x.dim() - 2
    if not 1 <= rank <= limit:
        node.refuse(f"expected 1 to {limit} spatial axes, got {rank}")
    return rank
