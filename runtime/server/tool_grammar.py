"""A grammar for answers that have to be tool calls, in the template's own format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .call_format import CallFormat
from .structured import Constraint, lark_constraint, lark_literal

_ANY_OBJECT = {"type": "object"}


def call_grammar(
    form: CallFormat,
    functions: Sequence[Mapping[str, Any]],
    special: dict[str, int],
    *,
    is_parallel: bool,
) -> Constraint:
    """One call or more of one of the functions; arguments fit their schemas."""

    def literal(text: str) -> str:
        return lark_literal(text, special)

    rules = [
        f"call_{at}: {literal(function['name'] + form.middle)} args_{at}\n"
        f"args_{at}: %json {json.dumps(function.get('parameters') or _ANY_OBJECT)}"
        for at, function in enumerate(functions)
    ]
    calls = " | ".join(f"call_{at}" for at in range(len(functions)))
    more = f" ({literal(form.joint)} call)*" if form.joint is not None and is_parallel else ""
    closing = literal(form.closing.rstrip()) if form.closing.strip() else ""
    start = f"start: {literal(form.opening)} call{more} {closing}"
    if not form.opening:
        start = f"start: call{more} {closing}"
    return lark_constraint("\n".join([start, f"call: {calls}", *rules]), "tool_choice")
