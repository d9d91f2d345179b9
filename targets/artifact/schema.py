"""Reading JSON that nobody vouches for: each function checks one value and names its place."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from ...errors import ArtifactError

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_.:|+/@$-]{1,512}")


def shorten(value: object) -> str:
    """`value` as a person wants to see it in an error."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def load_json(where: str, data: bytes) -> object:
    """Parse JSON; not a number, infinities and repeated keys are refused."""
    try:
        return json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: expected JSON, got {error}") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"the number {name}")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} twice")
    return result


def as_dict(where: str, value: object) -> dict[str, object]:
    """A JSON object with any keys."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ArtifactError(f"{where}: expected an object, got {shorten(value)}")
    return value


def as_record(
    where: str, value: object, required: Collection[str], optional: Collection[str] | None = ()
) -> dict[str, object]:
    """A JSON object with the `required` keys; others only from `optional` (None: any)."""
    record = as_dict(where, value)
    if len(record) == len(required) and all(key in record for key in required):
        return record  # as it should be, thousands of times
    missing = sorted(set(required) - set(record))
    if missing:
        raise ArtifactError(f"{where}: expected the key {missing[0]!r}, got {sorted(record)[:20]}")
    extra = [] if optional is None else sorted(set(record) - set(required) - set(optional))
    if extra:
        raise ArtifactError(f"{where}: unexpected key {extra[0]!r} (known: {sorted(required)})")
    return record


def as_list(where: str, value: object, length: int | None = None) -> list[object]:
    """A JSON list, of `length` items when given."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"a list of {length}"
        raise ArtifactError(f"{where}: expected {wanted}, got {shorten(value)}")
    return value


def as_text(where: str, value: object, limit: int = 16384) -> str:
    """A text of at most `limit` characters."""
    if not isinstance(value, str) or len(value) > limit:
        raise ArtifactError(
            f"{where}: expected a text of at most {limit} characters, got {shorten(value)}"
        )
    return value


def as_name(where: str, value: object) -> str:
    """A name: letters, digits and ``_.:|+/@$-``, no spaces."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ArtifactError(f"{where}: expected a name without spaces, got {shorten(value)}")
    return value


def as_choice(where: str, value: object, choices: Collection[str]) -> str:
    """One of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ArtifactError(f"{where}: expected one of {sorted(choices)}, got {shorten(value)}")
    return value


def as_int(where: str, value: object, low: int = 0, high: int = 2**63 - 1) -> int:
    """A whole number in low..high; a JSON true is not a number."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ArtifactError(
            f"{where}: expected a whole number in {low}..{high}, got {shorten(value)}"
        )
    return value


def as_digest(where: str, value: object) -> str:
    """A sha256 in lower-case hexadecimal."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ArtifactError(
            f"{where}: expected a sha256 of 64 hexadecimal digits, got {shorten(value)}"
        )
    return value
