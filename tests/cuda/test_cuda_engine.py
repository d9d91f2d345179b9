"""The whole runtime on the null driver: schedules, prefix cache, steps ahead, the right tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk import knobs
from sglk.runtime import LLM, SamplingParams, load
from sglk.targets.cuda import device as cuda_device
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.null_driver import NullDriver


@pytest.fixture
def on_null(monkeypatch: pytest.MonkeyPatch, driver: NullDriver) -> None:
    def open_device(number: str = "") -> CudaDevice:
        assert number in ("", "1")
        return CudaDevice(int(number or 0), open_driver=lambda _: driver)

    monkeypatch.setattr(cuda_device, "open_device", open_device)


@pytest.fixture
def llm(on_null: None, tmp_path: Path, toy: Any) -> Iterator[LLM]:
    toy.write_artifact(tmp_path / "toy.sglk").close()
    pages = 4 * toy.PAGE * 200
    options = {"kv_memory": pages, "max_step_tokens": 24, "max_running": 6}
    with knobs.override(graphs="trust"):  # comparing would read logits
        loaded = load(tmp_path / "toy.sglk", device="cuda:1", **options)
    with loaded:
        yield loaded


def continued(toy: Any, prompt: Sequence[int], count: int, shift: int = 0) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append((toy.next_token(tokens) + shift) % toy.VOCAB)
    return tokens[len(prompt) :]


def prompts(toy: Any, count: int, shared: int = 9) -> list[list[int]]:
    """Prompts of 9 to 40 tokens whose first ones are the same."""
    rng = np.random.default_rng(4)
    start = rng.integers(0, toy.VOCAB, shared).tolist()
    return [start + rng.integers(0, toy.VOCAB, rng.integers(0, 32)).tolist() for _ in range(count)]


def test_greedy_answers_in_mixed_steps(llm: LLM, toy: Any, driver: NullDriver) -> None:
    """More requests than run at once, chunks of prompts beside decoding, shared prefixes."""
    given = prompts(toy, 15)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    answers = llm.generate(given, params=params)
    for prompt, answer in zip(given, answers, strict=True):
        assert answer.token_ids == continued(toy, prompt, 30)
    assert any(answer.num_cached_tokens for answer in answers)
    assert not [r for r in driver.of("copy out") if r.num_bytes > 4 * 24], "logits were read"


def test_drawn_and_greedy_answers_side_by_side(llm: LLM, toy: Any) -> None:
    """The toy draws the token top_k - 1 after the likeliest one."""
    for number, prompt in enumerate(prompts(toy, 5)):
        params = SamplingParams(max_tokens=9, top_k=number + 1, temperature=1.0, ignore_eos=True)
        if number == 0:
            params = SamplingParams(max_tokens=9, ignore_eos=True)
        llm.engine.add_request(str(number), prompt, params)
    found = answers(llm)
    for number, prompt in enumerate(prompts(toy, 5)):
        assert found[str(number)] == continued(toy, prompt, 9, shift=number)


def answers(llm: LLM) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while llm.engine.has_work:
        for output in llm.engine.step():
            assert output.token_id is not None
            found.setdefault(output.request_id, []).append(output.token_id)
    return found


def test_a_request_that_needs_logits_lands_what_is_ahead(llm: LLM, toy: Any) -> None:
    """Log-probabilities are the host's: steps wait for it, and the answers stay right."""
    given = prompts(toy, 3)
    plain = SamplingParams(max_tokens=12, ignore_eos=True)
    asking = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=0)
    llm.engine.add_request("plain", given[0], plain)
    for _ in range(4):
        llm.engine.step()
    llm.engine.add_request("asking", given[1], asking)
    found = answers(llm)
    assert found["asking"] == continued(toy, given[1], 12)
    assert found["plain"] == continued(toy, given[0], 12)[-len(found["plain"]) :]


class Only:
    """A grammar that allows one token after another, then nothing."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = list(tokens)

    def fill(self, words: NDArray[np.uint32]) -> None:
        for token in self._tokens[:1]:
            words[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token_id: int) -> None:
        assert token_id == self._tokens.pop(0)

    def is_terminated(self) -> bool:
        return False


def test_changed_logits_never_come_to_the_host(llm: LLM, toy: Any, driver: NullDriver) -> None:
    """Bias, penalties and masks beside plain requests: all of them run ahead."""
    given = prompts(toy, 4)
    several: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    llm.engine.add_request("plain", given[0], SamplingParams(**several))
    biased = SamplingParams(**several, logit_bias={5: 100.0})
    llm.engine.add_request("biased", given[1], biased)
    # the likeliest token has 1 and others 0, until a penalty takes 2 off what the answer has
    llm.engine.add_request("varied", given[2], SamplingParams(**several, presence_penalty=2.0))
    mask = Only(*range(3, 15))
    llm.engine.add_request("masked", given[3], SamplingParams(**several), mask=mask)
    found = answers(llm)
    assert found["plain"] == continued(toy, given[0], 12)
    assert found["biased"] == [5] * 12
    assert found["masked"] == list(range(3, 15))
    varied = list(given[2])
    for token in found["varied"]:
        likely, seen = toy.next_token(varied), set(varied[len(given[2]) :])
        allowed = [t for t in range(toy.VOCAB) if t not in seen]
        assert token == (likely if likely in allowed else allowed[0])
        varied.append(token)
    assert len(found["varied"]) == 12
    assert not [r for r in driver.of("copy out") if r.num_bytes > 4 * 24], "logits were read"


def test_a_mask_that_allows_nothing_ends_its_request_alone(llm: LLM, toy: Any) -> None:
    given = prompts(toy, 2)
    several: dict[str, Any] = {"max_tokens": 9, "ignore_eos": True}
    llm.engine.add_request("plain", given[0], SamplingParams(**several))
    llm.engine.add_request("stuck", given[1], SamplingParams(**several), mask=Only(3, 4))
    found: dict[str, list[int | None]] = {}
    errors = {}
    while llm.engine.has_work:
        for output in llm.engine.step():
            found.setdefault(output.request_id, []).append(output.token_id)
            errors[output.request_id] = output.error
    assert found["plain"] == continued(toy, given[0], 9) and errors["plain"] is None
    assert found["stuck"][:2] == [3, 4] and "expected at least one token" in str(errors["stuck"])
