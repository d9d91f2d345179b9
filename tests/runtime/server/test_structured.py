"""Answers that have to fit: schemas, expressions, grammars; one bad grammar harms nobody else."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from sglk.errors import RequestError
from sglk.runtime.server.structured import (
    Grammars,
    json_constraint,
    lark_literal,
    regex_constraint,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def content_of(reply: Any) -> str:
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    text: str = choice["message"]["content"]
    return text


def test_a_schema_is_kept_whatever_the_model_would_say(server: Any) -> None:
    for seed in range(4):
        reply = server.chat(
            temperature=1.5,
            seed=seed,
            max_tokens=400,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON},
            },
        )
        person = json.loads(content_of(reply))
        assert person["name"] in ("Ann", "Bob") and person["age"] <= 9


def test_json_object_is_an_object_or_cut_by_its_length(server: Any) -> None:
    reply = server.chat(max_tokens=60, response_format={"type": "json_object"}, logit_bias={})
    choice = reply.json()["choices"][0]
    assert choice["message"]["content"].lstrip().startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_regex_and_grammar_bind_every_choice_and_completions_too(server: Any) -> None:
    reply = server.chat(regex="[ab]{3}c?", n=3, temperature=1.0, seed=1, max_tokens=20)
    texts = [choice["message"]["content"] for choice in reply.json()["choices"]]
    assert all(re.fullmatch("[ab]{3}c?", text) for text in texts)
    body = {"model": "test", "prompt": "x", "grammar": 'start: "yes" | "no"', "max_tokens": 9}
    choice = server.post("/v1/completions", body).json()["choices"][0]
    assert choice["text"] in ("yes", "no") and choice["finish_reason"] == "stop"


def test_streams_give_the_same_constrained_text(server: Any) -> None:
    ask: Any = {"regex": "(foo|bar) [0-9]{4}", "max_tokens": 40}
    whole = content_of(server.chat(**ask))
    stream = server.chat(stream=True, **ask).text
    chunks = [json.loads(e[6:]) for e in stream.split("\n\n") if e.startswith("data: {")]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "([a"},
        {"regex": "(?<=a)b"},
        {"regex": "(" * 5000},
        {"regex": "(a{1,1000}){1,1000}"},
        {"grammar": "start: missing"},
        {"grammar": "\x00"},
        {"grammar": 'start: "a" start start | start start'},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "x", "schema": {"type": "frob"}}}},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"allOf": [{"type": "string"}, {"type": "integer"}]}}}},
    ],
)  # fmt: skip
def test_a_grammar_that_cannot_be_followed_ends_one_request_only(server: Any, fields: Any) -> None:
    reply = server.chat(**fields)
    assert reply.status_code in (200, 400), reply.text
    if reply.status_code == 400:
        error = reply.json()["error"]
        assert error["param"].split(".")[0] in fields and error["code"] in (
            "invalid_grammar",
            "invalid_value",
        )
    assert server.chat().status_code == 200
    assert server.http.get("/health/live").status_code == 200


def test_a_mask_that_fails_later_ends_its_request_with_an_error(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bad:
        def fill(self, words: Any) -> None:
            raise RequestError("regex: expected a state to go on from, got none")

        def accept(self, token_id: int) -> None:
            raise AssertionError

        def is_terminated(self) -> bool:
            return False

    async def masks(self: Any, constraint: Any, count: int) -> list[Any]:
        return [Bad() for _ in range(count)]

    monkeypatch.setattr(Grammars, "masks", masks)
    reply = server.chat(regex="a")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "regex")
    stream = server.chat(regex="a", stream=True)
    assert stream.status_code == 200
    assert json.loads(stream.text.split("\n\n")[-2][6:])["error"]["param"] == "regex"
    assert server.chat().status_code == 200


def test_grammars_are_compiled_once_and_bounded(serve_tokenizer: Any) -> None:
    grammars = Grammars(serve_tokenizer, serve_tokenizer.backend.get_vocab_size())

    async def compile_many() -> None:
        for at in range(80):
            await grammars.masks(regex_constraint(f"a{{{at + 1}}}"), 1)
        await asyncio.gather(*(grammars.masks(json_constraint(PERSON, "x"), 2) for _ in range(4)))

    asyncio.run(compile_many())
    assert len(grammars._matchers) <= 64
    with pytest.raises(RequestError, match="at most 524288 characters"):
        asyncio.run(grammars.masks(regex_constraint("a" * 600_000), 1))
    grammars.close()


def test_special_tokens_of_a_literal_are_tokens() -> None:
    special = {"<a>": 1, "<a><b>": 2}
    assert lark_literal('x"<a><b>\n', special) == '"x\\"" <[2]> "\\n"'
    assert lark_literal("", special) == ""
