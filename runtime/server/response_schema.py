"""What the server sends, as JSON Schema for /openapi.json; tests hold responses to it."""

from __future__ import annotations

from typing import Any

from .request_schema import ANY_OBJECT, TOOL_CALL, nullable, object_of

Json = dict[str, Any]
TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
REASON: Json = {"type": "string", "enum": ["stop", "length", "tool_calls"]}


def whole(properties: Json) -> Json:
    """An object in which every field is always there."""
    return object_of(properties, tuple(properties))


def listed(items: Json) -> Json:
    """A list of these."""
    return {"type": "array", "items": items}


ERROR = whole(
    {
        "error": whole(
            {
                "message": TEXT,
                "type": TEXT,
                "param": nullable(TEXT),
                "code": nullable(TEXT),
            }
        )
    }
)
USAGE = whole(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": whole({"cached_tokens": COUNT}),
    }
)
_ENTRY: Json = {"token": TEXT, "logprob": {"type": "number"}, "bytes": listed(COUNT)}
CHAT_LOGPROBS = nullable(
    whole(
        {
            "content": listed(whole({**_ENTRY, "top_logprobs": listed(whole(_ENTRY))})),
            "refusal": {"type": "null"},
        }
    )
)
CHAT_MESSAGE = object_of(
    {
        "role": {"type": "string", "enum": ["assistant"]},
        "content": nullable(TEXT),
        "refusal": {"type": "null"},
        "tool_calls": listed(TOOL_CALL),
    },
    ("role", "content", "refusal"),
)
_HEAD: Json = {"id": TEXT, "created": COUNT, "model": TEXT, "system_fingerprint": {"type": "null"}}
CHAT = whole(
    {
        **_HEAD,
        "object": {"type": "string", "enum": ["chat.completion"]},
        "choices": listed(
            whole(
                {
                    "index": COUNT,
                    "message": CHAT_MESSAGE,
                    "logprobs": CHAT_LOGPROBS,
                    "finish_reason": REASON,
                }
            )
        ),
        "usage": USAGE,
    }
)
COMPLETION = whole(
    {
        **_HEAD,
        "object": {"type": "string", "enum": ["text_completion"]},
        "choices": listed(
            whole(
                {
                    "index": COUNT,
                    "text": TEXT,
                    "logprobs": nullable(
                        whole(
                            {
                                "tokens": listed(TEXT),
                                "token_logprobs": listed({"type": "number"}),
                                "top_logprobs": listed(ANY_OBJECT),
                                "text_offset": listed(COUNT),
                            }
                        )
                    ),
                    "finish_reason": REASON,
                }
            )
        ),
        "usage": USAGE,
    }
)
CARD = whole(
    {
        "id": TEXT,
        "object": {"type": "string", "enum": ["model"]},
        "created": COUNT,
        "owned_by": TEXT,
        "max_model_len": COUNT,
    }
)
MODELS = whole({"object": {"type": "string", "enum": ["list"]}, "data": listed(CARD)})
TOKENS = whole({"tokens": listed(COUNT), "count": COUNT, "max_model_len": COUNT})
PROMPT = whole({"prompt": TEXT})
LIVE = whole({"status": TEXT, "detail": TEXT})
READY = object_of(
    {"status": TEXT, "detail": TEXT, "startup_seconds": {"type": "number"}}, ("status", "detail")
)
DEGRADED = whole(
    {
        "degraded": {"type": "boolean"},
        "reasons": listed(whole({"reason": TEXT, "detail": TEXT})),
    }
)
FLUSHED = whole({"flushed_pages": COUNT})
STATUS = object_of({"status": TEXT, "under_way": COUNT}, ("status",))
REQUESTS = whole(
    {
        "requests": listed(
            whole(
                {
                    "id": TEXT,
                    "prompt_tokens": COUNT,
                    "answer_tokens": COUNT,
                    "priority": {"type": "integer"},
                    "has_started": {"type": "boolean"},
                    "is_blocked": {"type": "boolean"},
                }
            )
        )
    }
)
