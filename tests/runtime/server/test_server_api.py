"""The API by its official client and by hand: every field has its effect, or is refused by name."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "hello"}]


def test_the_official_client_chats(server: Any) -> None:
    answer = server.openai.chat.completions.create(
        model="test", messages=MESSAGES, temperature=0, max_completion_tokens=8
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_streaming_and_not_give_the_same_text(server: Any) -> None:
    for text in ("hello", "naïve café", "世界 🙂"):
        messages: Any = [{"role": "user", "content": text}]
        whole = server.openai.chat.completions.create(
            model="test", messages=messages, temperature=0.9, seed=3, max_tokens=40, n=2
        )
        pieces = ["", ""]
        reasons: list[Any] = [None, None]
        stream = server.openai.chat.completions.create(
            model="test", messages=messages, temperature=0.9, seed=3, max_tokens=40, n=2,
            stream=True, stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = list(stream)
        assert len({chunk.id for chunk in chunks}) == 1
        for chunk in chunks:
            for choice in chunk.choices:
                pieces[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        assert pieces == [choice.message.content for choice in whole.choices]
        assert reasons == [choice.finish_reason for choice in whole.choices]
        assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage.model_copy(
            update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
        )
        assert all(chunk.usage is None for chunk in chunks[:-1])


def test_the_async_client_gets_the_same_answers(server: Any) -> None:
    async def ask() -> tuple[list[str], str]:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused-key")
        async with client:
            many = await asyncio.gather(
                *(
                    client.completions.create(
                        model="test", prompt=f"prompt {at}", max_tokens=12, temperature=0
                    )
                    for at in range(33)
                )
            )
            alone = await client.completions.create(
                model="test", prompt="prompt 7", max_tokens=12, temperature=0
            )
        return [answer.choices[0].text for answer in many], alone.choices[0].text

    together, alone = asyncio.run(ask())
    assert len(set(together)) > 20
    assert together[7] == alone


def test_a_stream_without_usage_ends_with_done(server: Any) -> None:
    body = {"model": "test", "messages": MESSAGES, "stream": True, "max_tokens": 3}
    reply = server.post("/v1/chat/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("usage" not in chunk for chunk in chunks)
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "length"


def test_completions_take_lists_ids_and_echo(server: Any) -> None:
    tokens = server.post("/tokenize", {"prompt": "hello world"}).json()["tokens"]
    complete = server.openai.completions.create
    texts = complete(
        model="test", prompt=["hello world", "other"], max_tokens=5, temperature=0, n=2, echo=True
    )
    by_ids = complete(model="test", prompt=[tokens], max_tokens=5, temperature=0, echo=True)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert texts.choices[0].text.startswith("hello world")
    assert texts.choices[2].text.startswith("other")
    assert by_ids.choices[0].text == texts.choices[0].text == texts.choices[1].text
    assert texts.usage is not None and texts.usage.completion_tokens == 20
    assert texts.usage.prompt_tokens == len(tokens) + len(
        server.post("/tokenize", {"prompt": "other"}).json()["tokens"]
    )


def test_whole_numbers_may_have_a_point(server: Any) -> None:
    ask = {"model": "test", "prompt": [5, 6], "max_tokens": 3, "temperature": 0}
    plain = server.post("/v1/completions", ask).json()
    pointed = {**ask, "prompt": [5.0, 6.0], "max_tokens": 3.0, "n": 1.0, "stop_token_ids": [339.0]}
    assert server.post("/v1/completions", pointed).json()["choices"] == plain["choices"]


def test_completions_default_to_sixteen_tokens(server: Any) -> None:
    answer = server.openai.completions.create(
        model="test", prompt="x", extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 16


def test_equal_prompts_and_n_draw_different_samples(server: Any) -> None:
    ask = {"model": "test", "temperature": 1.5, "seed": 5, "max_tokens": 12}
    four = server.post("/v1/completions", {**ask, "prompt": ["a", "a"], "n": 2}).json()["choices"]
    again = server.post("/v1/completions", {**ask, "prompt": "a", "n": 4}).json()["choices"]
    texts = [choice["text"] for choice in four]
    assert len(set(texts)) == 4
    assert texts == [choice["text"] for choice in again]


def test_logprobs_have_bytes_and_alternatives(server: Any) -> None:
    answer = server.openai.chat.completions.create(
        model="test", messages=MESSAGES, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 4
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob
        assert bytes(token.bytes).decode("utf-8", "replace") == token.token
    assert math.isclose(
        content[0].logprob,
        server.chat(max_tokens=4, logprobs=True).json()["choices"][0]["logprobs"]["content"][0][
            "logprob"
        ],
    )


def test_streamed_logprobs_are_those_of_the_whole(server: Any) -> None:
    ask: Any = {"logprobs": True, "top_logprobs": 1, "max_tokens": 30}
    whole = server.chat("héllo", **ask).json()["choices"][0]["logprobs"]["content"]
    stream = server.chat("héllo", stream=True, **ask).text
    chunks = [json.loads(e[6:]) for e in stream.split("\n\n") if e.startswith("data: {")]
    found = [
        token
        for chunk in chunks
        for choice in chunk["choices"]
        for token in (choice["logprobs"] or {}).get("content", [])
    ]
    assert found == whole


def test_completion_logprobs_have_the_older_form(server: Any) -> None:
    answer = server.openai.completions.create(
        model="test", prompt="hello", max_tokens=3, temperature=0, logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 3
    assert logprobs.text_offset[0] == 0


def test_stop_logit_bias_and_ends_have_their_effect(server: Any) -> None:
    plain = server.chat(max_tokens=24).json()["choices"][0]["message"]["content"]
    stop = plain[5:8]
    stopped = server.chat(max_tokens=24, stop=[stop]).json()["choices"][0]
    assert stopped["message"]["content"] == plain[: plain.index(stop)]
    assert stopped["finish_reason"] == "stop"
    forced = server.chat(max_tokens=3, logit_bias={"40": 100}).json()["choices"][0]["message"]
    assert forced["content"] == server.post("/detokenize", {"tokens": [40] * 3}).json()["prompt"]
    ended = server.chat(max_tokens=9, logit_bias={"3": 100}).json()
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["choices"][0]["message"]["content"] == ""
    longer = server.chat(max_tokens=9, logit_bias={"3": 100}, min_tokens=4).json()
    assert longer["usage"]["completion_tokens"] == 5


def test_null_is_the_default_and_service_fields_have_no_effect(server: Any) -> None:
    plain = server.chat().json()["choices"]
    fields = {"top_p": None, "stop": None, "n": None, "tools": None, "seed": None}
    service = {"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"}
    assert server.chat(**fields, **service).json()["choices"] == plain


def test_tokenize_and_detokenize_are_inverse(server: Any) -> None:
    for text in ("hello world", "你好，世界 🙂", "a\n\tb"):
        tokens = server.post("/tokenize", {"prompt": text}).json()
        assert tokens["count"] == len(tokens["tokens"])
        assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"] == text
    chat = server.post("/tokenize", {"messages": MESSAGES}).json()
    assert chat["count"] == server.chat().json()["usage"]["prompt_tokens"]
    assert server.post("/tokenize", {"prompt": "a", "messages": MESSAGES}).status_code == 400


def test_models_are_listed(server: Any) -> None:
    assert [model.id for model in server.openai.models.list()] == ["test"]
    assert server.openai.models.retrieve("test").owned_by == "sglk"
    with pytest.raises(openai.NotFoundError, match="expected 'test'"):
        server.openai.models.retrieve("other")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": -1}, "temperature", "invalid_type"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_type"),
        ({"n": 0}, "n", "invalid_type"),
        ({"n": True}, "n", "invalid_type"),
        ({"n": 17}, "n", None),
        ({"max_tokens": 0}, "max_tokens", "invalid_type"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
        ({"frobnicate": 1}, "frobnicate", "unrecognized_request_argument"),
        ({"functions": []}, "functions", "unrecognized_request_argument"),
        ({"messages": []}, "messages", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role", "invalid_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "invalid_type",
        ),
        ({"stop": [""]}, "stop[0]", "invalid_type"),
        ({"stop": ["x"] * 17}, "stop", "invalid_type"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"min_tokens": 9}, "min_tokens", "invalid_value"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools",
         "tools_not_supported"),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema",
         "missing_required_parameter"),
        ({"regex": "([a"}, "regex", "invalid_grammar"),
        ({"grammar": "start: nothing"}, "grammar", "invalid_grammar"),
        ({"regex": "a", "grammar": 'start: "a"'}, "grammar", None),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools", None),
        ({"priority": 101}, "priority", "invalid_type"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(server: Any, fields: Any, param: str, code: str | None) -> None:
    reply = server.chat(**fields)
    error = reply.json()["error"]
    assert reply.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["code"]) == (param, code), error
    assert error["message"].startswith(f"{param}:")


def test_an_unknown_model_is_not_found(server: Any) -> None:
    reply = server.post("/v1/completions", {"model": "gpt", "prompt": "x"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"prompt": ["x"] * 17}, "n"),
    ],
)
def test_a_bad_completion_field_is_named(server: Any, fields: Any, param: str) -> None:
    reply = server.post("/v1/completions", {"model": "test", "prompt": "x", **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param, reply.text


def test_a_prompt_longer_than_the_context_is_refused_with_the_reason(server: Any) -> None:
    for text in ("x" * 5000, "x" * 3_000_000):
        reply = server.chat(text)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "messages"), error
        assert error["code"] == "context_length_exceeded" and "4096" in error["message"]
    assert server.metric('sglk_refusals_total{reason="too_long"}') >= 2
    assert server.chat().status_code == 200


def test_an_answer_longer_than_the_context_leaves_is_refused_by_its_field(server: Any) -> None:
    for path, name in (
        ("/v1/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
    ):
        body = {"model": "test", "prompt": [1] * 10, name: 4087}
        if "chat" in path:
            del body["prompt"]
            body["messages"] = [{"role": "user", "content": "hello"}]
        error = server.post(path, body).json()["error"]
        assert (error["param"], error["code"]) == (name, "context_length_exceeded"), error
    body = {"model": "test", "prompt": [1] * 4090, "ignore_eos": True}
    cut = server.post("/v1/completions", body).json()  # the default of 16 is nobody's wish
    assert cut["usage"]["completion_tokens"] == 6
    assert cut["choices"][0]["finish_reason"] == "length"


def test_paths_and_methods_that_are_not_there(server: Any) -> None:
    assert server.http.get("/nope").json()["error"]["code"] == "not_found"
    reply = server.http.get("/v1/completions")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


def test_each_response_has_an_id_and_keeps_the_clients_own(server: Any) -> None:
    assert server.http.get("/health/live").headers["x-request-id"].startswith("req_")
    reply = server.http.get("/health/live", headers={"x-request-id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    reply = server.http.get("/health/live", headers={"x-request-id": "a b\tc"})
    assert reply.headers["x-request-id"].startswith("req_")
