"""A small Llama compiled and run on a GPU: self-test, chunks, batches, steps ahead of the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sglk
from numpy.typing import NDArray
from sglk import knobs
from sglk.errors import DeviceError
from sglk.runtime import SamplingParams
from sglk.runtime.selftest import relative_error, run_selftest
from sglk.targets.artifact import Artifact
from sglk.targets.cuda.device import CudaExecutable
from sglk.targets.cuda.device.cuda_driver import CudaDriver
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.device import StepBatch

pytestmark = [pytest.mark.device, pytest.mark.slow, pytest.mark.xdist_group("cuda_model")]
TOLERANCE = 3e-2
"""Relative, in L2: bf16 activations, and sums in another order in another batch."""


@pytest.fixture(scope="module")
def artifact(
    tiny_llama_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Artifact]:
    try:
        driver = CudaDriver(0)
    except DeviceError as error:
        pytest.skip(f"needs an NVIDIA GPU and cuda-bindings: {error}")
    major, minor = driver.chip.capability
    driver.close()
    path = tmp_path_factory.mktemp("cuda") / "tiny.sglk"
    with knobs.override(verify=False):
        sglk.compile(tiny_llama_folder, target=f"cuda:sm{major}{minor}", output=path)
    with Artifact.open(path) as opened:
        yield opened


@pytest.fixture
def executable(artifact: Artifact) -> Iterator[CudaExecutable]:
    with CudaDevice().load(artifact, num_pages=64, max_tokens=256) as loaded:
        yield loaded


def batch(chunks: list[tuple[list[int], int, int]], page_size: int) -> StepBatch:
    """Chunks (tokens, first position, the one page of their sequence)."""
    counts = np.array([len(tokens) for tokens, _, _ in chunks], np.int32)
    starts = np.append(0, np.cumsum(counts)).astype(np.int32)
    positions = np.concatenate([np.arange(at, at + len(t)) for t, at, _ in chunks])
    pages = np.array([page for _, _, page in chunks], np.int32)
    assert positions.max() < page_size
    return StepBatch(
        token_ids=np.array([token for tokens, _, _ in chunks for token in tokens], np.int32),
        positions=positions.astype(np.int32),
        slots=(np.repeat(pages, counts) * page_size + positions).astype(np.int32),
        query_start=starts,
        seq_lens=np.array([at + len(tokens) for tokens, at, _ in chunks], np.int32),
        page_table=pages.reshape(-1, 1),
        logit_rows=starts[1:] - np.int32(1),
    )


def test_the_self_test_passes(artifact: Artifact, executable: CudaExecutable) -> None:
    results = list(run_selftest(artifact, executable=executable))
    assert results and all(case.passed for case in results), results


def test_chunks_and_batches_give_the_logits_of_one_prompt(executable: CudaExecutable) -> None:
    tokens = np.random.default_rng(2).integers(0, 250, 40).tolist()
    others = [[5, 6, 7], [9] * 20]

    def last(chunks: list[tuple[list[int], int, int]]) -> NDArray[np.float32]:
        return executable.step(batch(chunks, executable.page_size))[len(chunks) - 1]

    whole = last([(tokens, 0, 1)])
    last([(tokens[:17], 0, 2)])
    last([(others[0], 0, 3), (tokens[17:39], 17, 2)])
    found = {"in chunks": last([(others[1], 0, 4), (tokens[39:], 39, 2)])}
    for place in range(40):
        found["one by one"] = last([([1], 0, 6), (tokens[place : place + 1], place, 5)])
    for how, logits in found.items():
        error = relative_error(logits[None], whole[None])
        assert error < TOLERANCE, (how, error)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}])
def test_text_is_the_same_with_and_without_graphs(
    artifact: Artifact, params: dict[str, float]
) -> None:
    """The same batch in the same order each time: bit for bit."""
    texts = []
    for mode in ("check", "off"):
        with (
            knobs.override(graphs=mode),
            # other tests share the device: not all of its memory, as it would be
            sglk.load(artifact.path, device="cuda:0", kv_memory=1 << 24) as llm,
        ):
            chosen = SamplingParams(max_tokens=20, **params)  # type: ignore[arg-type]
            answers = llm.generate(["one", "two words", "and a third one"], params=chosen)
            texts.append([answer.token_ids for answer in answers])
    assert texts[0] == texts[1] and all(len(ids) for ids in texts[0])
