"""``--batch-invariant`` on a GPU: a row has the same bits alone, in a batch and in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sglk
from numpy.typing import NDArray
from sglk import knobs
from sglk.errors import DeviceError
from sglk.targets.artifact import Artifact
from sglk.targets.cuda.device import CudaExecutable
from sglk.targets.cuda.device.cuda_driver import CudaDriver
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.device import StepBatch

pytestmark = [pytest.mark.device, pytest.mark.slow]
Chunk = tuple[list[int], int, int]
"""Tokens, position of the first, and the first of the pages of their sequence."""
PAGES = 4


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
        target = f"cuda:sm{major}{minor}"
        sglk.compile(tiny_llama_folder, target=target, output=path, batch_invariant=True)
    with Artifact.open(path) as opened:
        yield opened


@pytest.fixture
def executable(artifact: Artifact) -> Iterator[CudaExecutable]:
    with CudaDevice().load(artifact, num_pages=256, max_tokens=512) as loaded:
        yield loaded


def run(executable: CudaExecutable, chunks: list[Chunk]) -> NDArray[np.float32]:
    """Logits of all tokens, [tokens, vocabulary]."""
    page = executable.page_size
    counts = np.array([len(tokens) for tokens, _, _ in chunks], np.int32)
    starts = np.append(0, np.cumsum(counts)).astype(np.int32)
    positions = np.concatenate([np.arange(at, at + len(tokens)) for tokens, at, _ in chunks])
    pages = np.array([first for _, _, first in chunks])
    batch = StepBatch(
        token_ids=np.array([token for tokens, _, _ in chunks for token in tokens], np.int32),
        positions=positions.astype(np.int32),
        slots=(np.repeat(pages, counts) * page + positions).astype(np.int32),
        query_start=starts,
        seq_lens=np.array([at + len(tokens) for tokens, at, _ in chunks], np.int32),
        page_table=(pages[:, None] + np.arange(PAGES)).astype(np.int32),
        logit_rows=np.arange(starts[-1], dtype=np.int32),
    )
    return np.array(executable.step(batch))


def test_rows_have_the_same_bits_however_they_are_computed(executable: CudaExecutable) -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 250, 190).tolist()
    whole = run(executable, [(tokens, 0, 1)])
    for sizes in ([1, 63, 64, 62], [17, 16, 100, 57], [5] * 38):
        others: list[Chunk] = [(rng.integers(0, 250, 3).tolist(), 0, 20), ([7], 0, 30)]
        at = 0
        for size in sizes:
            parts = run(executable, [*others, (tokens[at : at + size], at, 10)])
            assert np.array_equal(parts[4:], whole[at : at + size]), (sizes, at)
            at += size
    alone = [run(executable, [(tokens[i : i + 1], i, 40)])[0] for i in range(190)]
    assert np.array_equal(np.stack(alone), whole)
    for count in (2, 4, 8, 16, 33, 64):
        many = [(tokens[:9], 0, 50 + 4 * 0), *[(tokens[:1], 0, 60 + i) for i in range(count)]]
        rows = run(executable, many)
        assert np.array_equal(rows[:9], whole[:9])
        assert all(np.array_equal(row, whole[0]) for row in rows[9:])
