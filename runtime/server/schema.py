"""Checks a request against the JSON Schema that the OpenAPI document publishes for it.

One source for both: what is published is what is checked. The subset of JSON Schema that the
documents use: type, enum, const, bounds, properties, items, additionalProperties, anyOf.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from .problem import Problem

Schema = Mapping[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: _is_number(v) and float(v).is_integer(),
    "number": lambda v: _is_number(v),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
_MAX_SHOWN = 60


def check(value: Any, schema: Schema, where: str = "") -> None:
    """Raise `Problem` that names the first field which does not fit.

    >>> check({"n": 0}, {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}})
    Traceback (most recent call last):
    sglk.runtime.server.problem.Problem: n: expected at least 1, got 0
    """
    if "anyOf" in schema:
        _check_any(value, schema, where)
        return
    types = schema.get("type", [])
    names = [types] if isinstance(types, str) else types
    if names and not any(_TYPES[name](value) for name in names):
        raise _mismatch(where, " or ".join(map(_article, names)), value)
    if value is None:
        return
    if "enum" in schema and not any(value is e or _same(value, e) for e in schema["enum"]):
        raise _mismatch(where, "one of " + ", ".join(map(json.dumps, schema["enum"])), value)
    if isinstance(value, dict):
        _check_object(value, schema, where)
    elif isinstance(value, list):
        _check_list(value, schema, where)
    elif isinstance(value, str):
        _check_length(where, "characters", len(value), schema, ("minLength", "maxLength"))
    else:
        _check_bounds(value, schema, where)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (isinstance(value, int) or math.isfinite(value))


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _article(name: str) -> str:
    return name if name == "null" else f"{'an' if name[0] in 'aio' else 'a'} {name}"


def _mismatch(where: str, expected: str, value: Any) -> Problem:
    shown = json.dumps(value, ensure_ascii=True, default=repr)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 3]}..."
    name = where or "body"
    return Problem(
        f"{name}: expected {expected}, got {shown}", param=where or None, code="invalid_type"
    )


def _check_any(value: Any, schema: Schema, where: str) -> None:
    """The first form that fits; else the complaint of the form that came furthest."""
    problems: list[Problem] = []
    for form in schema["anyOf"]:
        try:
            check(value, form, where)
            return
        except Problem as problem:
            # Its traceback holds this frame, which holds the list: garbage of every request.
            problems.append(problem.with_traceback(None))
    deepest = max(problems, key=lambda problem: (len(problem.param or ""), problem.param or ""))
    if (deepest.param or "") != where:
        raise deepest
    forms = " or ".join(form.get("title", form.get("type", "?")) for form in schema["anyOf"])
    raise _mismatch(where, str(forms), value)


def _check_object(value: dict[str, Any], schema: Schema, where: str) -> None:
    known = schema.get("properties", {})
    prefix = f"{where}." if where else ""
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            check(item, known[name], prefix + name)
        elif others is False:
            raise _unknown(prefix + name, known)
        elif isinstance(others, Mapping):
            check(item, others, prefix + name)
    for name in schema.get("required", ()):
        if name not in value:
            raise Problem(
                f"{prefix}{name}: expected a value, got none (it is required)",
                param=f"{prefix}{name}",
                code="missing_required_parameter",
            )
    count = schema.get("maxProperties")
    if count is not None and len(value) > count:
        raise _mismatch(where, f"at most {count} entries", len(value))


def _unknown(name: str, known: Mapping[str, Any]) -> Problem:
    shown = name if len(name) <= _MAX_SHOWN else f"{name[: _MAX_SHOWN - 3]}..."
    fields = ", ".join(sorted(known))
    return Problem(
        f"{shown}: unrecognized request argument (known here: {fields})",
        param=shown,
        code="unrecognized_request_argument",
    )


def _check_list(value: list[Any], schema: Schema, where: str) -> None:
    _check_length(where, "items", len(value), schema, ("minItems", "maxItems"))
    items = schema.get("items")
    if items is None:
        return
    if _is_id_list(items):
        _check_ids(value, items, where)
        return
    for at, item in enumerate(value):
        check(item, items, f"{where}[{at}]")


def _is_id_list(items: Schema) -> bool:
    return items.get("type") == "integer" and "enum" not in items


def _check_ids(value: list[Any], items: Schema, where: str) -> None:
    """Long lists of token ids, without a call for each."""
    if all(type(item) is int for item in value):
        low, high = items.get("minimum", -math.inf), items.get("maximum", math.inf)
        if not value or (min(value) >= low and max(value) <= high):
            return
    for at, item in enumerate(value):
        check(item, items, f"{where}[{at}]")


def _check_length(
    where: str, unit: str, count: int, schema: Schema, names: tuple[str, str]
) -> None:
    low, high = (schema.get(name) for name in names)
    if low is not None and count < low:
        raise _mismatch(where, f"at least {low} {unit}", count)
    if high is not None and count > high:
        raise _mismatch(where, f"at most {high} {unit}", count)


def _check_bounds(value: Any, schema: Schema, where: str) -> None:
    low, high = schema.get("minimum"), schema.get("maximum")
    least = schema.get("exclusiveMinimum")
    if low is not None and value < low:
        raise _mismatch(where, f"at least {low}", value)
    if high is not None and value > high:
        raise _mismatch(where, f"at most {high}", value)
    if least is not None and value <= least:
        raise _mismatch(where, f"more than {least}", value)
