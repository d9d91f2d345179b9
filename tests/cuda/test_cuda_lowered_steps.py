"""A decoder lowered for sm_90, kernels unmade: every class of steps becomes launches that fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sglk import knobs
from sglk.driver import Options
from sglk.ir.dtype import BF16, dtype
from sglk.passes.pipeline import StepOptions, run_pipeline, step_pipeline
from sglk.targets.artifact import FORMAT, Artifact, ArtifactWriter
from sglk.targets.artifact.fill import DTYPES, FEATURE, Fill
from sglk.targets.artifact.kernel_pack import PackedKernel, write_pack
from sglk.targets.conformance.decoder import Shape, decoder_graph
from sglk.targets.cuda.backend import CudaBackend
from sglk.targets.cuda.device import CudaExecutable
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.device import StepBatch
from sglk.targets.lowering import STEP, STEP_SYMBOLS, Lowering

SHAPE = Shape("test", heads=8, kv_heads=2, head_dim=64, pairs=32, hidden=256, inner=512, vocab=1000)
PAGES, LIMIT = 400, 1024
SEQUENCES = {
    "one token": [(1, 0)],
    "decode": [(1, 100)] * 3,
    "a full class": [(1, 500)] * 64,
    "more than a class": [(1, 7)] * 70,
    "a prompt": [(77, 0)],
    "a long prompt": [(LIMIT, 0)],
    "mixed": [(1, 300), (1, 20), (40, 0), (1, 999)],
    "as many tokens as sequences after padding": [(1, 5)] * 9 + [(2, 5)],
}
"""By name: tokens of this step, and before it, of each sequence."""


@pytest.fixture(scope="module", params=["bf16", "e4m3_row_f32"])
def lowering(request: pytest.FixtureRequest) -> Lowering:
    backend = CudaBackend()
    form = None if request.param == "bf16" else dtype(request.param)
    graph = decoder_graph(SHAPE)
    with knobs.override(verify=False):
        target = backend.target(Options(arches=("sm90",), activations="bf16"))
        run_pipeline(graph, step_pipeline(target, StepOptions(BF16, BF16, (), BF16, form)))
        return backend.lower(graph, target)


@pytest.fixture(scope="module")
def artifact(lowering: Lowering, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    step = lowering.program(STEP, STEP_SYMBOLS)
    programs = [step, *lowering.entries]
    kernels = {
        symbol: PackedKernel(
            {"num_warps": 4, "params": [t for _, t in k.signature], "global_scratch": 384}, b""
        )
        for symbol, k in lowering.kernels.items()
    }
    path: Path = tmp_path_factory.mktemp("lowered") / "decoder.sglk"
    with ArtifactWriter(path) as writer:
        for program in programs:
            writer.add_bytes(f"programs/{program.entry}.json", program.to_json())
        writer.add_bytes("kernels/sm_90.pack", write_pack(kernels))
        variant = {"isa": "sm_90", "library": "kernels/sm_90.pack", "symbols": list(kernels)}
        weights = {}
        for use in lowering.weights.values():
            size = int(np.prod(use.shape)) * DTYPES[use.dtype]
            weights[use.name] = {
                "fill": Fill(1, 0.0, 2.0**-26).to_json(), "bytes": size, "dtype": use.dtype,
                "shape": [], "layout": "row", "sections": {},
            }  # fmt: skip
        writer.finish({
            "format": list(FORMAT), "features": [FEATURE], "producer": "test",
            "model": {"name": "d", "architecture": "d", "vocab_size": SHAPE.vocab,
                      "context_length": 4096},
            "target": {"name": "cuda", "page_size": 64, "variants": [variant]},
            "programs": {p.entry: f"programs/{p.entry}.json" for p in programs},
            "weights": weights,
        })  # fmt: skip
    with Artifact.open(path) as opened:
        yield opened


@pytest.fixture
def loaded(artifact: Artifact) -> Iterator[tuple[CudaExecutable, NullDriver]]:
    driver = NullDriver(total_bytes=1 << 33)
    device = CudaDevice(open_driver=lambda _: driver)
    with (
        knobs.override(graphs="trust"),
        device.load(artifact, num_pages=PAGES, max_tokens=LIMIT) as executable,
    ):
        yield executable, driver


def make_batch(sequences: list[tuple[int, int]], page_size: int) -> StepBatch:
    """Every sequence reads and writes pages of its own, or those of others when they run out."""
    counts = np.array([new for new, _ in sequences], np.int32)
    lens = np.array([new + before for new, before in sequences], np.int32)
    starts = np.append(0, np.cumsum(counts)).astype(np.int32)
    positions = np.concatenate([np.arange(n - c, n) for n, c in zip(lens, counts, strict=True)])
    width = -(-int(lens.max()) // page_size)
    table = 1 + np.arange(len(sequences) * width, dtype=np.int32).reshape(-1, width) % (PAGES - 1)
    pages = table[np.repeat(np.arange(len(sequences)), counts), positions // page_size]
    return StepBatch(
        token_ids=np.arange(starts[-1], dtype=np.int32) % SHAPE.vocab,
        positions=positions.astype(np.int32),
        slots=(pages * page_size + positions % page_size).astype(np.int32),
        query_start=starts,
        seq_lens=lens,
        page_table=table,
        logit_rows=starts[1:] - np.int32(1),
    )


@pytest.mark.parametrize("name", SEQUENCES)
def test_every_launch_gets_memory_that_is_there(
    loaded: tuple[CudaExecutable, NullDriver], lowering: Lowering, name: str
) -> None:
    executable, driver = loaded
    driver.records.clear()
    logits = executable.step(make_batch(SEQUENCES[name], executable.page_size))
    assert logits.shape == (len(SEQUENCES[name]), SHAPE.vocab)
    launches = driver.of("launch")
    bounds = [(at, at + len(memory) - 256) for at, memory in driver._memory.items()]
    for launch in launches:
        kernel = lowering.kernels[launch.what]
        assert len(launch.words) == len(kernel.signature) + 2
        pointers = [
            word
            for word, (_, kind) in zip(launch.words, kernel.signature, strict=False)
            if kind.startswith("*")
        ]
        for pointer in (*pointers, launch.words[-2]):
            assert any(low <= pointer < high for low, high in bounds), launch
        assert launch.words[-1] == 0
    has_prompts = any(new > 1 for new, _ in SEQUENCES[name])
    assert any("flash_attention" in launch.what for launch in launches) == has_prompts


def test_a_chunk_without_logits_is_a_shorter_step(
    loaded: tuple[CudaExecutable, NullDriver],
) -> None:
    executable, driver = loaded
    step = make_batch([(100, 0)], executable.page_size)
    executable.step(step)
    whole = len(driver.of("launch"))
    step.logit_rows = step.logit_rows[:0]
    driver.records.clear()
    executable.step(step)
    assert 0 < len(driver.of("launch")) < whole


def test_usual_steps_move_no_memory(loaded: tuple[CudaExecutable, NullDriver]) -> None:
    executable, driver = loaded
    before = executable._memory.generation
    for sequences in SEQUENCES.values():
        executable.step(make_batch(sequences, executable.page_size))
    assert executable._memory.generation == before and not driver.of("free graph")
