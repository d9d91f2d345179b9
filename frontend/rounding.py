"""Rounding on purpose: the torch op ``sglk::rounded``.

All float arithmetic of a captured graph is f32 and casts between float types vanish. Where a model
rounds to a narrower type and means it, this op says so.
"""

from __future__ import annotations

import torch

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


@torch.library.custom_op("sglk::rounded", mutates_args=())
def rounded(x: torch.Tensor, to: str) -> torch.Tensor:
    """x, with each value rounded to the nearest one of type ``to``; the type of x stays."""
    return x.to(TYPES[to]).to(x.dtype, copy=True)


@rounded.register_fake
def _rounded_shape(x: torch.Tensor, to: str) -> torch.Tensor:
    return torch.empty_like(x)
