"""Batch, chunk size, cache state, preemption and threads change no bit of what a model answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
from sglk.runtime import LLM, Generation
from sglk.targets.artifact import Artifact
from sglk.targets.registry import open_device

NEW = 12
LENGTHS = (1, 2, 25, 16, 17, 31, 32, 27, 40, 64, 29, 90, 100, 127, 3, 50)


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def artifact(request: pytest.FixtureRequest, lab: Any) -> Path:
    """The tiny Llama in f32, and in bf16 with its f16 cache."""
    _, path = lab.compile("llama", dtype=request.param)
    assert isinstance(path, Path)
    return path


@pytest.fixture(scope="module")
def prompts(lab: Any) -> list[list[int]]:
    """Sixteen different prompts; the last two share a prefix of 64 tokens with others."""
    ids = [lab.random_ids(n, 100 + n) for n in LENGTHS]
    ids[14] = ids[9] + ids[14]
    ids[15] = ids[11][:64] + ids[15]
    return ids


@pytest.fixture(scope="module")
def alone(artifact: Path, prompts: list[list[int]]) -> list[Generation]:
    """Each prompt on its own, nothing cached: what everything else is compared with."""
    with loaded(artifact, prefix_cache=False) as llm:
        found = [answers(llm, [prompt])[0] for prompt in prompts]
    assert len({tuple(each.token_ids) for each in found}) > 12  # the answers tell prompts apart
    return found


@contextmanager
def loaded(path: Path, num_threads: int = 2, **options: Any) -> Iterator[LLM]:
    with sglk.load(path, num_threads=num_threads, **options) as llm:
        yield llm


def answers(llm: LLM, prompts: list[list[int]]) -> list[Generation]:
    found = llm.generate(prompts, max_tokens=NEW, ignore_eos=True, logprobs=3)
    assert isinstance(found, list)
    return found


def assert_same(found: list[Generation], alone: list[Generation], what: str) -> None:
    """Equal ids, and equal log-probabilities to the last bit."""
    for number, (a, b) in enumerate(zip(found, alone, strict=True)):
        assert a.token_ids == b.token_ids, f"{what}, prompt {number}"
        assert a.logprobs == b.logprobs, f"{what}, prompt {number}"


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_any_batch(
    artifact: Path, prompts: list[list[int]], alone: list[Generation], size: int
) -> None:
    with loaded(artifact, prefix_cache=False) as llm:
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            assert_same(answers(llm, prompts[part]), alone[part], f"batches of {size}")


@pytest.mark.parametrize("chunk", [1, 7, 32, 512])
def test_any_chunk_size(
    artifact: Path, prompts: list[list[int]], alone: list[Generation], chunk: int
) -> None:
    with loaded(artifact, max_step_tokens=chunk) as llm:
        assert_same(answers(llm, prompts), alone, f"chunks of {chunk}")


def test_warm_prefix_cache(
    artifact: Path, prompts: list[list[int]], alone: list[Generation]
) -> None:
    with loaded(artifact) as llm:
        for what in ("cold", "warm"):
            found = answers(llm, prompts)
            assert_same(found, alone, what)
        assert found[-1].num_cached_tokens == 96
        assert sum(each.num_cached_tokens for each in found) > 400


def test_preemption(artifact: Path, prompts: list[list[int]], alone: list[Generation]) -> None:
    """Five prompts that fill a page each and need a second one, on five pages in all."""
    growing = [i for i, prompt in enumerate(prompts) if 32 - NEW < len(prompt) <= 32]
    with Artifact.open(artifact) as opened:
        page_bytes = open_device("cpu").kv_bytes_per_page(opened)
    with loaded(artifact, kv_memory=6 * page_bytes, max_step_tokens=48) as llm:
        found = answers(llm, [prompts[i] for i in growing])
        assert_same(found, [alone[i] for i in growing], "few pages")
        assert llm.engine.stats().num_preemptions > 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(
    artifact: Path, prompts: list[list[int]], alone: list[Generation], threads: int
) -> None:
    with loaded(artifact, num_threads=threads) as llm:
        assert_same(answers(llm, prompts), alone, f"{threads} threads")


@pytest.mark.parametrize("model_type", ["mistral", "gemma2"])
def test_logits_are_bit_equal_in_every_cut(lab: Any, model_type: str) -> None:
    """All rows of a sequence, cut into steps in many ways, with others beside it."""
    _, path = lab.compile(model_type)
    ids, other = lab.random_ids(120, 1), lab.random_ids(120, 2)
    with lab.stepping(path) as stepper:
        (whole,) = stepper.step(("a", ids, 0))
    for threads, chunk in ((1, 1), (2, 7), (2, 32), (1, 50)):
        with lab.stepping(path, threads) as stepper:
            cuts = [*range(0, 120, chunk), 120]
            for number, (start, stop) in enumerate(pairwise(cuts)):
                beside = [("b", other[number : number + 1], number)] if number % 3 else []
                logits = stepper.step(*beside, ("a", ids[start:stop], start))[-1]
                np.testing.assert_array_equal(
                    logits, whole[start:stop], err_msg=f"{chunk}: {start}"
                )
