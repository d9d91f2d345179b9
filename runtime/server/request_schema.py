"""What clients may send, as JSON Schema: checked by `schema.check`, published in /openapi.json.

Every field is one that OpenAI's API has, or one of the extras at the end; null means the default.
Fields of OpenAI's that only concern its own service are taken and have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
MAX_IDS = 2**31 - 1


def nullable(schema: Json) -> Json:
    """The same, or null."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    found: Json = {**schema, "type": [*kinds, "null"]}
    if "enum" in schema:
        found["enum"] = [*schema["enum"], None]
    return found


def number(low: float, high: float, text: str) -> Json:
    return nullable({"type": "number", "minimum": low, "maximum": high, "description": text})


def integer(low: int, high: int, text: str) -> Json:
    return nullable({"type": "integer", "minimum": low, "maximum": high, "description": text})


def string(text: str, longest: int = 10_000) -> Json:
    return nullable({"type": "string", "maxLength": longest, "description": text})


def flag(text: str) -> Json:
    return nullable({"type": "boolean", "description": text})


def object_of(properties: Json, required: tuple[str, ...] = (), text: str = "") -> Json:
    """An object with these fields and no others."""
    found: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        found["required"] = list(required)
    if text:
        found["description"] = text
    return found


ANY_OBJECT: Json = {"type": "object", "additionalProperties": True}
IDS: Json = {
    "title": "token ids",
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_IDS},
    "minItems": 1,
}
STOP: Json = nullable(
    {
        "description": "Texts that end the answer; they are not part of it.",
        "anyOf": [
            {"title": "a text", "type": "string", "minLength": 1, "maxLength": 1024},
            {
                "title": "a list of texts",
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 1024},
                "maxItems": 16,
            },
        ],
    }
)
RESPONSE_FORMAT: Json = nullable(
    {
        "type": "object",
        "description": "What the answer must be.",
        "properties": {
            "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
            "json_schema": object_of(
                {
                    "name": {"type": "string", "maxLength": 200},
                    "description": string("For people."),
                    "schema": ANY_OBJECT,
                    "strict": flag("Always so here: the answer fits the schema."),
                },
                ("name",),
            ),
        },
        "required": ["type"],
        "additionalProperties": False,
    }
)
TEXT_PART = object_of(
    {"type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}}, ("type", "text")
)
CONTENT: Json = nullable(
    {
        "anyOf": [
            {"title": "a text", "type": "string"},
            {"title": "a list of text parts", "type": "array", "items": TEXT_PART, "minItems": 1},
        ]
    }
)
TOOL_CALL = object_of(
    {
        "id": {"type": "string", "maxLength": 200},
        "type": {"type": "string", "enum": ["function"]},
        "function": object_of(
            {"name": {"type": "string", "maxLength": 200}, "arguments": {"type": "string"}},
            ("name", "arguments"),
        ),
        "index": {"type": "integer"},
    },
    ("id", "function"),
)
MESSAGE = object_of(
    {
        "role": {
            "type": "string",
            "enum": ["system", "developer", "user", "assistant", "tool"],
        },
        "content": CONTENT,
        "name": string("Who speaks.", 200),
        "tool_calls": nullable({"type": "array", "items": TOOL_CALL, "maxItems": 128}),
        "tool_call_id": string("Which call this answers.", 200),
        "reasoning_content": string("Reasoning of an earlier answer.", 10_000_000),
        "refusal": string("Taken, without effect."),
        "annotations": nullable({"type": "array", "items": ANY_OBJECT}),
    },
    ("role",),
)
TOOL = object_of(
    {
        "type": {"type": "string", "enum": ["function"]},
        "function": object_of(
            {
                "name": {"type": "string", "minLength": 1, "maxLength": 64},
                "description": string("What it does."),
                "parameters": nullable(ANY_OBJECT),
                "strict": flag("Arguments always fit the schema where the call is forced."),
            },
            ("name",),
        ),
    },
    ("type", "function"),
)
TOOL_CHOICE: Json = nullable(
    {
        "anyOf": [
            {
                "title": "none, auto or required",
                "type": "string",
                "enum": ["none", "auto", "required"],
            },
            object_of(
                {
                    "type": {"type": "string", "enum": ["function"]},
                    "function": object_of({"name": {"type": "string"}}, ("name",)),
                },
                ("type", "function"),
            ),
        ]
    }
)
SAMPLING: Json = {
    "temperature": number(0, 2, "0 is greedy."),
    "top_p": {**number(0, 1, "Smallest set of this probability."), "exclusiveMinimum": 0},
    "n": integer(1, 128, "Answers to make."),
    "stop": STOP,
    "seed": integer(-(2**63), 2**63 - 1, "Same seed, same answer, whatever runs beside it."),
    "presence_penalty": number(-2, 2, "Subtracted for tokens seen in the answer."),
    "frequency_penalty": number(-2, 2, "Subtracted for each time they were seen."),
    "logit_bias": nullable(
        {
            "type": "object",
            "description": "Added to logits, by token id.",
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": 1024,
        }
    ),
    "max_tokens": integer(1, MAX_IDS, "Most tokens of an answer."),
    "stream": flag("Send pieces as server-sent events."),
    "stream_options": nullable(
        object_of(
            {
                "include_usage": flag("A last piece with the usage."),
                "include_obfuscation": flag("Taken, without effect."),
            }
        )
    ),
    "user": string("Taken, without effect."),
}
EXTRAS: Json = {
    "top_k": integer(0, MAX_IDS, "Keep the k likeliest tokens; 0 keeps all."),
    "min_p": number(0, 1, "Drop tokens below this share of the likeliest one's probability."),
    "repetition_penalty": nullable(
        {"type": "number", "exclusiveMinimum": 0, "maximum": 10, "description": "1 is none."}
    ),
    "min_tokens": integer(0, MAX_IDS, "No end before so many tokens."),
    "ignore_eos": flag("Do not stop at the model's end token."),
    "stop_token_ids": nullable({**IDS, "minItems": 0, "maxItems": 64}),
    "skip_special_tokens": flag("Leave special tokens out of the text (default true)."),
    "response_format": RESPONSE_FORMAT,
    "regex": string("The answer matches this regular expression.", 65_536),
    "grammar": string("The answer fits this grammar (Lark, as llguidance reads it).", 262_144),
    "priority": integer(-100, 100, "The lower, the more urgent."),
    "cache_salt": string("Prefixes are shared only under the same salt.", 256),
}
SERVICE_ONLY: Json = {
    "metadata": nullable(ANY_OBJECT),
    "store": flag("Taken, without effect."),
    "service_tier": string("Taken, without effect."),
    "safety_identifier": string("Taken, without effect."),
    "prompt_cache_key": string("Taken, without effect: see cache_salt."),
    "prompt_cache_retention": string("Taken, without effect."),
    "reasoning_effort": string("Passed to the template.", 40),
    "verbosity": string("Taken, without effect."),
}


def model_field(name: str) -> Json:
    """There is one model."""
    return {"type": "string", "enum": [name], "description": "The model that is loaded."}


def chat_schema(model: str) -> Json:
    """A request to /v1/chat/completions."""
    return object_of(
        {
            "model": model_field(model),
            "messages": {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": 10_000},
            **SAMPLING,
            "max_completion_tokens": integer(1, MAX_IDS, "Most tokens of an answer."),
            "logprobs": flag("Give the log-probability of each token."),
            "top_logprobs": integer(0, 20, "And those of so many likeliest ones."),
            "tools": nullable({"type": "array", "items": TOOL, "maxItems": 128}),
            "tool_choice": TOOL_CHOICE,
            "parallel_tool_calls": flag("Whether one answer may hold several calls."),
            "chat_template_kwargs": nullable(ANY_OBJECT),
            **EXTRAS,
            **SERVICE_ONLY,
        },
        ("model", "messages"),
    )


def completion_schema(model: str) -> Json:
    """A request to /v1/completions."""
    prompt: Json = {
        "description": "One prompt or several, as text or token ids.",
        "anyOf": [
            {"title": "a text", "type": "string", "minLength": 1},
            {
                "title": "a list of texts",
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": 1,
            },
            IDS,
            {"title": "a list of them", "type": "array", "items": IDS, "minItems": 1},
        ],
    }
    return object_of(
        {
            "model": model_field(model),
            "prompt": prompt,
            **SAMPLING,
            "echo": flag("Put the prompt in front of the answer."),
            "logprobs": integer(0, 20, "Log-probabilities of so many likeliest tokens."),
            "best_of": integer(1, 128, "Has to equal n."),
            "suffix": {"type": "null", "description": "Not available."},
            **EXTRAS,
        },
        ("model", "prompt"),
    )


def tokenize_schema(model: str) -> Json:
    """A request to /tokenize: a prompt or messages."""
    return object_of(
        {
            "model": model_field(model),
            "prompt": {"type": "string", "minLength": 1},
            "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
            "tools": nullable({"type": "array", "items": TOOL, "maxItems": 128}),
            "add_special_tokens": flag("Put the model's first token in front (default true)."),
        }
    )


def detokenize_schema(model: str) -> Json:
    """A request to /detokenize."""
    return object_of(
        {
            "model": model_field(model),
            "tokens": {**IDS, "minItems": 0},
            "skip_special_tokens": flag("Leave special tokens out (default false)."),
        },
        ("tokens",),
    )


def given(body: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A field's value; null and absence are the default."""
    value = body.get(name)
    return default if value is None else value
