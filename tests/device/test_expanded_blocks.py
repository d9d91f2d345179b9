"""Blocks to bf16 on a GPU: bit for bit what rounding their values gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sglk.ir.blocks import BLOCK_TYPES
from sglk.ir.dtype import round_bf16
from sglk.ir.testing import random_blocks
from sglk.targets.kernels.expand_blocks import expand_blocks
from sglk.targets.kernels.packing import BLOCK_TYPES as PACKED

pytestmark = pytest.mark.device


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_values_are_those_of_dequantize(
    on_gpu: Callable[..., None], bf16: Callable[[Any], Any], name: str
) -> None:
    array = random_blocks(name, (37, 1024), np.random.default_rng(4))
    kind = BLOCK_TYPES[name]
    count = array.raw.size // kind.bytes
    got = bf16(np.full((count, kind.elements), np.nan, np.float32))
    block = 2048 // kind.elements
    constants = {**PACKED[name].constants, "BLOCK": block}
    torch = pytest.importorskip("torch")
    raw = torch.from_numpy(array.raw.reshape(-1)).cuda()  # `on_gpu` takes arrays of u8 for e4m3
    on_gpu(
        expand_blocks, (-(-count // block), 1, 1), constants, blocks=raw, weight=got, count=count
    )
    wanted = round_bf16(array.dequantize()).view(np.uint32) >> 16
    assert np.array_equal(got.bits.reshape(-1), wanted.astype(np.uint16).reshape(-1))
