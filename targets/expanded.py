"""Weights that stay in the blocks of a model's file: the device makes them bf16 when it loads.

A matrix qualifies if it is one stored tensor, or some stacked along their rows (fused projections),
all of block types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Protocol, runtime_checkable

import numpy as np

from ..errors import LoweringError
from ..ir.blocks import BlockArray
from ..ir.dtype import BF16
from ..ir.graph import Value
from ..ir.ops.shape import Concat
from ..ir.quantized import concat
from ..ir.target import Target
from .artifact.expand import ALIGNMENT, BLOCKS, Expand, Part
from .artifact.writer import ArtifactWriter
from .lowering import Lowering
from .weight_use import WeightUse
from .weights import Read

TypeOf = Callable[[str], str]
"""The type that a tensor is stored in, by its name."""


@runtime_checkable
class ExpandsBlocks(Protocol):
    """A target whose device expands blocks when it loads them."""

    def add_expansions(self, lowering: Lowering, target: Target, types: Collection[str]) -> None:
        """Add to ``lowering`` what the device needs for these block types."""


def add_expansions(
    backend: object, lowering: Lowering, target: Target, type_of: TypeOf | None
) -> None:
    """Let the backend prepare for the block types of all weights that can stay in blocks."""
    if type_of is not None and isinstance(backend, ExpandsBlocks):
        uses = lowering.weights.values()
        types = {type_of(name) for use in uses for name in stacked(use, type_of)}
        backend.add_expansions(lowering, target, types)


def stacked(use: WeightUse, type_of: TypeOf) -> list[str]:
    """The stored tensors whose rows make up a weight; none if it cannot stay in blocks."""
    value = use.value
    if use.layout != "row" or value.type.dtype != BF16 or value.type.rank != 2:
        return []
    names = _params(value)
    return names if all(type_of(name) in BLOCKS for name in names) else []


def _params(value: Value) -> list[str]:
    if value.producer is None:
        return [value.name] if value.kind == "param" else []
    if value.producer.op != Concat(0):
        return []
    each = [_params(operand) for operand in value.producer.inputs]
    return [name for names in each for name in names] if all(each) else []


def write_blocks(writer: ArtifactWriter, names: Sequence[str], read: Read) -> dict[str, object]:
    """Put the blocks of stacked tensors into a blob; what the manifest says of them."""
    arrays = [_blocks(name, read(name)) for name in names]
    runs = [
        _blocks(names[0], concat(list(run)))
        for _, run in groupby(arrays, lambda array: array.dtype)
    ]
    parts, end = [], 0
    for run in runs:
        count = run.nbytes // run.type.bytes
        parts.append(Part(run.dtype, end, count))
        end += -(-run.nbytes // ALIGNMENT) * ALIGNMENT
    blob = writer.add_blob(_padded(runs))
    expand = Expand(tuple(parts))
    size = 2 * expand.elements
    return {
        "blob": blob,
        "bytes": size,
        "sections": {"w": [0, size]},
        "sha256": blob.rpartition("/")[2],
        "expand": expand.to_json(),
    }


def _blocks(name: str, array: object) -> BlockArray:
    if not isinstance(array, BlockArray):
        raise LoweringError(f"weight {name}: expected blocks, got {type(array).__name__}")
    return array


def _padded(runs: Sequence[BlockArray]) -> Iterator[np.ndarray]:
    for run in runs:
        yield np.ascontiguousarray(run.raw).reshape(-1)
        yield np.zeros(-run.nbytes % ALIGNMENT, np.uint8)
