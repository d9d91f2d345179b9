"""What passes may know of a chip: plain data. Behaviour lives in ``targets/<name>/``; unknown
capability means no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .dtype import F32, DType
from .graph import Node


@dataclass(frozen=True)
class Unit:
    """One kind of arithmetic: its dtypes and their peak rates in FLOP/s for the whole chip."""

    name: str
    peak_flops: dict[str, float]


@dataclass(frozen=True)
class MemoryLevel:
    """One level, nearest first. ``bytes`` is what one program may use of it; 0: no bound."""

    name: str
    bytes: int
    bytes_per_second: float


@dataclass(frozen=True)
class Target:
    """Facts of one chip (or one class of CPUs)."""

    name: str
    arch: str
    dtypes: frozenset[DType]
    units: tuple[Unit, ...]
    memory: tuple[MemoryLevel, ...]
    programs: int
    """Programs that run at the same time: cores, SMs or clusters."""
    lanes: int
    """f32 elements of one vector operation."""
    page_size: int
    """Tokens per KV page."""
    token_buckets: tuple[int, ...]
    """Upper bounds of the token counts that get their own kernel variants; the last bucket has
    none."""
    fused_ops: frozenset[str] = field(default_factory=frozenset)
    """Fused ops that the operator table has a row for; fusion passes make no others. An operand
    that not every target's fused op takes is named after a dot."""
    gated_rows: int = 1
    """`gated_linear` needs gate and up weights of a multiple of this many rows each."""
    activation_dtype: DType = F32
    """What kernels store for each other; arithmetic is f32 whatever it is."""
    features: frozenset[str] = field(default_factory=frozenset)
    """What the hardware has beyond the rest, by name: ``tensor_maps``, ``dependent_launch``."""
    forms: frozenset[str] = field(default_factory=frozenset)
    """Elements of group forms (`ir.forms`) that kernels read, whatever their groups and scales."""
    handwritten: bool = True
    """Whether rows of kernels written by hand may be chosen."""
    batch_invariant: bool = True
    """Whether a token's result must have the same bits whatever is computed beside it."""
    rounded_from: int = 0
    """Rows from which products with weights of block types round them, and x, to bf16; 0: never. A
    token's result then depends on how many are computed beside it."""
    tuning: str = ""
    """Content of a file of measured times, in the target's own form; empty: what we ship."""

    def supports(self, dtype: DType) -> bool:
        if dtype.form is not None:
            return dtype.form.element in self.forms
        return dtype in self.dtypes


@dataclass(frozen=True)
class Row:
    """One implementation of an op: a line of a target's operator table.

    ``accepts`` gives "" for a node it can run, else the reason why not. Among accepting rows the
    highest ``priority`` wins; two rows of one op may not share a name.
    """

    op: str
    name: str
    kind: str
    """"triton", "view", "library" or "c++": how it is done."""
    priority: int
    accepts: Callable[[Node, Target], str]
    why: str = field(default="", kw_only=True)
    """What it has over rows of lower priority."""


@dataclass(frozen=True)
class Denied:
    """An implementation that exists and must not be used, with the reason."""

    op: str
    name: str
    reason: str
