"""A pipeline as text, for ``sglk opt FILE -p "canonicalize,set-weight-dtypes{dtype=bf16}"``.

>>> [p.as_text() for p in parse_pipeline("canonicalize, fold-constants{max_elements=64}")]
['canonicalize', 'fold-constants{max_elements=64}']
"""

from __future__ import annotations

import re

from ..errors import PassError, VerifyError
from ..ir.parser import parse_attributes
from . import pipeline as _pipeline  # noqa: F401  (loads every pass, which registers it)
from .base import Pass, make_pass

_ENTRY = re.compile(r"\s*(?P<name>[\w-]+)\s*(?:\{(?P<options>[^{}]*)\})?\s*(?:,|$)")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Passes separated by commas, each with its options in braces, in the order they run."""
    passes: list[Pass] = []
    at = 0
    while at < len(text):
        match = _ENTRY.match(text, at)
        if match is None:
            raise PassError(
                f"pipeline: expected 'name' or 'name{{option=value}}', got {text[at:]!r}"
            )
        passes.append(_parse_pass(match["name"], match["options"] or ""))
        at = match.end()
    if not passes:
        raise PassError("pipeline: expected at least one pass, got an empty text")
    return tuple(passes)


def _parse_pass(name: str, options: str) -> Pass:
    try:
        return make_pass(name, parse_attributes(options))
    except (VerifyError, SyntaxError) as error:
        raise PassError(f"pass {name}: options {options!r}: {error}") from error
