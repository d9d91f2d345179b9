"""SmolLM2 behind the server: the same text streamed or not, alone or among others, constrained."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

pytestmark = pytest.mark.slow
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url(smollm2_artifact: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sglk", "serve", str(smollm2_artifact), "--port", "0",
         "--model-name", "smollm2"],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with httpx2.Client(base_url=address, timeout=60) as http:
        while http.get("/health/ready").status_code != 200:
            assert process.poll() is None
    yield address
    process.terminate()
    process.communicate(timeout=60)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused-key", timeout=120) as client:
        yield client


def test_it_answers_and_streams_the_same(client: openai.OpenAI) -> None:
    ask: Any = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    assert "Paris" in str(whole)
    pieces = client.chat.completions.create(**ask, stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == whole


def test_the_same_greedy_request_alone_and_among_others(url: str, client: openai.OpenAI) -> None:
    ask: Any = {"model": "smollm2", "temperature": 0, "max_tokens": 10}
    alone = client.completions.create(prompt="The story of number 7 began", **ask)

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused-key") as many:
            asked = (
                many.completions.create(prompt=f"The story of number {at} began", **ask)
                for at in range(33)
            )
            return [each.choices[0].text for each in await asyncio.gather(*asked)]

    texts = asyncio.run(together())
    assert texts[7] == alone.choices[0].text


def test_a_schema_binds_a_real_vocabulary(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Invent a person, as JSON."}],
        temperature=0,
        max_tokens=120,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON},
        },
    )
    assert answer.choices[0].finish_reason == "stop"
    person = json.loads(str(answer.choices[0].message.content))
    assert set(person) == {"name", "age"} and isinstance(person["age"], int)


def test_text_comes_back_from_its_tokens(url: str) -> None:
    with httpx2.Client(base_url=url, timeout=60) as http:
        text = "naïve café — 你好 🙂"
        tokens = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == text
