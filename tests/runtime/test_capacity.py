"""The plan's numbers are those of the loaded model, and hold at the largest step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sglk
from sglk.errors import RequestError, SglkError
from sglk.runtime.capacity import HOST_BYTES, PAGE_HOST_BYTES, plan_capacity
from sglk.targets.artifact import Artifact
from sglk.targets.registry import open_device

MIB = 2**20


def test_the_plan_is_what_loading_takes(tiny_artifact: Path) -> None:
    sizes = {"memory": 180 * MIB, "max_running": 6, "max_step_tokens": 48}
    with Artifact.open(tiny_artifact) as artifact:
        plan = plan_capacity(artifact, **sizes)
        page = open_device("cpu").kv_bytes_per_page(artifact)
    assert plan.page_bytes == page + PAGE_HOST_BYTES + 4 * plan.page_size
    assert 0 <= plan.free < plan.page_bytes and plan.host == HOST_BYTES
    with sglk.load(tiny_artifact, **sizes) as llm:
        limits = llm.engine.limits
        assert limits.num_pages == plan.num_pages
        assert limits.max_context == plan.max_context == 256
        assert limits.max_total >= plan.longest(1)
        rng = np.random.default_rng(0)
        prompts = [rng.integers(0, 250, 250).tolist() for _ in range(6)]
        llm.generate(prompts, max_tokens=6, ignore_eos=True)
        used = llm.engine.executable.memory_bytes()
    assert used["weights"] <= plan.weights
    assert used["arena"] <= plan.intermediate and used["outputs"] <= plan.outputs
    assert used["states"] <= plan.states + plan.num_pages * page


def test_so_many_of_such_a_length_run_without_preemption(tiny_artifact: Path) -> None:
    with Artifact.open(tiny_artifact) as artifact:
        base = plan_capacity(artifact, memory=180 * MIB, max_running=8, max_step_tokens=64)
        memory = base.memory - (base.num_pages - 21) * base.page_bytes
        plan = plan_capacity(artifact, memory=memory, max_running=8, max_step_tokens=64)
    assert plan.num_pages == 21
    assert plan.by_concurrency() == [(1, 256), (2, 256), (4, 160), (8, 64)]
    assert plan.by_length() == [(128, 5), (256, 2)]
    for count, length in plan.by_concurrency():
        options = {"max_running": 8, "max_step_tokens": 64, "prefix_cache": False}
        with sglk.load(tiny_artifact, memory=memory, **options) as llm:
            prompts = [[(i + n) % 250 for i in range(length - 6)] for n in range(count)]
            answers = llm.generate(prompts, max_tokens=6, ignore_eos=True)
            assert all(len(answer.token_ids) == 6 for answer in answers)
            assert llm.engine.stats().num_preemptions == 0


def test_what_can_never_fit_is_refused_at_once(tiny_artifact: Path) -> None:
    with Artifact.open(tiny_artifact) as artifact:
        plan = plan_capacity(artifact, memory=180 * MIB, max_running=2, max_step_tokens=16)
    memory = plan.memory - (plan.num_pages - 4) * plan.page_bytes
    sizes = {"memory": memory, "max_running": 2, "max_step_tokens": 16}
    with (
        sglk.load(tiny_artifact, **sizes) as llm,
        pytest.raises(RequestError, match=r"at most 97 tokens together, got 90 \+ 10 \(lower max"),
    ):
        llm.generate(list(range(90)), max_tokens=10)


def test_too_little_memory_says_how_much_it_takes(tiny_artifact: Path) -> None:
    with Artifact.open(tiny_artifact) as artifact:
        with pytest.raises(SglkError, match=r"memory: expected at least [\d,]+ bytes \(host") as e:
            plan_capacity(artifact, memory=MIB)
        least = int(str(e.value).split()[4].replace(",", ""))
        assert plan_capacity(artifact, memory=least).num_pages == 2
        with pytest.raises(SglkError, match="memory: expected at least"):
            plan_capacity(artifact, memory=least - 1)


def test_one_budget_only(tiny_artifact: Path) -> None:
    with pytest.raises(SglkError, match="memory: expected either memory or kv_memory, got both"):
        sglk.load(tiny_artifact, memory=2**30, kv_memory=2**20)
