"""The vendor's operators: what they take, and what must not be used.

An operator is called through a small C adapter (`emulator/native/vendor_adapter.h`), built on a
machine with the vendor's SDK. `vendor_rows.py` has the rows: none is chosen until the configuration
names it. The argument lists are those of public Python wrappers (vLLM-Kunlun, SGLang plugins); none
of them was run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...ir.target import Denied

Place = Literal["device", "host", "both"]


@dataclass(frozen=True)
class Argument:
    """One argument of an operator: a contiguous tensor of ``dtype``, or a number."""

    name: str
    dtype: str = "activation"
    """``activation``: the model's type; ``number``: passed by value."""
    place: Place = "device"
    """``both``: a copy in host memory and one on the device, in two arguments."""
    note: str = ""


@dataclass(frozen=True)
class VendorOp:
    """An operator of the vendor's libraries that can do one of our ops."""

    op: str
    name: str
    function: str
    arguments: tuple[Argument, ...]
    constraints: tuple[str, ...] = ()

    @property
    def row(self) -> str:
        return f"vendor-{self.name}"


def prefill_alpha(scale: float, head_dim: int) -> float:
    """``prefill_attention`` divides by sqrt(head_dim) itself; decode takes the plain scale.

    >>> prefill_alpha(0.125, 64)
    1.0
    """
    return scale * math.sqrt(head_dim)


def absmax(scale: float, bits: int = 8) -> float:
    """The vendor's convention for a scale: the largest magnitude, value = q * max / 127.

    >>> absmax(0.5), absmax(0.5, 4)
    (63.5, 3.5)
    """
    return scale * float((1 << (bits - 1)) - 1)


def _tensors(*names: str, dtype: str = "activation") -> tuple[Argument, ...]:
    return tuple(Argument(name, dtype) for name in names)


def _numbers(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, "number") for name in names)


LOD = "running sum of lengths, one more than there are sequences"
TABLE = Argument("block_table", "i32", note="rows padded with -1")
OPERATORS: tuple[VendorOp, ...] = (
    VendorOp(
        "rmsnorm", "rmsnorm", "kunlun_ops.rmsnorm",
        (Argument("x"), Argument("weight", "f32"), Argument("output"), *_numbers("eps")),
    ),
    VendorOp(
        "add_rmsnorm", "add-rmsnorm", "kunlun_ops.add_rmsnorm",
        (
            *_tensors("x", "y"), Argument("weight", "f32"), Argument("output"),
            *_numbers("eps"), Argument("residual_output"),
        ),
        ("the sum is written to residual_output",),
    ),
    VendorOp(
        "linear", "matmul", "kunlun_ops.matmul",
        (
            *_tensors("x", "w", "out"), *_numbers("x_trans", "w_trans", "alpha", "beta"),
            Argument("bias", "f32"),
            *_tensors("x_max", "w_max", "x_pc_max", "w_pc_max", dtype="f32"),
        ),
        ("x and w contiguous, w [N, K] with w_trans", "int8 takes absmax by token and by channel"),
    ),
    VendorOp(
        "linear", "int8-matmul", "gemm_I8_I8_bf16_nt",
        (
            Argument("x_q", "i8"), Argument("x_scale", "f32"), Argument("w", "i8"),
            Argument("w_scale", "f32"), Argument("out", "bf16"),
        ),
        ("out is bf16", "rows are quantized by quant2d, which gives absmax"),
    ),
    VendorOp(
        "gated_linear", "matmul-swiglu", "kunlun_ops.matmul, kunlun_ops.swiglu",
        _tensors("x", "w", "both", "y"),
        ("two calls: the product, then silu of the first half times the second",
         "the last dim in bytes is a multiple of 16"),
    ),
    VendorOp(
        "rope", "rotary-embedding", "kunlun_ops.rotary_embedding",
        (
            Argument("positions", "i32"), *_tensors("query", "key"), *_numbers("head_size"),
            Argument("cos_sin_cache", "f32"), *_numbers("is_neox"),
        ),
        ("query and key are contiguous",),
    ),
    VendorOp(
        "rope_write_kv", "split-norm-rope", "kunlun_ops.split_norm_rope_neox, reshape_and_cache",
        (
            *_tensors("q_emb", "k_emb", "v_out", "qkv", "rotary", "q_w", "k_w"),
            Argument("positions", "i32"), Argument("slot", "i32"),
            *_numbers("num_tokens", "max_seqlen", "head_num", "kv_head_num", "head_dim"),
            *_numbers("rotary_dim"),
        ),
        ("halves are paired (neox)",),
    ),
    VendorOp(
        "write_kv", "reshape-and-cache", "kunlun_ops.reshape_and_cache",
        (*_tensors("k", "v", "k_cache", "v_cache"), Argument("slot", "i32")),
        ("k and v contiguous", "pages hold [kv_heads, page, head_dim]"),
    ),
    VendorOp(
        "paged_attention", "prefill-attention", "kunlun_ops.prefill_attention",
        (
            *_tensors("q", "k", "v", "out"), *_numbers("is_causal", "is_prefix_cache"),
            Argument("alpha", "number", note="scale times sqrt(head_dim)"), TABLE,
            Argument("context_qlen_lod", "i32", "both", LOD),
            Argument("context_kvlen_lod", "i32", "both", LOD),
            Argument("alibi_slopes", "f32"), Argument("softmax_lse", "f32"),
            *_numbers("swa_left", "swa_right"), Argument("sink", "f32"),
        ),
        ("without a cached prefix k and v are the new rows, not the cache",),
    ),
    VendorOp(
        "paged_attention", "decode-attention", "kunlun_ops.speculative_attention",
        (
            *_tensors("out", "q", "k_cache", "v_cache"),
            Argument("context_lens", "i32", "both"),
            *_numbers("batch_num", "qlen", "max_context_len", "head_num", "head_dim"),
            Argument("scale", "number", note="the plain scale, unlike prefill's alpha"),
            *_numbers("kv_head_num", "block_size", "max_num_blocks_per_seq", "max_window_size"),
            TABLE, Argument("sink", "f32"),
        ),
        ("the same number of queries for every sequence",),
    ),
    VendorOp(
        "moe_route", "moe-softmax-topk", "kunlun_ops.moe_softmax_topk_norm",
        (
            Argument("x", "f32"), Argument("normed_score", "f32"), Argument("topk_index", "i32"),
            Argument("block_statistic", "i32", note="one row for each of 12 clusters"),
            *_numbers("stable"),
        ),
    ),
    VendorOp(
        "expert_linear", "moe-fc", "kunlun_ops.moe_pre_sorted, moe_fc, moe_post",
        (
            *_tensors("x", "weight"), Argument("sorted_tokens_num_lod", "i32"),
            Argument("sorted_tokens_idx", "i32"), *_numbers("moe_topk"), Argument("y"),
        ),
        ("pre_sorted from 768 rows on, pre_small below", "ids are int32"),
    ),
)  # fmt: skip

NOT_TO_USE: tuple[Denied, ...] = (
    Denied("linear", "xblas-int8-gemm", "xBLAS GemmEx of int8 to int32 returns a parameter error"),
    Denied("linear", "vendor-fp8-linear", "fp8 operators are registered but empty: no such unit"),
    Denied("linear", "flaggems-mm", "black-listed on P800 with its autotuner (SGLang plugin)"),
    Denied("matmul", "flaggems-bmm", "black-listed on P800 with its autotuner (SGLang plugin)"),
    Denied("gelu", "flaggems-gelu", "black-listed on P800 for a vision-language model"),
    Denied("argmax", "flaggems-argmax", "black-listed on P800 (SGLang plugin)"),
    Denied("concat", "flaggems-cat", "black-listed on P800 (SGLang plugin)"),
    Denied("cast", "flaggems-to-copy", "black-listed on P800 (SGLang plugin)"),
)
"""Implementations that exist and give errors or wrong results, by public reports."""

HOST = (
    ("sample", "next tokens are drawn on the host from the logits, by the runtime's own sampler"),
    ("grammar", "masks of structured output are made on the host"),
)
"""What no kernel of an artifact does."""


def unavailable(vendor: VendorOp) -> str:
    return (
        f"unavailable: no adapter is named for {vendor.function} (it needs a library over the "
        "vendor's SDK, and its name among vendor_operators of --kunlun-config)"
    )
