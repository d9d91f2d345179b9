"""What a Kunlun chip can do: every number with its unit, its source and how far it can be trusted.

Facts of low or unknown confidence are configuration: they rank choices, and whoever has a chip
replaces them by measured ones, in a JSON file of ``{"name": value}`` given with
``--kunlun-config FILE`` or ``SGLK_KUNLUN_CONFIG``. A name that is no fact is refused.

>>> chip("xpu3").clusters
12
>>> chip("xpu3").fact("hbm_bytes_per_second").confidence
'low'
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import LoweringError
from .chip_facts import FACTS, Fact

Arch = Literal["xpu2", "xpu3"]
ARCHES = tuple(FACTS)


@dataclass(frozen=True)
class Chip:
    """The facts of one architecture as typed fields; `fact` says where a value comes from.

    0 (or an empty tuple) is what an unknown size says: nothing may be built on it.
    """

    arch: str
    facts: Mapping[str, Fact] = dataclasses.field(repr=False, compare=False)
    # Units and their clusters.
    clusters: int
    cores_per_cluster: int
    sdnn_engines: int
    sdnn_cores: int
    vector_bits: int
    vector_registers: int
    # Memory.
    lm_bytes: int
    lm_user_bytes: int
    lm_buffer_bytes: int
    sm_bytes: int
    sm_user_bytes: int
    uni_sram_bytes: int
    uni_sram_row_align: int
    uni_sram_buffers: int
    l3_bytes: int
    hbm_bytes: int
    dma_align: int
    gm_line_bytes: int
    # Limits of kernels.
    rank_max: int
    sdnn_math_functions: int
    on_chip_transpose: int
    sum_lanes: int
    param_bytes: int
    streams: int
    tiles_of_any_size: bool
    dot_size_min: int
    # Tiles.
    granule_m: int
    granule_n: int
    granule_k: int
    granules_m: int
    granules_n: int
    published_tiles: tuple[tuple[int, int], ...]
    published_k: tuple[int, ...]
    attention_tile: tuple[int, int]
    fp16_linear_n_wrong: int
    fp16_linear_n_max: int
    # Types.
    cluster_dtypes: tuple[str, ...]
    sdnn_dtypes: tuple[str, ...]
    sdnn_wide_dtypes: tuple[str, ...]
    library_dtypes: tuple[str, ...]
    vendor_operators: tuple[str, ...]
    vgather_dtypes: tuple[str, ...]
    # KV cache and serving.
    page_size: int
    page_size_mla: int
    head_sizes: tuple[int, ...]
    graph_capture: str
    quant_convention: str
    wings: tuple[tuple[int, ...], ...]
    # Rates, for ranking.
    hbm_bytes_per_second: float
    sdnn_f16_flops: float
    sdnn_f32_flops: float
    sdnn_i8_flops: float
    cluster_f32_flops: float
    launch_seconds: float
    program_seconds: float
    dma_row_seconds: float
    discrete_slowdown: float
    shared_line_slowdown: float
    masked_f32: float
    masked_f16: float
    masked_bf16: float
    host_copy_seconds: float
    host_bytes_per_second: float
    kernel_reload_seconds: float

    def fact(self, name: str) -> Fact:
        """Source and confidence of a field."""
        return self.facts[name]

    @property
    def has_sdnn_tiles(self) -> bool:
        """Whether enough is known of the matrix engine to build kernels for it."""
        return self.uni_sram_bytes > 0

    def records(self) -> list[dict[str, Any]]:
        """All facts as plain data, for reports."""
        return [{"name": name, **dataclasses.asdict(fact)} for name, fact in self.facts.items()]


def chip(arch: str, overrides: Mapping[str, Any] | None = None, origin: str = "") -> Chip:
    """The chip of an architecture, some facts replaced by ``overrides`` that ``origin`` gave."""
    if arch not in FACTS:
        raise LoweringError(
            f"kunlun: expected an architecture among {', '.join(FACTS)}, got {arch!r}"
        )
    facts = dict(FACTS[arch])
    for name, value in (overrides or {}).items():
        facts[name] = _replaced(name, facts.get(name), value, origin or "the caller")
    values: dict[str, Any] = {name: fact.value for name, fact in facts.items()}
    return Chip(arch=arch, facts=facts, **values)


def read_config(path: str | Path) -> dict[str, Any]:
    """The overrides in a configuration file, or `LoweringError`."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise LoweringError(f"kunlun config {path}: expected a JSON file, got {error}") from error
    if not isinstance(data, dict):
        raise LoweringError(f"kunlun config {path}: expected names and values, got {data!r}")
    return data


def configured_chip(arch: str, config: str = "") -> Chip:
    """The chip with the facts that a configuration file (empty: none) replaces."""
    return chip(arch, read_config(config), config) if config else chip(arch)


def _replaced(name: str, fact: Fact | None, value: object, origin: str) -> Fact:
    if fact is None:
        known = ", ".join(FACTS["xpu3"])
        raise LoweringError(f"kunlun config {origin}: no fact named {name!r} (known: {known})")
    plain = _as_type(name, fact.value, value, origin)
    return dataclasses.replace(
        fact, value=plain, confidence="configured", source=f"{origin}; was {fact.value!r}"
    )


def _as_type(name: str, old: object, value: object, origin: str) -> Any:
    """``value`` in the type of the fact that it replaces; lists become tuples."""
    if isinstance(value, list):
        value = tuple(tuple(v) if isinstance(v, list) else v for v in value)
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not type(old):
        raise LoweringError(
            f"kunlun config {origin}: {name}: expected {type(old).__name__}, got {value!r}"
        )
    negative = isinstance(value, int | float) and value < 0
    if negative:
        raise LoweringError(f"kunlun config {origin}: {name}: expected no less than 0, got {value}")
    return value
