"""Measured times of matrix products: what a chip did with a tile outranks what the model says.

Files of ``measured/`` are JSON, one per chip, as ``bench/tuning_file.py`` writes them; those of
``sglk tune`` are alike:

    {"format": 1, "arch": "sm_90", "chip": "H200", "linear": [RECORD, ...], "normed": [...]}

"linear" has all products, "normed" those that normalized their input on the way.

A record is one way to compute one product, and its time among dependent launches, on weights that
no cache holds:

    {"n": 4096, "k": 14336, "gated": 0, "m": 16, "us": 30.9, "maps": 0,
     "kernel": "split_k.linear", "constants": {"BLOCK_M": 16, ...}, "num_warps": 4,
     "num_stages": 4}

``constants`` are those of a `LinearConfig`; ``maps`` says whether the host made the tensor maps.
Weights of few bits have ``form`` (`WeightForm.key`), and ``x`` where rows are multiplied as another
type than bf16.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import LoweringError
from ..kernel import argument_names
from .tiles import (
    PART_ROWS,
    SKINNY_ROWS,
    LinearConfig,
    block_of,
    smem_bytes,
    stage_bytes,
    tiles_of,
)
from .weight_form import PLAIN, WeightForm, form_of_key

FORMAT = 1
HOW = "make it with sglk tune, on the chip to compile for"
FILES = {"sm_90": "h200.json"}
"""The measurements of an architecture's usual chip."""
SMALLEST_TILE = 16
"""Rows of the smallest tile of the tensor cores."""
MAPS_SECONDS = 0.8e-6
"""What a kernel pays for making its tensor maps itself: 0.5 to 1.1 µs more on an H200."""
SIZE_WEIGHT = 0.5
"""Twice the rows tell as much less about a product as four times the weights."""


@dataclass(frozen=True)
class Product:
    """Sizes of ``[m, k] @ [n, k]^T``; gated: of two weights, n outputs."""

    m: int
    n: int
    k: int
    gated: bool
    form: WeightForm = PLAIN

    @property
    def numbers(self) -> int:
        """Numbers of the weight."""
        return self.n * self.k * (2 if self.gated else 1)


@dataclass(frozen=True)
class Record:
    """One measured way to compute one product."""

    product: Product
    config: LinearConfig
    seconds: float


def exact(records: Sequence[Record], product: Product) -> list[Record]:
    """Ways that were measured for this product."""
    return [record for record in records if record.product == product]


def near(records: Sequence[Record], product: Product) -> list[Record]:
    """Ways of the counts of rows next below and above, fitted to these rows; times as measured."""
    same = [r for r in records if replace(r.product, m=product.m) == product]
    counts = {r.product.m for r in same}
    beside = {
        max((m for m in counts if m < product.m), default=0),
        min((m for m in counts if m > product.m), default=0),
    }
    return [
        replace(r, config=fit(r.config, product))
        for r in same
        if r.product.m in beside and _holds(r, product.m)
    ]


def alike(records: Sequence[Record], product: Product, config: LinearConfig) -> Record | None:
    """The measurement that tells most about a way to compute a product."""
    same = [
        r for r in records if r.product.form == product.form and _kind(r.config) == _kind(config)
    ]
    return min(same, key=lambda r: (_distance(r.product, product), -r.product.m), default=None)


def _kind(config: LinearConfig) -> tuple[object, ...]:
    """What all sizes of one way have in common."""
    c = config.constants
    names = ("BLOCK_N", "EXTRA", "BLOCK_K", "UNITS", "STREAM", "SWAP", "SPLITS", "REST")
    tile = (c.get(name) for name in names)
    return (config.kernel, config.x, *tile, config.num_warps, config.num_stages)


def _holds(record: Record, m: int) -> bool:
    """Whether a way is known to be good for so many rows.

    A tile that held all rows is not raised above SKINNY_ROWS, and a GEMV does more work for each
    row: nothing is known of it for more rows. Parts need scratch for all tiles: few rows alone.
    """
    constants = record.config.constants
    if "ROWS" in constants:
        return m <= record.product.m
    if "SPLITS" in constants and m > PART_ROWS:
        return False
    return m <= SKINNY_ROWS or constants["GROUP_M"] > 0


def _distance(a: Product, b: Product) -> float:
    rows, sizes = math.log2(a.m / b.m), math.log2(a.numbers / b.numbers)
    return abs(rows) + SIZE_WEIGHT * abs(sizes)


def fit(config: LinearConfig, product: Product) -> LinearConfig:
    """The same way with a tile as high as these rows, where one tile holds all rows."""
    constants = dict(config.constants)
    rows = 1 << (product.m - 1).bit_length()
    if "ROWS" in constants:
        return replace(config, constants={**constants, "ROWS": rows})
    if constants["GROUP_M"] == 0:
        constants["BLOCK_M"] = max(SMALLEST_TILE, rows)
    block = block_of(constants)
    tiles = tiles_of(block, product.m, product.n, product.gated)
    if "SPLITS" in constants:
        splits = constants["SPLITS"]
    else:
        splits = -(-constants["PROGRAMS"] // tiles) if constants.get("STREAM") else 1
    bytes_of = stage_bytes if "EXTRA" in constants else smem_bytes
    smem = bytes_of(block, config.num_stages, 1 if config.x == "e4m3" else 2)
    return replace(config, constants=constants, splits=splits, smem_bytes=smem, tiles=tiles)


@functools.cache
def all_records(arch: str, part: str = "linear", tuning: str = "") -> tuple[Record, ...]:
    """Every record of an architecture: of a user's ``tuning``, and ours of other products."""
    own = tuple(read_records(json.loads(tuning), "--tuning", part)) if tuning else ()
    known = {record.product for record in own}
    return own + tuple(r for r in _shipped(arch, part) if r.product not in known)


@functools.cache
def _shipped(arch: str, part: str) -> tuple[Record, ...]:
    """What the tree has; none where nobody has measured."""
    name = FILES.get(arch)
    if name is None:
        return ()
    text = files(__package__).joinpath("measured", name).read_text(encoding="utf-8")
    return tuple(read_records(json.loads(text), name, part))


def checked_tuning(path: str, arches: Collection[str]) -> str:
    """The content of a tuning file for one of these architectures; else `LoweringError`."""
    where = f"--tuning {path}"
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text)
    except OSError as error:
        raise LoweringError(f"{where}: cannot read it: {error.strerror}") from error
    except ValueError as error:
        raise LoweringError(f"{where}: expected JSON, got {error} ({HOW})") from error
    if not isinstance(content, dict) or "arch" not in content:
        raise LoweringError(f"{where}: expected a tuning file, got other JSON ({HOW})")
    if content["arch"] not in arches:
        raise LoweringError(
            f"{where}: expected times of {' or '.join(arches)}, got those of {content['arch']}"
            f" {content.get('chip', '')} ({HOW})"
        )
    for part in ("linear", "normed"):
        for number, record in enumerate(read_records(content, where, part)):
            _check_kernel(f"{where}: record {number}", record.config)
            if part == "normed" and "norm" not in argument_names(record.config.kernel):
                raise LoweringError(
                    f"{where}: normed record {number}: {record.config.kernel} takes no norm ({HOW})"
                )
    return text


def _check_kernel(where: str, config: LinearConfig) -> None:
    """Kernels and their constants change from version to version."""
    try:
        known = argument_names(config.kernel)
    except LoweringError as error:
        raise LoweringError(
            f"{where}: no kernel {config.kernel} in this version ({HOW})"
        ) from error
    if unknown := sorted(set(config.constants) - set(known)):
        raise LoweringError(f"{where}: {config.kernel} has no {unknown[0]} in this version ({HOW})")


def read_records(content: Mapping[str, Any], where: str, part: str = "linear") -> Iterator[Record]:
    """Records of a file's content; `LoweringError` says what is wrong with it."""
    if content.get("format") != FORMAT:
        raise LoweringError(
            f"{where}: expected format {FORMAT}, got {content.get('format')} (measure again)"
        )
    for number, each in enumerate(content.get(part, ())):
        try:
            yield _record(each)
        except (KeyError, TypeError, ValueError) as error:
            raise LoweringError(f"{where}: record {number}: expected a measured product") from error


def _record(each: Mapping[str, Any]) -> Record:
    form = form_of_key(str(each.get("form", "bf16")))
    product = Product(int(each["m"]), int(each["n"]), int(each["k"]), bool(each["gated"]), form)
    constants = {str(name): int(value) for name, value in each["constants"].items()}
    config = LinearConfig(
        str(each["kernel"]), constants, int(each["num_warps"]), int(each["num_stages"]), 1, 1024,
        x=str(each.get("x", "bf16")),
    )  # fmt: skip
    seconds = float(each["us"]) * 1e-6 + (MAPS_SECONDS if each["maps"] else 0.0)
    return Record(product, fit(config, product), seconds)
