"""What one check found, in words a person can act on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ...errors import SglkError

Status = Literal["ok", "failed", "absent"]


@dataclass(frozen=True)
class Outcome:
    """One line of the report. ``absent``: the chip does not offer it, which is no failure."""

    section: str
    name: str
    status: Status
    reason: str = ""


Check = Callable[[], str]
"""Gives "" when the rule holds, else what was expected and what came."""


def judged(section: str, name: str, check: Check) -> Outcome:
    """Run a check; a sentence that the chip raises is its reason."""
    try:
        reason = check()
    except SglkError as error:
        reason = str(error)
    return Outcome(section, name, "failed" if reason else "ok", reason)


def crashed(section: str, name: str, error: Exception) -> Outcome:
    """A chip must refuse with an `SglkError`; anything else is a bug of it."""
    kind = type(error).__name__
    reason = f"expected a result or an SglkError, got {kind}: {error or 'no message'}"
    return Outcome(section, name, "failed", reason)


def guarded(section: str, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """A section whose chip raises something foreign ends there, and says so; the others run."""
    try:
        yield from outcomes
    except SglkError as error:
        yield Outcome(section, "the rest of this section", "failed", str(error))
    except Exception as error:  # noqa: BLE001  (third-party code may raise anything)
        yield crashed(section, "the rest of this section", error)
