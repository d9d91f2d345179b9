"""A checked request body to what the engine is asked for and how its answers will look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..request import SamplingParams
from ..token_mask import TokenMask
from .call_parser import CallParser
from .chat_shape import ChatShape
from .completion_shape import CompletionShape
from .delivery import Shape
from .exchange import Order
from .problem import Problem
from .request_schema import given
from .sampling import sampling_params
from .service import Model
from .structured import Constraint, json_constraint, lark_constraint, regex_constraint
from .tool_grammar import call_grammar

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; chats go on until the context is full."""


@dataclass(frozen=True)
class Job:
    """One request, ready to be submitted."""

    orders: list[Order]
    shape: Shape
    prompt_field: str
    is_stream: bool
    wants_usage: bool


def count_of(body: Mapping[str, Any]) -> int:
    """Answers that a request asks for: ``n`` for each prompt."""
    prompt = body.get("prompt")
    has_several = isinstance(prompt, list) and isinstance(prompt[0], str | list)
    return int(given(body, "n", 1)) * (len(prompt) if has_several and prompt else 1)


async def chat_job(model: Model, body: Mapping[str, Any], default_max_tokens: int | None) -> Job:
    """A chat completion."""
    tools, choice = _tools(model, body)
    constraint = _constraint(body)
    form = model.prompts.call_format
    if tools and form is not None and choice not in ("none", "auto"):
        if constraint is not None:
            raise _both("tool_choice", constraint.param)
        functions = [tool["function"] for tool in tools if choice in ("required", _name(tool))]
        is_parallel = given(body, "parallel_tool_calls", True) and choice == "required"
        constraint = call_grammar(form, functions, model.special, is_parallel=is_parallel)
    variables = dict(given(body, "chat_template_kwargs", {}))
    if given(body, "reasoning_effort") is not None:
        variables["reasoning_effort"] = body["reasoning_effort"]
    ids = await model.prompts.of_chat(body["messages"], tools, variables)
    max_tokens = given(body, "max_completion_tokens", given(body, "max_tokens"))
    params = sampling_params(
        body,
        recommended=model.llm.recommended,
        max_tokens=default_max_tokens if max_tokens is None else int(max_tokens),
        logprobs=_chat_logprobs(body),
        keeps_special=bool(tools),
    )
    names = [_name(tool) for tool in tools]
    wants_usage = _wants_usage(body)
    shape = ChatShape(
        model.name,
        model.token_text,
        has_logprobs=params.logprobs is not None,
        wants_usage=wants_usage,
        make_parser=(lambda: CallParser(form, names)) if tools and form is not None else None,
    )
    orders = await _orders(model, body, [ids], params, constraint)
    return Job(orders, shape, "messages", bool(given(body, "stream", False)), wants_usage)


async def completion_job(model: Model, body: Mapping[str, Any]) -> Job:
    """A text completion."""
    n = int(given(body, "n", 1))
    if int(given(body, "best_of", n)) != n:
        raise Problem("best_of: expected the value of n, got another", param="best_of")
    wants_logprobs = given(body, "logprobs")
    if given(body, "echo", False) and wants_logprobs is not None:
        raise Problem(
            "logprobs: expected none beside echo, got some (those of a prompt are not computed)",
            param="logprobs",
        )
    prompts = await _prompts(model, body["prompt"])
    params = sampling_params(
        body,
        recommended=model.llm.recommended,
        max_tokens=int(given(body, "max_tokens", COMPLETION_MAX_TOKENS)),
        logprobs=None if wants_logprobs is None else int(wants_logprobs),
    )
    wants_usage = _wants_usage(body)
    shape = CompletionShape(
        model.name,
        model.token_text,
        has_logprobs=wants_logprobs is not None,
        wants_usage=wants_usage,
        echoes=_echoes(model, body, prompts, n) if given(body, "echo", False) else [],
    )
    orders = await _orders(model, body, prompts, params, _constraint(body))
    return Job(orders, shape, "prompt", bool(given(body, "stream", False)), wants_usage)


async def _orders(
    model: Model,
    body: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    constraint: Constraint | None,
) -> list[Order]:
    """``n`` answers to each prompt; equal prompts draw different samples of the seed."""
    _check_room(model, body, max(map(len, prompts)))
    n = int(given(body, "n", 1))
    count = n * len(prompts)
    masks: Sequence[TokenMask | None] = [None] * count
    if constraint is not None:
        masks = await model.grammars.masks(constraint, count)
    salt, priority = given(body, "cache_salt", ""), int(given(body, "priority", 0))
    seen: dict[tuple[int, ...], int] = {}
    orders = []
    for at, mask in enumerate(masks):
        prompt = prompts[at // n]
        key = tuple(prompt)
        sample = seen[key] = seen.get(key, -1) + 1
        orders.append(Order(prompt, params, sample, salt, priority, mask))
    return orders


def _check_room(model: Model, body: Mapping[str, Any], longest: int) -> None:
    """Refuse an answer that is asked to be longer than the context leaves; a default is cut."""
    room = model.prompts.context - longest
    is_newer = given(body, "max_completion_tokens") is not None
    name = "max_completion_tokens" if is_newer else "max_tokens"
    asked = int(given(body, name, 0))
    if 0 < room < asked:
        raise Problem(
            f"{name}: expected at most {room} beside a prompt of {longest} tokens in a "
            f"context of {model.prompts.context}, got {asked} (lower it, or leave it out)",
            param=name,
            code="context_length_exceeded",
            reason="too_long",
        )


async def _prompts(model: Model, prompt: Any) -> list[Sequence[int]]:
    """Token ids of each prompt of a completion."""
    if isinstance(prompt, str):
        return [await model.prompts.of_text(prompt)]
    if not isinstance(prompt[0], str | list):
        return [_ids(prompt)]
    return [_ids(p) if isinstance(p, list) else await model.prompts.of_text(p) for p in prompt]


def _ids(prompt: list[float]) -> list[int]:
    """JSON has one kind of number: 3.0 is a whole one too."""
    return [int(token) for token in prompt]


def _echoes(
    model: Model, body: Mapping[str, Any], prompts: Sequence[Sequence[int]], n: int
) -> list[str]:
    """The text of each choice's prompt: what was sent, or what its ids stand for."""
    given_prompt = body["prompt"]
    texts = given_prompt if isinstance(given_prompt, list) else [given_prompt]
    if isinstance(texts[0], str):
        return [text for text in texts for _ in range(n)]
    tokenizer = model.prompts.needs_tokenizer("echo")
    return [tokenizer.decode(ids) for ids in prompts for _ in range(n)]


def _wants_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    if options is not None and not given(body, "stream", False):
        raise Problem(
            "stream_options: expected it beside stream=true only, got it without",
            param="stream_options",
        )
    return bool(options and given(options, "include_usage", False))


def _chat_logprobs(body: Mapping[str, Any]) -> int | None:
    top = body.get("top_logprobs")
    if not given(body, "logprobs", False):
        if top:
            raise Problem(
                "top_logprobs: expected it beside logprobs=true only, got it without",
                param="top_logprobs",
            )
        return None
    return int(top or 0)


def _tools(model: Model, body: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str]:
    """The tools that the model is told of, and the choice: none, auto, required or a name."""
    tools: list[Mapping[str, Any]] = given(body, "tools", [])
    raw = given(body, "tool_choice", "auto")
    choice = raw if isinstance(raw, str) else raw["function"]["name"]
    if not tools:
        if choice not in ("none", "auto"):
            raise Problem("tool_choice: expected tools beside it, got none", param="tool_choice")
        return [], "none"
    if choice == "none":
        return [], "none"
    if model.prompts.call_format is None:
        raise Problem(
            "tools: expected none, got some; this model's chat template has no tool calls "
            "(use response_format for JSON)",
            param="tools",
            code="tools_not_supported",
        )
    names = [_name(tool) for tool in tools]
    if choice not in ("auto", "required", *names):
        raise Problem(
            f"tool_choice: expected one of the tools, got {choice!r:.80}", param="tool_choice"
        )
    return tools, choice


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _constraint(body: Mapping[str, Any]) -> Constraint | None:
    """What the answer has to fit; at most one field may say so."""
    found = []
    wanted = given(body, "response_format", {"type": "text"})
    if wanted["type"] == "json_object":
        found.append(json_constraint({"type": "object"}, "response_format"))
    elif wanted["type"] == "json_schema":
        schema = (wanted.get("json_schema") or {}).get("schema")
        param = "response_format.json_schema.schema"
        if schema is None:
            raise Problem(
                f"{param}: expected a schema, got none",
                param=param,
                code="missing_required_parameter",
            )
        found.append(json_constraint(schema, param))
    if given(body, "regex") is not None:
        found.append(regex_constraint(body["regex"]))
    if given(body, "grammar") is not None:
        found.append(lark_constraint(body["grammar"]))
    if len(found) > 1:
        raise _both(found[1].param, found[0].param)
    return found[0] if found else None


def _both(param: str, other: str) -> Problem:
    return Problem(f"{param}: expected no {other} beside it, got both", param=param)
