"""The door for programs: generate, chat, stream, stop, abort, refuse."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from sglk.errors import RequestError, SglkError
from sglk.runtime.chat import ChatTemplate
from sglk.runtime.engine import Engine
from sglk.runtime.llm import LLM, Generation
from sglk.runtime.request import SamplingParams
from sglk.runtime.tokenizer import GenerationConfig, Tokenizer

CHAT = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture
def llm(make_engine: Callable[..., Engine], byte_level: tokenizers.Tokenizer) -> LLM:
    """A model that babbles in the byte-level vocabulary; id 1 ends an answer."""
    config = GenerationConfig(eos_token_ids=(1,), bos_token_id=0, add_bos=True)
    tokenizer = Tokenizer(byte_level, config)
    engine = make_engine(
        tokenizer, config, vocab=byte_level.get_vocab_size(), max_context=60, num_pages=65
    )
    return LLM(engine, chat_template=ChatTemplate(CHAT, tokenizer.special_tokens))


def test_one_prompt_one_generation(
    llm: LLM, fake: SimpleNamespace, byte_level: tokenizers.Tokenizer
) -> None:
    found = llm.generate("hello world", max_tokens=12)
    prompt = [0, *byte_level.encode("hello world").ids]
    assert isinstance(found, Generation) and found.finish_reason == "length"
    assert found.token_ids == fake.expected_tokens(prompt, 12, byte_level.get_vocab_size())
    assert str(found) == found.text == byte_level.decode(found.token_ids)
    assert found.num_prompt_tokens == len(prompt)
    assert found.ttft > 0 and len(found.itl) == 11


def test_text_ids_and_arrays_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("hello", context=60) if llm.tokenizer else []
    forms: list[Any] = ["hello", ids, np.array(ids)]
    answers = [llm.generate(form, max_tokens=5) for form in forms]
    assert answers[0].token_ids == answers[1].token_ids == answers[2].token_ids
    many = llm.generate(forms[1:], max_tokens=5)
    assert [each.token_ids for each in many] == [answers[0].token_ids] * 2


def test_a_list_gives_a_list_in_order_and_equals_single_calls(llm: LLM) -> None:
    prompts = [f"hello {word}" for word in ["a", "b", "c", "world", "tests", "你好", "café"]]
    kinds: list[dict[str, Any]] = [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 7}]
    for sampling in kinds:
        together = llm.generate(prompts, max_tokens=9, **sampling)
        alone = [llm.generate(prompt, max_tokens=9, **sampling) for prompt in prompts]
        assert [each.token_ids for each in together] == [each.token_ids for each in alone]
        assert [each.text for each in together] == [each.text for each in alone]


def test_the_same_prompt_twice_gives_two_samples(llm: LLM) -> None:
    first, second = llm.generate(["hello"] * 2, temperature=1.0, seed=3, max_tokens=9)
    assert first.token_ids != second.token_ids
    assert llm.generate("hello", temperature=1.0, seed=3, max_tokens=9).text == first.text


def test_a_drawn_seed_reproduces_the_answer(llm: LLM) -> None:
    first = llm.generate("hello", temperature=1.0, max_tokens=9)
    again = llm.generate("hello", temperature=1.0, max_tokens=9, seed=first.seed)
    assert again.token_ids == first.token_ids


def test_streaming_gives_the_same_text(llm: LLM) -> None:
    whole = llm.generate("hello", max_tokens=40)
    stream = llm.generate("hello", max_tokens=40, stream=True)
    parts = list(stream)
    assert "".join(parts) == whole.text == stream.generation.text
    assert all(parts) and len(parts) > 3
    assert stream.generation.token_ids == whole.token_ids


def test_a_stop_string_is_cut_off_and_frees_the_request(llm: LLM) -> None:
    whole = llm.generate("hello", max_tokens=30).text
    stop = whole[len(whole) // 2 :][:3]
    found = llm.generate("hello", max_tokens=30, stop=[stop, "never to be seen"])
    assert found.text == whole[: whole.index(stop)]
    assert found.finish_reason == "stop"
    stream = llm.generate("hello", max_tokens=30, stop=stop, stream=True)
    assert "".join(stream) == found.text
    assert llm.engine.stats().pages_held == 0 and not llm.engine.has_work


def test_answers_after_a_stop_string_are_unchanged(llm: LLM) -> None:
    """A cache that kept too much or too little after a stop would change them."""
    before = llm.generate("hello tests", max_tokens=20)
    llm.generate("hello tests", max_tokens=30, stop=before.text[3:5])
    assert llm.generate("hello tests", max_tokens=20).token_ids == before.token_ids


def test_a_stop_token_is_in_the_ids_but_not_in_the_text(llm: LLM) -> None:
    whole = llm.generate("hello", max_tokens=10)
    token = whole.token_ids[4]
    found = llm.generate("hello", max_tokens=10, stop_token_ids=[token])
    assert found.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]
    assert found.finish_reason == "stop"
    assert llm.tokenizer is not None
    assert found.text == llm.tokenizer.decode(found.token_ids[:-1])


def test_the_models_end_token_stops_unless_ignored(llm: LLM) -> None:
    forced: dict[str, Any] = {"max_tokens": 3, "logit_bias": {1: 100}}
    assert llm.generate("hello", **forced).finish_reason == "stop"
    ignored = llm.generate("hello", ignore_eos=True, **forced)
    assert (ignored.finish_reason, ignored.token_ids) == ("length", [1, 1, 1])


def test_logprobs_come_with_each_token(llm: LLM) -> None:
    found = llm.generate("hello", max_tokens=4, logprobs=2)
    assert [each.token_id for each in found.logprobs] == found.token_ids
    assert all(each.top[0] == (each.token_id, each.logprob) for each in found.logprobs)
    assert llm.generate("hello", max_tokens=4).logprobs is None


def test_cached_tokens_are_reported(llm: LLM) -> None:
    prompt = "this is a small tokenizer for tests"
    cold, warm = llm.generate(prompt, max_tokens=3), llm.generate(prompt, max_tokens=3)
    salted = llm.generate(prompt, max_tokens=3, cache_salt="other")
    assert cold.num_cached_tokens == salted.num_cached_tokens == 0
    assert warm.num_cached_tokens >= 4 and warm.token_ids == cold.token_ids


def test_an_answer_ends_where_the_context_ends(llm: LLM) -> None:
    for max_tokens in (None, 1000):
        found = llm.generate("hello", max_tokens=max_tokens, ignore_eos=True)
        assert found.num_prompt_tokens + len(found.token_ids) == 60
        assert found.finish_reason == "length"


def test_chat_renders_and_adds_no_second_bos(llm: LLM, byte_level: tokenizers.Tokenizer) -> None:
    talk = [{"role": "user", "content": "hello"}]
    ids = llm.chat_ids(talk)
    assert ids == byte_level.encode("<|im_start|>hello<|im_end|>").ids
    found = llm.chat(talk, max_tokens=5)
    assert found.token_ids == llm.generate(ids, max_tokens=5).token_ids
    assert "".join(llm.chat(talk, max_tokens=5, stream=True)) == found.text


def test_closing_a_stream_aborts_and_frees(llm: LLM) -> None:
    with llm.generate("hello", max_tokens=40, stream=True) as stream:
        next(stream)
    assert stream.generation.finish_reason == "abort"
    assert not llm.engine.has_work and llm.engine.stats().pages_held == 0


def test_a_forgotten_stream_is_dropped_by_the_next_step(llm: LLM) -> None:
    stream = llm.generate("hello", max_tokens=40, stream=True)
    next(stream)
    del stream
    gc.collect()
    llm.generate("world", max_tokens=2)
    assert not llm.engine.has_work


def test_streams_may_be_read_in_turns_and_nested(llm: LLM) -> None:
    expected = [llm.generate(p, max_tokens=15).text for p in ("hello", "world")]
    first = llm.generate("hello", max_tokens=15, stream=True)
    second = llm.generate("world", max_tokens=15, stream=True)
    texts = ["", ""]
    for piece in first:
        texts[0] += piece
        llm.generate("inner", max_tokens=2)
        texts[1] += next(second, "")
    texts[1] += "".join(second)
    assert texts == expected


def test_threads_share_a_model(llm: LLM) -> None:
    words = ["hello", "world", "tests", "café", "small", "family", "naïve"]
    expected = [llm.generate(word, max_tokens=12).text for word in words]
    found: dict[str, str] = {}

    def work(word: str) -> None:
        found[word] = llm.generate(word, max_tokens=12).text

    threads = [threading.Thread(target=work, args=(word,)) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[word] for word in words] == expected


def test_a_failed_step_leaves_a_working_model(llm: LLM) -> None:
    device: Any = llm.engine._executor.executable
    expected = llm.generate("hello", max_tokens=5).text
    device.failures = 1
    with pytest.raises(OSError, match="the device is gone"):
        llm.generate(["hello", "world"], max_tokens=5)
    assert not llm.engine.has_work and llm.engine.stats().pages_held == 0
    assert llm.generate("hello", max_tokens=5).text == expected


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ("", {}, "prompt: expected at least one character"),
        ([], {}, "prompt: expected text, token ids or a list of them"),
        ([[]], {}, "prompt: expected at least one token, got none"),
        ([5, 340], {}, r"prompt: expected ids in \[0, \d+\), got 340"),
        ([-1], {}, r"prompt: expected ids in \[0, \d+\), got -1"),
        ([1, 2.5], {}, r"prompt: expected token ids, got \[1, 2.5\]"),
        ([1, [2]], {}, "prompt: expected token ids"),
        ([None], {}, "prompt: expected token ids|prompt: expected at least one token"),
        (None, {}, "prompt: expected text, token ids or a list of them, got None"),
        ([3] * 60, {}, r"prompt: expected fewer tokens than the context of 60, got 60"),
        ("hello " * 60, {}, r"prompt: expected fewer tokens than the context of 60, got \d+"),
        ("x" * 10_000_000, {}, "prompt: expected text that fits the context of 60 tokens"),
        ("hello", {"temprature": 1}, "temprature: no such sampling value"),
        ("hello", {"temperature": -1}, "temperature: expected a number >= 0, got -1"),
        ("hello", {"logit_bias": {999: 1}}, "logit_bias: expected ids below .*, got 999"),
        ("hello", {"stop_token_ids": [999]}, "stop_token_ids: expected ids below .*, got 999"),
        (["a", "b"], {"stream": True}, "stream: expected one prompt, got a list of 2"),
        ("hello", {"params": SamplingParams(), "top_k": 1}, "params: expected either"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(
    llm: LLM, prompt: Any, sampling: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=f"^{message}") as error:
        llm.generate(prompt, **sampling)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    assert not llm.engine.has_work


def test_a_bad_prompt_in_a_list_queues_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError, match="expected fewer tokens"):
        llm.generate([[1, 2], [3] * 60])
    assert not llm.engine.has_work and not llm._pending


def test_without_a_tokenizer_there_are_only_ids(make_engine: Callable[..., Engine]) -> None:
    llm = LLM(make_engine())
    assert len(llm.generate([1, 2, 3], max_tokens=4).token_ids) == 4
    with pytest.raises(RequestError, match="prompt: expected token ids, got text"):
        llm.generate("hello")
    with pytest.raises(RequestError, match="stop: expected stop_token_ids, got strings"):
        llm.generate([1], stop="x")
    with pytest.raises(RequestError, match="chat: the artifact has no chat template"):
        llm.chat([{"role": "user", "content": "x"}])


def test_a_closed_model_refuses(llm: LLM) -> None:
    stream = llm.generate("hello", stream=True)
    with llm:
        pass
    llm.close()
    assert stream.generation.finish_reason == "abort"
    assert llm.engine._executor.executable.is_closed  # type: ignore[attr-defined]
    with pytest.raises(SglkError, match="llm: expected an open model"):
        llm.generate("hello")
