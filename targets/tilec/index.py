"""Where in a tensor: one index per dimension, of which at most some run over the 16 lanes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from .expr import LANES, ZERO, Emitter, Expr, constant
from .ir import I32


@dataclasses.dataclass(frozen=True)
class Index:
    """`dims`: an i32 `Expr` per dimension (uniform, affine along the lanes, or a vector).

    `flat`, when known, is the row-major position; it survives element-wise ops and reshapes.
    """

    dims: tuple[Expr, ...]
    flat: Expr | None = None

    @property
    def is_uniform(self) -> bool:
        return all(dim.is_uniform for dim in self.dims)

    def key(self) -> tuple[str, ...]:
        return tuple(f"{d.kind}{d.text}~{d.stride}" for d in self.dims)


def lane_index(base: Expr) -> Expr:
    """``base + lane`` as an index along the lanes."""
    return dataclasses.replace(base, kind="a", stride=1, const=None)


def strides_of(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def flatten(em: Emitter, index: Index, shape: Sequence[int]) -> Expr:
    """The row-major position of an index."""
    if index.flat is not None:
        return index.flat
    total = ZERO
    for dim, stride in zip(index.dims, strides_of(shape), strict=True):
        total = add_index(em, total, scale_index(em, dim, stride))
    return total


def scale_index(em: Emitter, e: Expr, factor: int) -> Expr:
    if e.kind == "v":
        text = f"mul({e.text}, vsplat(int32_t({factor})))"
        return e if factor == 1 else em.vector(text, I32, e.level)
    base = em.mul(dataclasses.replace(e, kind="s", stride=0), constant(factor, I32))
    if e.kind == "s":
        return base
    return dataclasses.replace(base, kind="a", stride=e.stride * factor, const=None)


def add_index(em: Emitter, a: Expr, b: Expr) -> Expr:
    if a.const == 0:
        return b
    if b.const == 0:
        return a
    if "v" in (a.kind, b.kind):
        level = max(a.level, b.level)
        return em.vector(f"add({em.lanes(a)}, {em.lanes(b)})", I32, level)
    bases = [dataclasses.replace(e, kind="s", stride=0, const=_base(e)) for e in (a, b)]
    base = em.add(*bases)
    stride = a.stride + b.stride
    if stride == 0:
        return base
    return dataclasses.replace(base, kind="a", stride=stride, const=None)


def _base(e: Expr) -> int | None:
    """An affine expression keeps its constant base in its text alone."""
    if e.kind == "s":
        return None if e.const is None else int(e.const)
    return int(e.text) if e.text.lstrip("-").isdigit() else None


def unflatten(em: Emitter, flat: Expr, shape: Sequence[int]) -> Index:
    """The index of a row-major position, in a shape of powers of two."""
    dims = []
    for size, stride in zip(shape, strides_of(shape), strict=True):
        dims.append(_digit(em, flat, stride, size))
    return Index(tuple(dims), flat)


def _digit(em: Emitter, flat: Expr, stride: int, size: int) -> Expr:
    """``flat / stride % size``."""
    if size == 1:
        return ZERO
    if flat.kind == "s":
        return em.modulo(em.floor_div(flat, stride), size)
    base = dataclasses.replace(flat, kind="s", stride=0, const=_base(flat))
    aligned = flat.kind == "a" and flat.stride == 1 and flat.align >= LANES
    if aligned and stride >= LANES:
        return em.modulo(em.floor_div(base, stride), size)
    if aligned and stride == 1 and size >= LANES:
        return lane_index(em.modulo(base, size))
    return _vector_digit(em, base if aligned else flat, aligned, stride, size)


def _vector_digit(em: Emitter, flat: Expr, aligned: bool, stride: int, size: int) -> Expr:
    """Lanes that cross dimensions: shift and mask each lane."""
    if aligned and stride * size <= LANES:
        lanes, level = "iota()", 0  # the base is a multiple of 16: it does not reach this digit
    elif aligned:
        lanes, level = em.lanes(lane_index(flat)), flat.level
    else:
        lanes, level = em.lanes(flat), flat.level
    shifted = f"ushr({lanes}, vsplat(int32_t({stride.bit_length() - 1})))" if stride > 1 else lanes
    return em.vector(f"band({shifted}, vsplat(int32_t({size - 1})))", I32, level)
