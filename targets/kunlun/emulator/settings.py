"""The numbers of a chip as the emulator takes them: sizes, and rates of the modelled time.

The time of a kernel is the launch, plus that of the slowest cluster: its programs, and the longer
of its copies (its share of the bandwidth, descriptors, single accesses) and its work (products,
lanes, on-chip bytes). Rates are facts of low confidence: times compare kernels, nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ...tilec import HAZARDS, MemoryModel
from ..capabilities import Chip
from ..legalize import memory_model

_PCI_MODELS = {"xpu3": 300, "xpu2": 3}
_ON_CHIP_BYTES_NS = 64.0
"""Bytes a core or engine moves on chip per nanosecond: no public figure, equal for all kernels."""


def emulated_model(chip: Chip, hazards: Iterable[str] = ()) -> MemoryModel:
    """The chip for `build_emulated` and `build_emulator_library`; hazards by name, or ``all``."""
    names = frozenset(hazards)
    names = frozenset(HAZARDS) if "all" in names else names
    return dataclasses.replace(memory_model(chip), rates=emulator_settings(chip), hazards=names)


def emulator_settings(chip: Chip) -> tuple[tuple[str, float], ...]:
    """Settings of the library beside the limits of the model."""
    bandwidth = chip.hbm_bytes_per_second / 1e9
    per_engine = chip.sdnn_f32_flops / max(1, chip.sdnn_engines) / 2e9
    per_cluster = chip.cluster_f32_flops / chip.clusters / 2e9
    line = chip.gm_line_bytes * chip.clusters / bandwidth
    settings = {
        "model": _PCI_MODELS[chip.arch],
        "engine_cores": chip.sdnn_cores,
        "main_bytes": chip.hbm_bytes,
        "l3_bytes": chip.l3_bytes,
        "streams": chip.streams,
        "launch_ns": chip.launch_seconds * 1e9,
        "program_ns": chip.program_seconds * 1e9,
        "gm_bytes_ns": 1 / bandwidth,
        "descriptor_ns": chip.dma_row_seconds * 1e9,
        "scalar_ns": chip.discrete_slowdown * line / 16,
        "lm_bytes_ns": 1 / _ON_CHIP_BYTES_NS / chip.cores_per_cluster,
        "sm_bytes_ns": 1 / _ON_CHIP_BYTES_NS,
        "uni_bytes_ns": 1 / _ON_CHIP_BYTES_NS / chip.sdnn_cores,
        "macs_ns": 1 / per_engine if per_engine else 0.0,
        "lanes_ns": 1 / per_cluster,
        "copy_ns": chip.host_copy_seconds * 1e9,
        "copy_bytes_ns": 1e9 / chip.host_bytes_per_second,
    }
    return tuple((name, float(value)) for name, value in settings.items())
