"""Shared by tests and by ``SGLK_VERIFY``: random operands, and proof that two graphs give equal
numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .blocks import BLOCK_TYPES, BlockArray
from .dtype import BF16, BOOL, round_bf16
from .graph import Graph, Value
from .groups import random_groups
from .interpret import interpret
from .op import Array
from .quantized import Quantized
from .types import TensorType

Sizes = Mapping[str, int]


def random_array(type: TensorType, rng: np.random.Generator, sizes: Sizes) -> Array:
    """Standard normal floats, small non-negative ints, fair bools, random blocks."""
    shape = type.concrete(sizes)
    if type.dtype.form is not None:
        return random_groups(type.dtype.name, (shape[0], shape[1]), rng)
    if type.dtype.is_block:
        return random_blocks(type.dtype.name, (shape[0], shape[1]), rng)
    if type.dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if type.dtype.is_integer:
        return rng.integers(0, 4, shape).astype(type.dtype.numpy)
    x = rng.standard_normal(shape, np.float32)
    return round_bf16(x) if type.dtype == BF16 else x.astype(type.dtype.numpy)


def random_blocks(name: str, shape: tuple[int, int], rng: np.random.Generator) -> BlockArray:
    """Random bytes, with every f16 scale between 1/64 and 1 so that values stay finite and of one
    size."""
    block = BLOCK_TYPES[name]
    raw = rng.integers(0, 256, (shape[0], block.row_bytes(shape[1])), np.uint8)
    fields = raw.view(block.layout)
    for field in block.layout.names or ():
        if block.layout[field].base == np.float16:
            scales = rng.uniform(1 / 64, 1, fields[field].shape)
            fields[field] = scales.astype(np.float16)
    return BlockArray(name, shape, raw)


def random_inputs(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Arrays for every input, state and parameter, by name."""
    leaves: list[Value] = [*graph.inputs, *graph.states, *graph.params]
    return {v.name: random_array(v.type, rng, sizes) for v in leaves}


def assert_same_numbers(
    before: Graph,
    after: Graph,
    sizes: Sizes,
    *,
    inputs: Mapping[str, Array] | None = None,
    rtol: float = 1e-5,
    seed: int = 0,
) -> None:
    """Both graphs on the same arrays; outputs must be close (relative to each output's largest
    value)."""
    arrays = {**random_inputs(before, np.random.default_rng(seed), sizes), **(inputs or {})}
    old = interpret(substituted(before, sizes), arrays, arrays)
    new = interpret(substituted(after, sizes), arrays, arrays)
    assert len(old) == len(new), f"{len(old)} outputs became {len(new)}"
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        assert_close(b, a, rtol, f"output {i}")


def assert_close(got: Array, wanted: Array, rtol: float, where: str = "array") -> None:
    """Equal shapes, NaN at the same places, and the largest difference at most ``rtol`` of the
    largest wanted value."""
    got, wanted = (
        x.dequantize() if isinstance(x, Quantized) else np.asarray(x) for x in (got, wanted)
    )
    assert got.shape == wanted.shape, f"{where}: expected shape {wanted.shape}, got {got.shape}"
    if not wanted.size:
        return
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    got, wanted = (np.where(np.isnan(got) & np.isnan(wanted), 0, x) for x in (got, wanted))
    scale = max(float(np.max(np.abs(wanted))), 1e-30)
    worst = float(np.max(np.abs(got - wanted))) / scale
    assert worst <= rtol, (
        f"{where}: expected a difference of at most {rtol} of the maximum, got {worst:.3g}"
    )


def substituted(graph: Graph, sizes: Sizes) -> Graph:
    """A copy with every symbol replaced by its size, so that each op can be interpreted."""
    from .rewrite import clone

    return clone(graph, sizes)
