"""The endpoints that clients of OpenAI's API know, and tokenize and detokenize."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .delivery import deliver
from .exchange import Exchange
from .gate import Places
from .jobs import Job, chat_job, completion_job, count_of
from .problem import Problem
from .schema import check
from .service import CHARS_PER_TOKEN, Model, Service
from .wire import Client, parse_object


async def read_request(
    service: Service, client: Client, schema: str
) -> tuple[Model, dict[str, Any]]:
    """The model and a body that fits its schema."""
    model = service.loaded()
    settings = service.settings
    raw = await client.body(settings.max_body_bytes, settings.read_timeout)
    body = parse_object(raw)
    _check_model(body, model)
    check(body, model.schemas[schema])
    client.scope["sglk.body_bytes"] = len(raw)
    return model, body


def _check_model(body: Mapping[str, Any], model: Model) -> None:
    name = body.get("model")
    if isinstance(name, str) and name != model.name:
        raise Problem(
            f"model: expected {model.name!r}, got {name!r:.80} (see /v1/models)",
            status=404,
            param="model",
            code="model_not_found",
        )


async def chat_completions(service: Service, client: Client) -> None:
    """POST /v1/chat/completions"""
    model, body = await read_request(service, client, "chat")
    longest = service.settings.default_max_tokens
    await _answer(service, client, model, body, lambda: chat_job(model, body, longest))


async def completions(service: Service, client: Client) -> None:
    """POST /v1/completions"""
    model, body = await read_request(service, client, "completion")
    await _answer(service, client, model, body, lambda: completion_job(model, body))


async def _answer(
    service: Service,
    client: Client,
    model: Model,
    body: Mapping[str, Any],
    make_job: Callable[[], Awaitable[Job]],
) -> None:
    """A place in the queue first, then the work of reading the prompt, then the engine."""
    started = time.monotonic()
    tokens = client.scope["sglk.body_bytes"] // CHARS_PER_TOKEN
    places = Places(model.gate, count_of(body), tokens)
    try:
        job = await make_job()
        for order in job.orders:
            service.metrics.prompt.observe(len(order.prompt))
        exchange = model.exchange(job.orders, places)
        service.streams.add(exchange)
        try:
            await deliver(
                client,
                model.thread,
                exchange,
                job.shape,
                prompt_field=job.prompt_field,
                is_stream=job.is_stream,
                wants_usage=job.wants_usage,
            )
        finally:
            service.streams.discard(exchange)
            _log(service, client, exchange, time.monotonic() - started)
    finally:
        places.close()


def _log(service: Service, client: Client, exchange: Exchange, seconds: float) -> None:
    if exchange.gone == "disconnect":
        service.metrics.disconnects += 1
    service.log.write(
        id=client.scope["sglk.id"],
        path=client.scope["path"],
        prompt_tokens=[len(answer.order.prompt) for answer in exchange.answers],
        cached_tokens=[answer.num_cached for answer in exchange.answers],
        answer_tokens=[answer.num_tokens for answer in exchange.answers],
        reasons=[answer.finish_reason for answer in exchange.answers],
        gone=exchange.gone,
        error=str(exchange.problem) if exchange.problem is not None else None,
        seconds=round(seconds, 4),
    )


async def models(service: Service, client: Client) -> None:
    """GET /v1/models"""
    await client.reply_json({"object": "list", "data": [_card(service.loaded())]})


async def one_model(service: Service, client: Client) -> None:
    """GET /v1/models/{model}"""
    model = service.loaded()
    _check_model({"model": client.scope["path_params"]["model"]}, model)
    await client.reply_json(_card(model))


def _card(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "sglk",
        "max_model_len": model.prompts.context,
    }


async def tokenize(service: Service, client: Client) -> None:
    """POST /tokenize: a prompt, or messages as the chat template writes them."""
    model, body = await read_request(service, client, "tokenize")
    has_prompt, has_messages = "prompt" in body, "messages" in body
    if has_prompt == has_messages:
        got = "both" if has_prompt else "neither"
        raise Problem(
            f"prompt: expected either prompt or messages, got {got}",
            param="prompt",
        )
    if has_messages:
        ids = await model.prompts.of_chat(body["messages"], body.get("tools") or [], {})
    else:
        add_bos = body.get("add_special_tokens") is not False
        ids = await model.prompts.of_text(body["prompt"], add_bos=add_bos)
    reply = {"tokens": ids, "count": len(ids), "max_model_len": model.prompts.context}
    await client.reply_json(reply)


async def detokenize(service: Service, client: Client) -> None:
    """POST /detokenize: token ids to text."""
    model, body = await read_request(service, client, "detokenize")
    tokenizer = model.prompts.needs_tokenizer("tokens")
    if len(body["tokens"]) > model.prompts.context:
        raise Problem(
            f"tokens: expected at most {model.prompts.context}, got {len(body['tokens'])}",
            param="tokens",
        )
    bad = next((token for token in body["tokens"] if token >= model.vocab_size), None)
    if bad is not None:
        raise Problem(f"tokens: expected ids below {model.vocab_size}, got {bad}", param="tokens")
    skip = body.get("skip_special_tokens") is True
    text = tokenizer.decode([int(t) for t in body["tokens"]], skip_special_tokens=skip)
    await client.reply_json({"prompt": text})
