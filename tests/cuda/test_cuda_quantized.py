"""Products with weights of few bits on CUDA: kernels, parts of weights, what is refused."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sglk import knobs
from sglk.driver import Options, compile
from sglk.errors import SglkError
from sglk.ir.dtype import BF16, dtype
from sglk.ir.few_bits import FORMS
from sglk.ir.groups import random_groups
from sglk.ir.quantize import quantize
from sglk.passes.pipeline import StepOptions, run_pipeline, step_pipeline
from sglk.targets.conformance.decoder import Shape, decoder_graph
from sglk.targets.cuda.backend import CudaBackend
from sglk.targets.cuda.measured import Product
from sglk.targets.cuda.quantized_tiles import quantized_candidates
from sglk.targets.cuda.rows_linear import choose
from sglk.targets.cuda.weight_form import WeightForm, form_of_key
from sglk.targets.form_parts import part_of, part_type
from sglk.targets.lowering import STEP, STEP_SYMBOLS, Lowering, TokenRange

SHAPE = Shape("test", heads=8, kv_heads=2, head_dim=64, pairs=32, hidden=256, inner=512, vocab=1000)


@functools.cache
def lowered(form: str, arch: str = "sm90") -> tuple[Lowering, dict[int | None, list[str]]]:
    """The kernels of each bucket, by the rows it ends at."""
    backend = CudaBackend()
    graph = decoder_graph(SHAPE)
    with knobs.override(verify=False):
        target = backend.target(Options(arches=(arch,), activations="bf16"))
        target = replace(target, token_buckets=(1, 64))
        given = StepOptions(BF16, BF16, (), BF16, dtype(form))
        run_pipeline(graph, step_pipeline(target, given))
        lowering = backend.lower(graph, target)
        program = lowering.program(STEP, STEP_SYMBOLS)
    calls = {
        bucket.tokens_max: [lowering.kernels[call.kernel].function for call in bucket.calls]
        for bucket in program.buckets
    }
    return lowering, calls


def test_prompts_multiply_fp8_rows_that_norms_write() -> None:
    lowering, calls = lowered("e4m3_row_f32")
    last = calls[64].index("row_tables.gather_rows", 2)  # from here on the rows of logits alone
    layers = calls[64][:last]
    assert "row_norm.rmsnorm" not in layers
    assert layers.count("row_norm.rmsnorm_fp8") == 3
    assert layers.count("row_norm.quantize_rows") == 3  # attention twice, the gated product
    kernels = lowering.kernels.values()
    fp8 = [
        k for k in kernels if dict(k.signature).get("x") == "*fp8e4nv" and "linear" in k.function
    ]
    assert fp8 and all(dict(k.signature)["w"] == "*fp8e4nv" for k in fp8)


def test_single_rows_stay_bf16_and_need_no_launch_for_fp8() -> None:
    _, calls = lowered("e4m3_row_f32")
    assert not any("fp8" in name or "quantize" in name for name in calls[1])
    assert calls[1].count("gemv.linear") >= 4


def test_integers_are_read_as_stored_for_any_number_of_rows() -> None:
    lowering, calls = lowered("i4_g32_f16_z", "sm80")
    assert "group_gemv.linear" in calls[1]
    assert "matmul_parts.linear" in calls[64] and "matmul_parts.linear" in calls[None]
    stored = {use.dtype for use in lowering.weights.values() if use.stored}
    assert stored == {"u8", "f16"}


def test_the_device_can_make_every_part_from_a_seed() -> None:
    lowering, _ = lowered("i4_g32_f16_z", "sm80")
    made = {p.entry.removeprefix("fill_") for p in lowering.entries if p.entry.startswith("fill_")}
    assert {use.dtype for use in lowering.weights.values()} <= made


def test_the_head_and_the_embedding_stay_bf16() -> None:
    lowering, _ = lowered("i4_g32_f16_z", "sm80")
    plain = [use for use in lowering.weights.values() if use.dtype == "bf16"]
    assert {use.shape for use in plain} == {(SHAPE.vocab, SHAPE.hidden)}


def test_a_chip_without_fp8_products_refuses_the_option(tmp_path: Path) -> None:
    assert "e4m3" not in CudaBackend().target(Options(arches=("sm80",))).forms
    assert "e4m3" in CudaBackend().target(Options(arches=("sm89",))).forms
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(64, 64)
    with pytest.raises(SglkError, match=r"--dtype: expected one .*\(int8, int4\), got fp8"):
        compile(
            module, (torch.zeros(2, 64),), "cuda:sm80", tmp_path / "x.sglk", dtype="fp8",
            activations="bf16",
        )  # fmt: skip


@pytest.mark.parametrize(("form", "bound"), [("e4m3_row_f32", 0.1), ("i4_g32_f16_z", 0.02)])
def test_a_decoder_gives_the_logits_of_its_rounded_weights(form: str, bound: float) -> None:
    program = Path(__file__).with_name("interpreted_decoder.py")
    command = [sys.executable, "-W", "error", str(program), form]
    given = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert 0 < float(run.stdout) < bound


def test_batch_invariant_products_take_no_forms() -> None:
    options = Options(arches=("sm90",), activations="bf16", batch_invariant=True)
    assert not CudaBackend().target(options).forms


@pytest.mark.parametrize("name", ["e4m3_row_f32", "e4m3_g128_f32", "i8_row_bf16", "i4_g64_f16_z"])
def test_parts_hold_what_the_form_says(name: str) -> None:
    array = random_groups(name, (6, 256), np.random.default_rng(0))
    for layout in ("q", "scale") + (("zero",) if array.zero is not None else ()):
        kind, shape = part_type(array.form, array.shape, layout)
        part = part_of("w", array, layout)
        assert part.shape == shape
        assert part.itemsize == {"f32": 4, "f16": 2, "bf16": 2}.get(kind, 1)
    if array.form.bits == 4:
        packed = part_of("w", array, "q").view(np.uint8)
        assert np.array_equal(packed[:, 16:32] & 15, array.q[:, 32:48])
        assert np.array_equal(packed[:, 16:32] >> 4, array.q[:, 48:64])


@pytest.mark.parametrize("key", ["e4m3", "e4m3_g128", "i8", "i4_g32", "i4_g96"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_120"])
def test_every_row_count_has_a_kernel_that_fits(key: str, arch: str) -> None:
    form = form_of_key(key)
    if form.element not in CudaBackend().target(Options(arches=(arch,))).forms:
        return
    assert form.key == key
    for m in (1, 2, 4, 5, 64, 65, 300, 4096):
        ways = quantized_candidates(m, 1000, 1120, True, arch, form)
        assert ways and quantized_candidates(m, 32, 96, False, arch, form), m
        steps = [way.constants["BLOCK_K"] for way in ways if way.kernel != "group_gemv.linear"]
        if form.group:
            assert all(form.group % step == 0 for step in steps)


def test_measured_ways_are_of_the_same_form() -> None:
    target = CudaBackend().target(Options(arches=("sm90",), activations="bf16"))
    config, choice = choose(target, TokenRange(33, 64), 14336, 4096, True, WeightForm("e4m3"))
    assert choice.bound == "measured" and config.x == "e4m3"
    plain, _ = choose(target, TokenRange(33, 64), 14336, 4096, True)
    assert plain.x == "bf16"
    assert Product(64, 8, 8, False) != Product(64, 8, 8, False, WeightForm("i8"))


@pytest.mark.parametrize("option", FORMS)
def test_rounding_keeps_most_of_a_weight(option: str) -> None:
    weight = np.random.default_rng(1).normal(size=(32, 256)).astype(np.float32)
    made = quantize(weight, FORMS[option])
    error = np.linalg.norm(made.dequantize() - weight) / np.linalg.norm(weight)
    assert error < {"int4": 0.1, "int8": 0.01}.get(option, 0.03)
    assert made.dtype == FORMS[option]
