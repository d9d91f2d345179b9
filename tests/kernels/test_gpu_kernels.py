"""Kernels for CUDA: values in Triton's interpreter, and what the compiler makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
from sglk.targets.cuda.attention_tiles import DECODE_TILES, DecodeTile
from sglk.targets.kernels import (
    adjust_logits,
    argmax_rows,
    decode_attention,
    draw_rows,
    flash_attention,
    rope_attention,
    rope_pages,
    row_norm,
    step_inputs,
)
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CASES = Path(__file__).parents[1] / "device"
FILES = (
    "test_attention.py", "test_rope_attention.py", "test_token_rows.py", "test_token_choice.py",
    "test_experts.py",
)  # fmt: skip
BF16 = (
    "q", "k", "v", "qkv", "x", "y", "w", "b", "sum", "residual", "k_cache", "v_cache",
    "q_norm", "k_norm",
)  # fmt: skip
F32 = (
    "cos", "sin", "sinks", "partials", "logits", "temperature", "lowest", "bests", "largest",
    "mass", "bias", "counts", "penalties", "scales",
)  # fmt: skip
NUMBERS = dict.fromkeys(("seqs", "pages", "splits", "tokens", "rows", "n"), "i32")
NUMBERS |= {"scale": "fp32", "eps": "fp32"}
POINTERS = dict.fromkeys(BF16, "*bf16") | dict.fromkeys(F32, "*fp32")
POINTERS |= {"top_p": "*fp64", "uniform": "*fp64"}

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


def test_values_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [str(CASES / name) for name in FILES]
    given = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


def compiled(fn: Any, arch: int, constants: dict[str, Any], **options: Any) -> Any:
    types = {}
    for name in fn.arg_names:
        other = POINTERS.get(name, "*i32")
        if name in NUMBERS and not (name in ("tokens", "rows") and fn.arg_names[0] == "logits"):
            other = NUMBERS[name]
        types[name] = "constexpr" if name in constants else other
    aligned = [i for i, name in enumerate(fn.arg_names) if types[name].startswith("*")]
    attrs = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn, signature=types, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


HEADS = {"KV_HEADS": 8, "GROUP": 4, "D": 128, "PAGE": 64, "BLOCK_D": 128}
ATTENTION = {**HEADS, "WINDOW": 0, "SOFTCAP": 0.0, "sinks": None}
PROMPT = {**ATTENTION, "BLOCK_M": 128, "MIN_QUERIES": 2, "AHEAD": False}


def test_prompts_multiply_by_warp_groups_with_loads_in_flight() -> None:
    constants = {**PROMPT, "BLOCK_N": 128, "LOADS": "pointers", "PDL": True}
    kernel = compiled(
        flash_attention.flash_attention, 90, constants, num_warps=8, num_stages=2, launch_pdl=True
    )
    ptx = kernel.asm["ptx"]
    assert ptx.index("griddepcontrol.wait") < ptx.index("ld.global")
    assert "wgmma.mma_async.sync.aligned.m64n128k16" in ptx
    assert ptx.count("cp.async.cg.shared.global") >= 64  # 16 bytes each
    assert kernel.metadata.shared <= 232448


def test_prompts_by_tensor_maps() -> None:
    constants = {**PROMPT, "BLOCK_N": 64, "LOADS": "maps", "PDL": False}
    kernel = compiled(flash_attention.flash_attention, 90, constants, num_warps=8, num_stages=3)
    assert "cp.async.bulk.tensor" in kernel.asm["ptx"]
    assert kernel.metadata.global_scratch_size == 256


def test_prompts_on_older_chips() -> None:
    constants = {**PROMPT, "BLOCK_N": 64, "LOADS": "pointers", "PDL": False, "SOFTCAP": 30.0}
    kernel = compiled(flash_attention.flash_attention, 80, constants, num_warps=8, num_stages=2)
    assert "mma.sync" in kernel.asm["ptx"]
    assert kernel.metadata.shared <= 101376  # sm_86 and sm_89 have the least


@pytest.mark.parametrize("arch", [80, 90])
def test_decode_counts_after_its_part_is_stored(arch: int) -> None:
    constants: dict[str, Any] = {
        **ATTENTION,
        "BLOCK_M": 16,
        "BLOCK_N": 64,
        "BLOCK_S": 8,
        "SPLIT": 0,
        "LEAST": 1,
    }
    constants |= {"MERGE": "last", "PDL": arch >= 90}
    kernel = compiled(decode_attention.decode_attention, arch, constants, num_stages=3)
    before, after = kernel.asm["ptx"].split("atom.global.gpu.acq_rel", 1)
    assert before.rindex("bar.sync") > before.rindex("st.global")
    assert before.count("cp.async.cg.shared.global") >= 32
    assert "ld.global" in after


ROW = {"HIDDEN": 4096, "OFFSET": 0.0, "BLOCK": 4096}
SMALL_KERNELS: list[tuple[Any, dict[str, Any]]] = [
    (
        decode_attention.combine_attention,
        {"HEADS": 32, "D": 128, "WINDOW": 0, "SOFTCAP": 0.0, "BLOCK_N": 64, "BLOCK_D": 128}
        | {"BLOCK_S": 8, "SPLIT": 0, "LEAST": 1},
    ),
    (
        rope_pages.rope_write_kv,
        {"HEADS": 32, "KV_HEADS": 8, "D": 128, "HALF": 64, "INTERLEAVED": False, "PAGE": 64}
        | {"BLOCK_H": 8, "BLOCK_HALF": 64, "BLOCK_D": 128},
    ),
    (
        rope_attention.rope_attention,
        {"KV_HEADS": 8, "GROUP": 4, "D": 128, "PAGE": 64, "WINDOW": 0, "SOFTCAP": 0.0}
        | {"BLOCK_M": 16, "LEAST": 1, "AHEAD": 2},
    ),
    (row_norm.add_rmsnorm, ROW),
    (argmax_rows.best_of_parts, {"VOCAB": 128256, "CHUNK": 4096}),
    (draw_rows.group_rows, {"VOCAB": 128256, "CHUNK": 4096}),
    (
        draw_rows.draw_rows,
        {"VOCAB": 128256, "CHUNK": 4096, "ROOM": 8192, "BLOCK": 2048, "TILE": 1024},
    ),
    (adjust_logits.adjust_rows, {"VOCAB": 128256, "BLOCK": 512}),
    (step_inputs.place_tokens, {"BLOCK": 256}),
]


@pytest.mark.parametrize("arch", [80, 90])
def test_small_kernels_compile(arch: int) -> None:
    for fn, constants in SMALL_KERNELS:
        ptx = compiled(fn, arch, {**constants, "PDL": arch >= 90}, num_warps=8).asm["ptx"]
        assert ("griddepcontrol.wait" in ptx) == (arch >= 90), fn.__name__
        assert ".local .align" not in ptx, fn.__name__


ROTATED = {"KV_HEADS": 8, "GROUP": 4, "D": 128, "PAGE": 64, "WINDOW": 0, "SOFTCAP": 0.0}


@pytest.mark.parametrize("tile", [tile for _, tile in DECODE_TILES[::2]])
def test_pages_are_read_before_the_product_is_there(tile: DecodeTile) -> None:
    constants = {**ROTATED, "sinks": None, "q_norm": None, "k_norm": None, "BLOCK_M": 16}
    constants |= {"LEAST": 1, "AHEAD": tile.ahead, "PDL": True}
    kernel = compiled(rope_attention.rope_attention, 90, constants, **tile.options())
    head, rest = kernel.asm["ptx"].split("griddepcontrol.wait")
    each = 2 * 64 * 128 * 2 // 16  # bytes of K and V of a page, 16 a load
    assert head.count("ld.global.v4.b32") == tile.ahead * each // (32 * tile.num_warps)
    assert "cp.async.cg.shared.global" in rest
    assert ".local .align" not in kernel.asm["ptx"]


def test_a_norm_starts_its_reader_before_it_waits() -> None:
    ptx = compiled(row_norm.rmsnorm, 90, {**ROW, "PDL": True}, launch_pdl=True).asm["ptx"]
    assert ptx.index("griddepcontrol.launch_dependents") < ptx.index("griddepcontrol.wait")


def test_rows_move_16_bytes_per_thread() -> None:
    constants = {**ROW, "PDL": False}
    ptx = compiled(row_norm.rmsnorm, 90, constants, num_warps=row_norm.warps_for(4096)).asm["ptx"]
    assert ptx.count("ld.global.v4.b32") == 2
    assert ptx.count("st.global.v4.b32") == 1


def test_fp8_rows_compile() -> None:
    constants = {**ROW, "GROUP": 128, "PDL": False}
    types = POINTERS | {"y": "*fp8e4nv"}
    fn = row_norm.add_rmsnorm_fp8
    signature = {n: "constexpr" if n in constants else types.get(n, "fp32") for n in fn.arg_names}
    source = ASTSource(fn, signature=signature, constexprs=constants)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert "cvt.rn.satfinite.e4m3x2" in ptx
