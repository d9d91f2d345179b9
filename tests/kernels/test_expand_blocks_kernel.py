"""Every block type becomes the bf16 that rounding its dequantized values gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.ir.blocks import BLOCK_TYPES, BlockArray
from sglk.ir.dtype import round_bf16
from sglk.targets.artifact.expand import BLOCKS
from sglk.targets.kernels.expand_blocks import expand_blocks
from sglk.targets.kernels.packing import BLOCK_TYPES as PACKED


def random_blocks(name: str, rows: int, columns: int) -> BlockArray:
    """Any bytes, but for scales: those are finite, of both signs and of all sizes."""
    rng = np.random.default_rng(11)
    kind = BLOCK_TYPES[name]
    raw = rng.integers(0, 256, (rows, kind.row_bytes(columns)), np.uint8)
    blocks = raw.reshape(-1).view(kind.layout)
    for field in {"d", "m", "dmin"} & set(kind.layout.names or ()):
        exponents = rng.integers(-20, 3, len(blocks))
        blocks[field] = (rng.standard_normal(len(blocks)) * 2.0**exponents).astype(np.float16)
    return BlockArray(name, (rows, columns), raw)


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (round_bf16(values).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_values_are_those_of_dequantize(
    launch: Callable[..., None], bf16: Callable[[Any], Any], name: str
) -> None:
    array = random_blocks(name, 11, 512)
    count = array.raw.size // array.type.bytes
    got = bf16(np.full((count + 1, array.type.elements), np.nan, np.float32))
    constants = {**PACKED[name].constants, "BLOCK": 8}
    launch(
        expand_blocks, (-(-count // 8), 1, 1), constants,
        blocks=array.raw.reshape(-1), weight=got, count=count,
    )  # fmt: skip
    wanted = bf16_bits(array.dequantize()).reshape(count, -1)
    assert np.array_equal(got.bits[:count], wanted)
    assert np.isnan(got.floats()[count]).all()


def test_the_sizes_that_a_loader_knows_are_those_of_the_formats() -> None:
    assert {name: (kind.elements, kind.bytes) for name, kind in BLOCK_TYPES.items()} == BLOCKS
    assert set(PACKED) == set(BLOCKS)
