"""A hybrid served with its states in slots: transformers' greedy ids, whatever runs beside what.

Jamba by rule: a selective scan and a convolution, attention over pages, experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
import torch
from sglk.bench.coverage_case import random_model
from sglk.bench.tiny_config import FIRST_ID, VOCAB, tiny_config
from sglk.runtime.capacity import plan_capacity
from sglk.runtime.selftest import run_selftest
from sglk.targets.artifact import Artifact

NEW = 10
LENGTHS = (5, 40, 3, 70, 17)


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model(tiny_config("jamba"))


@pytest.fixture(scope="module")
def path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jamba")
    model.save_pretrained(folder)
    made = folder / "model.sglk"
    sglk.compile(folder, output=made, dtype="fp32", quant="none")
    return made


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(FIRST_ID, VOCAB, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def wanted(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    return [list(_greedy(model, prompt)) for prompt in prompts]


def _greedy(model: Any, prompt: list[int]) -> Iterator[int]:
    """The whole context anew for every token: nothing of transformers' states is trusted."""
    ids = list(prompt)
    for _ in range(NEW):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
        yield ids[-1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_step_tokens": 24, "max_running": 3},  # chunks, and slots that change hands
        {"max_step_tokens": 16, "max_running": 5, "prefix_cache": True},
    ],
)
def test_greedy_ids_are_those_of_transformers(
    path: Path, prompts: list[list[int]], wanted: list[list[int]], options: dict[str, Any]
) -> None:
    with sglk.load(path, **options) as llm:
        for _ in range(2):  # again: slots hold what others left, and nothing is cached
            answers = llm.generate(prompts, max_tokens=NEW, ignore_eos=True)
            assert [a.token_ids for a in answers] == wanted
            assert not any(a.num_cached_tokens for a in answers)
        llm.engine.scheduler.check()


def test_its_own_vectors_pass_and_its_slots_are_planned(path: Path) -> None:
    with Artifact.open(path) as artifact:
        assert all(result.passed for result in run_selftest(artifact))
        plans = [plan_capacity(artifact, memory=2**28, max_running=n) for n in (4, 8)]
    one = (plans[1].states - plans[0].states) // 4
    conv, scan = 3 * 128, 128 * 16
    assert one == 4 * (conv + scan)
