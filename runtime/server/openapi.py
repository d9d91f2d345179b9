"""The OpenAPI 3.1 document of a running server: the very schemas that requests are checked with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import __version__
from . import response_schema as response

Json = dict[str, Any]
_REFUSALS = {
    "400": "A field is wrong; `param` names it.",
    "401": "No valid key.",
    "404": "No such model.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "429": "The queue is full; `Retry-After` says when to come again.",
    "431": "The headers are too large.",
    "500": "A fault of the server.",
    "503": "Starting or shutting down.",
    "504": "A time limit was hit.",
}


def document(schemas: Mapping[str, Mapping[str, Any]], model: str, has_keys: bool) -> Json:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sglk",
            "version": __version__,
            "description": f"OpenAI's API for {model}, and the server's own endpoints.",
        },
        "paths": _paths(schemas, has_keys),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": response.ERROR},
        },
    }


def _paths(schemas: Mapping[str, Mapping[str, Any]], has_keys: bool) -> Json:
    user: list[Json] = [{"key": []}] if has_keys else []
    admin: list[Json] = [{"key": []}]
    return {
        "/v1/chat/completions": _post(
            "Answer a conversation", schemas["chat"], response.CHAT, user, is_stream=True
        ),
        "/v1/completions": _post(
            "Continue a text", schemas["completion"], response.COMPLETION, user, is_stream=True
        ),
        "/v1/models": _get("The model that is loaded", response.MODELS, user),
        "/v1/models/{model}": {
            **_get("One model", response.CARD, user, "404"),
            "parameters": [
                {"name": "model", "in": "path", "required": True,
                 "schema": {"type": "string", "minLength": 1}}
            ],
        },
        "/tokenize": _post("Text to token ids", schemas["tokenize"], response.TOKENS, user),
        "/detokenize": _post("Token ids to text", schemas["detokenize"], response.PROMPT, user),
        "/health/live": _get("Is it alive", response.LIVE, [], "503", response.LIVE),
        "/health/ready": _get("May it be asked", response.READY, [], "503", response.READY),
        "/health/degraded": _get("What needs a look", response.DEGRADED, []),
        "/metrics": {
            "get": {
                "summary": "Prometheus metrics",
                "responses": {"200": {"description": "Text.", "content": _text()}},
            }
        },
        "/flush_cache": _post("Forget cached prefixes", None, response.FLUSHED, admin),
        "/admin/requests": _get("What is under way", response.REQUESTS, admin, "403"),
        "/admin/drain": _post("Refuse new requests", None, response.STATUS, admin),
        "/admin/resume": _post("Take requests again", None, response.STATUS, admin),
    }  # fmt: skip


def _post(
    summary: str,
    body: Mapping[str, Any] | None,
    reply: Json,
    security: list[Json],
    *,
    is_stream: bool = False,
) -> Json:
    content: Json = {"application/json": {"schema": reply}}
    if is_stream:
        content["text/event-stream"] = {"schema": response.TEXT}
    codes = {**_REFUSALS, "403": "Not this key."}
    operation: Json = {
        "summary": summary,
        "responses": {"200": {"description": "Done.", "content": content}, **_errors(codes)},
    }
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return {"post": _secured(operation, security)}


def _get(
    summary: str,
    reply: Json,
    security: list[Json],
    other: str | None = None,
    other_reply: Json | None = None,
) -> Json:
    codes = {"401": _REFUSALS["401"], "431": _REFUSALS["431"], "503": _REFUSALS["503"]}
    responses = {"200": {"description": "Done.", "content": _json(reply)}, **_errors(codes)}
    if other is not None:
        schema = other_reply or _ref()
        responses[other] = {"description": "Not so.", "content": _json(schema)}
    return {"get": _secured({"summary": summary, "responses": responses}, security)}


def _secured(operation: Json, security: list[Json]) -> Json:
    return {**operation, "security": security} if security else operation


def _errors(codes: Mapping[str, str]) -> Json:
    return {code: {"description": text, "content": _json(_ref())} for code, text in codes.items()}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _text() -> Json:
    return {"text/plain": {"schema": response.TEXT}}


def _ref() -> Json:
    return {"$ref": "#/components/schemas/Error"}
