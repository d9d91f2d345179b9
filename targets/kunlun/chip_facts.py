"""The hardware model of Kunlun chips as data: one `Fact` for each number, by architecture.

Confidence: ``high`` several public sources or a public compiler's own constant; ``medium`` one
source, or inferred from such constants; ``low`` a third party's sheet or comment; ``unknown`` no
public answer, the value is a placeholder that only ranks choices; ``configured`` the user's.
Nothing here was measured by us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Confidence = Literal["high", "medium", "low", "unknown", "configured"]
Value = int | float | bool | str | tuple[int, ...] | tuple[str, ...] | tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Fact:
    """A value, its unit, and where it comes from."""

    value: Value
    unit: str
    confidence: Confidence
    source: str


def _fact(value: Value, unit: str, confidence: Confidence, source: str) -> Fact:
    return Fact(value, unit, confidence, source)


DRIVER = "FlagTree xpu backend, driver.py"
DIALECT = "FlagTree 3.6 xpu, Dialect.h"
TUNER = "FlagTree autotuner.py"
COPY_DOCS = "FlagTree 3.6 docs on copies"
SKIPS = "FlagTree xpu core test skip list"
SHEET = "a third party's P800 sheet"

XPU3: dict[str, Fact] = {
    # Units and their clusters.
    "clusters": _fact(12, "", "high", f"{DRIVER}, get_xpu_spec"),
    "cores_per_cluster": _fact(64, "", "high", f"{DRIVER}; {DIALECT} kCoresPerCluster"),
    "sdnn_engines": _fact(12, "", "high", f"{DRIVER}; Paddle get_xpu_max_ptr_size"),
    "sdnn_cores": _fact(8, "", "high", DRIVER),
    "vector_bits": _fact(512, "bits", "high", "FlagTree LoadStoreOpToLLVM"),
    "vector_registers": _fact(24, "", "medium", "FlagTree 3.6 TileAnalysis.h, compiler budget"),
    # Memory.
    "lm_bytes": _fact(8192, "bytes per core", "high", f"{DIALECT} kLocalMemPerCoreBytes"),
    "lm_user_bytes": _fact(
        6144, "bytes per core", "medium", "vendor kernels leave about 2 KiB to the stack"
    ),
    "lm_buffer_bytes": _fact(512, "bytes per core", "high", "FlagTree buffer_size_limit"),
    "sm_bytes": _fact(
        262_080, "bytes per cluster", "high", f"{DIALECT}: 256 KiB less 64 B for atomics"
    ),
    "sm_user_bytes": _fact(
        131_072, "bytes per cluster", "high", "FlagTree 3.6 TLESharedMemAlloc: half is scratch"
    ),
    "uni_sram_bytes": _fact(1_605_632, "bytes per SDNN", "medium", f"{TUNER} check_out_of_mem"),
    "uni_sram_row_align": _fact(128, "bytes", "high", f"{TUNER} check_out_of_mem"),
    "uni_sram_buffers": _fact(2, "", "high", f"{TUNER}, double buffering"),
    "l3_bytes": _fact(0, "bytes", "unknown", "size on this architecture not published"),
    "hbm_bytes": _fact(98_304 << 20, "bytes", "high", "HAMi KunlunMaxMemory"),
    "dma_align": _fact(64, "bytes", "high", "FlagTree 3.6 LM and SM allocators"),
    "gm_line_bytes": _fact(64, "bytes", "high", "FlagTree 3.6 norm README"),
    # Limits of kernels.
    "rank_max": _fact(2, "dims", "high", "FlagTree SDNN: static rank 2 only"),
    "sdnn_math_functions": _fact(4, "functions", "high", "FlagTree SDNN lookup tables"),
    "on_chip_transpose": _fact(64, "rows and columns", "medium", f"{COPY_DOCS}: 64x64 is fast"),
    "sum_lanes": _fact(8192, "elements", "medium", "FlagGems: 1-D sums are right up to here"),
    "param_bytes": _fact(512, "bytes", "high", "XRE: 128 dwords"),
    "streams": _fact(256, "", "medium", "XRE header comment"),
    "tiles_of_any_size": _fact(
        False, "", "unknown", "80 rows need a Triton of any tile size; PyPI has none"
    ),
    "dot_size_min": _fact(16, "elements", "high", "Triton 3.0 tl.dot"),
    # Tiles.
    "granule_m": _fact(80, "rows", "high", f"{TUNER} block_size_candidates"),
    "granule_n": _fact(64, "columns", "high", f"{TUNER} block_size_candidates"),
    "granule_k": _fact(128, "elements", "high", f"{TUNER} block_size_candidates"),
    "granules_m": _fact(4, "", "high", f"{TUNER}: BLOCK_M = 80 i, i <= 4"),
    "granules_n": _fact(7, "", "high", f"{TUNER}: BLOCK_N = 64 j, j <= 7"),
    "published_tiles": _fact(
        (
            (128, 256), (256, 128), (256, 64), (64, 256), (128, 128), (64, 128), (128, 64),
            (128, 32), (64, 32), (256, 256),
        ),
        "BLOCK_M, BLOCK_N", "high", "FlagGems tune_configs.yaml and mm.py",
    ),
    "published_k": _fact((32, 64, 128, 256), "BLOCK_K", "high", "FlagGems tune_configs.yaml"),
    "attention_tile": _fact((64, 128), "BLOCK_M, BLOCK_N", "high", "FlagGems attention lists"),
    "fp16_linear_n_wrong": _fact(
        248_320, "columns", "medium", "vLLM-Kunlun issue 387: silently wrong logits at this N"
    ),
    "fp16_linear_n_max": _fact(
        131_072, "columns", "unknown", "about half: where N goes wrong is unpublished"
    ),
    # Types.
    "cluster_dtypes": _fact(
        ("f32", "f16", "bf16", "i8", "i16", "i32", "i64"), "", "high", "FlagTree LLVMXPU"
    ),
    "sdnn_dtypes": _fact(("f32", "f16"), "", "high", "FlagTree SDNN: F32 and F16 only"),
    "sdnn_wide_dtypes": _fact(
        ("bf16",), "", "high", "FlagTree make_ttxir: computed as fp32, four bytes in budgets"
    ),
    "library_dtypes": _fact(("f32", "f16", "bf16", "i8"), "", "high", "vLLM-Kunlun operators"),
    "vendor_operators": _fact(
        (), "names of vendor.py", "unknown", "those that an adapter library of the user's has"
    ),
    "vgather_dtypes": _fact(
        ("i16", "f16", "bf16", "i32", "f32"), "", "high", "SGLang plugin kunlunxin.yaml"
    ),
    # KV cache and serving.
    "page_size": _fact(128, "tokens", "high", "all vLLM-Kunlun recipes, SGLang plugin"),
    "page_size_mla": _fact(64, "tokens", "high", "vLLM-Kunlun platform file"),
    "head_sizes": _fact(
        (32, 64, 80, 96, 112, 120, 128, 192, 256, 512), "", "high", "vLLM-Kunlun paged_attn.py"
    ),
    "graph_capture": _fact(
        "CUDA-compatible layer only, never on the default stream", "", "high",
        "Paddle xpu_graph.cc; no native graph API is published",
    ),
    "quant_convention": _fact(
        "absmax: value = q * max / 127, no scale", "", "high", "vLLM-Kunlun scale_mm.py"
    ),
    "wings": _fact(
        ((0, 1, 2, 3), (4, 5, 6, 7)), "cards", "high", "HAMi device.go; pairs i, i+4 across"
    ),
    # Rates, for ranking.
    "hbm_bytes_per_second": _fact(2.4e12, "bytes/s", "low", SHEET),
    "sdnn_f16_flops": _fact(345e12, "FLOP/s", "low", SHEET),
    "sdnn_f32_flops": _fact(86e12, "FLOP/s", "unknown", "a quarter of the fp16 rate"),
    "sdnn_i8_flops": _fact(0.0, "FLOP/s", "unknown", "not published"),
    "cluster_f32_flops": _fact(
        24e12, "FLOP/s", "unknown", "64 cores x 16 lanes x 2, at 1 GHz (unpublished)"
    ),
    "launch_seconds": _fact(10e-6, "s", "medium", "FlagTree 3.6 docs: 7 to 20 us a launch"),
    "program_seconds": _fact(0.7e-6, "s", "medium", "FlagTree 3.6 docs: 0.6 to 0.9 us a program"),
    "dma_row_seconds": _fact(2e-9, "s", "unknown", "set-up of one row of a 2-D transfer"),
    "discrete_slowdown": _fact(35.0, "x", "medium", "FlagGems: block DMA against single accesses"),
    "shared_line_slowdown": _fact(10.0, "x", "medium", "FlagTree 3.6 norm README"),
    "masked_f32": _fact(1.06, "x", "medium", "FlagTree 3.6 docs, masked loads"),
    "masked_f16": _fact(1.85, "x", "medium", "FlagTree 3.6 docs, masked loads"),
    "masked_bf16": _fact(2.43, "x", "medium", "FlagTree 3.6 docs, masked loads"),
    "host_copy_seconds": _fact(12e-6, "s", "medium", "FlagOS P800 report, one run"),
    "host_bytes_per_second": _fact(10e9, "bytes/s", "medium", "FlagOS P800 report, one run"),
    "kernel_reload_seconds": _fact(20e-3, "s", "medium", f"{COPY_DOCS}: 10 to 30 ms"),
}  # fmt: skip

_XPU2: dict[str, Fact] = {
    "clusters": _fact(8, "", "high", f"{DRIVER}; XRE KL2_CLUSTER_MAX; Baidu talk"),
    "sdnn_engines": _fact(6, "", "high", "Baidu talk; XRE KL2_SDNN_MAX (FlagTree says 8)"),
    "lm_bytes": _fact(8192, "bytes per core", "medium", f"{TUNER}: 8 KiB x 64 cores on every arch"),
    "uni_sram_bytes": _fact(0, "bytes per SDNN", "unknown", "banks of this generation differ"),
    "granules_m": _fact(0, "", "unknown", "tiles of this generation are not published"),
    "granules_n": _fact(0, "", "unknown", "tiles of this generation are not published"),
    "published_tiles": _fact((), "BLOCK_M, BLOCK_N", "unknown", "none published"),
    "sdnn_dtypes": _fact((), "", "unknown", "no public Triton for this matrix engine"),
    "sdnn_wide_dtypes": _fact((), "", "unknown", "no public Triton for this matrix engine"),
    "l3_bytes": _fact(64 << 20, "bytes", "high", "Baidu talk; FlagTree pointer check"),
    "hbm_bytes": _fact(32 << 30, "bytes", "high", "R300; an R200 has 16 GiB"),
    "hbm_bytes_per_second": _fact(512e9, "bytes/s", "high", "Baidu talk, GDDR6"),
    "sdnn_f16_flops": _fact(128e12, "FLOP/s", "medium", "R300, Baidu talk and FlagPerf"),
    "sdnn_f32_flops": _fact(0.0, "FLOP/s", "unknown", "not published"),
    "cluster_f32_flops": _fact(
        8e12, "FLOP/s", "unknown", "8 clusters x 64 cores x 16 lanes x 2 at 0.5 GHz; unpublished"
    ),
    "wings": _fact((), "cards", "unknown", "R300 nodes have two rings"),
}
FACTS: Mapping[str, Mapping[str, Fact]] = {"xpu3": XPU3, "xpu2": {**XPU3, **_XPU2}}
