"""Reading values between the points of a grid."""

from __future__ import annotations

import torch

from .registry import Tensor


def gathered(x: Tensor, flat: Tensor) -> Tensor:
    """x [n, c, points], flat [n, k] -> [n, c, k]."""
    return torch.gather(x, 2, flat.unsqueeze(1).expand(-1, x.shape[1], -1))


def bilinear(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x [n, c, h, w] at places [n, k] -> [n, c, k]; outside there are zeros."""
    n, c, h, w = x.shape
    flat = x.reshape(n, c, h * w)
    top, left = torch.floor(rows), torch.floor(columns)
    total: Tensor | None = None
    for dy in (0, 1):
        for dx in (0, 1):
            y, z = top + dy, left + dx
            weight = (1 - (rows - y).abs()) * (1 - (columns - z).abs())
            inside = (y >= 0) & (y <= h - 1) & (z >= 0) & (z <= w - 1)
            place = y.clamp(0, h - 1).to(torch.int64) * w + z.clamp(0, w - 1).to(torch.int64)
            value = gathered(flat, place) * torch.where(inside, weight, 0.0).unsqueeze(1)
            total = value if total is None else total + value
    assert total is not None
    return total
