"""What a format's reader makes of its tensors: layers, each a matrix in a group form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import FrontendError
from ...ir.forms import SLICE, GroupForm
from ...ir.groups import GroupArray
from ..weights import WeightInfo

Settings = Mapping[str, Any]
"""The checkpoint's ``quantization_config``."""


class Stored(Protocol):
    """Tensors as they lie in the files."""

    @property
    def where(self) -> str: ...

    def names(self) -> Sequence[str]: ...

    def info(self, name: str) -> WeightInfo: ...

    def stored(self, name: str) -> NDArray[Any]:
        """Numbers as stored: f16 and f32 themselves, bf16 and small floats as their bits."""
        ...


@dataclass(frozen=True, eq=False)
class Layer:
    """One quantized matrix, known without reading its numbers."""

    form: GroupForm
    shape: tuple[int, int]
    tensors: tuple[str, ...]
    """The stored tensors that it is made of."""
    read: Callable[[], GroupArray]
    columns: NDArray[np.int32] | None = None
    """Which input each column of the matrix multiplies, where groups are no runs of inputs; the
    matrix has its columns sorted by group."""


@dataclass
class Found:
    """All layers of a checkpoint by parameter name, and what is wrong with others."""

    layers: dict[str, Layer] = field(default_factory=dict)
    unused: set[str] = field(default_factory=set)
    """Tensors that say how to quantize activations, the KV cache, or what headers say already."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is not done as the checkpoint asks, for the report."""


class LayerError(FrontendError):
    """A layer that cannot be read exactly; the reader collects them into one sentence."""


def prefixes(names: Sequence[str], suffix: str) -> list[str]:
    """``model.layers.0.mlp.up_proj`` for each ``model.layers.0.mlp.up_proj.qweight``."""
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def need(stored: Stored, names: Sequence[str], *wanted: str) -> None:
    """Raise `LayerError` for tensors that a layer lacks."""
    if missing := [name for name in wanted if name not in names]:
        raise LayerError(f"has no {', '.join(name.rpartition('.')[2] for name in missing)}")


def check_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Two sizes, K a multiple of what kernels step by."""
    if len(shape) != 2:
        raise LayerError(f"is a tensor of {list(shape)} (only matrices are read)")
    if shape[1] % SLICE or min(shape) < 1:
        raise LayerError(f"has {shape[1]} inputs (a multiple of {SLICE} is read)")
    return shape[0], shape[1]


def scale_type(stored: Stored, name: str) -> str:
    """The type of a tensor of scales."""
    dtype = stored.info(name).dtype
    if dtype not in ("f16", "bf16", "f32"):
        raise LayerError(f"has scales of {dtype} (f16, bf16 and f32 are read)")
    return dtype


def group_size(columns: int, groups: int, stated: object) -> int | None:
    """Columns of a group, None for whole rows, from the number of groups and what is stated."""
    if groups == 1:
        return None
    if isinstance(stated, int) and stated > 0 and -(-columns // stated) == groups:
        size = stated
    elif columns % groups == 0:
        size = columns // groups
    else:
        raise LayerError(f"has {groups} groups of {columns} inputs (groups of equal size are read)")
    if size % SLICE:
        raise LayerError(f"has groups of {size} inputs (multiples of {SLICE} are read)")
    return size


def sorted_columns(index: NDArray[Any], group: int | None) -> NDArray[np.int32] | None:
    """The order of inputs that makes groups runs; None if they are runs already.

    >>> sorted_columns(np.array([1, 0, 0, 1]), 2)
    array([1, 2, 0, 3], dtype=int32)
    """
    runs = np.arange(index.size) // (group or index.size)
    if np.array_equal(index, runs):
        return None
    order = np.argsort(index, kind="stable").astype(np.int32)
    if not np.array_equal(index[order], runs):
        raise LayerError("has groups of unequal size in g_idx")
    return order


def refuse_all(stored: Stored, found: Found, what: str) -> None:
    """One sentence that names every layer that cannot be read."""
    if found.faults:
        listed = "; ".join(found.faults[:8])
        more = f"; and {len(found.faults) - 8} more" if len(found.faults) > 8 else ""
        raise FrontendError(
            f"{stored.where}: expected {what} layers that can be read exactly, got: {listed}{more}"
        )
