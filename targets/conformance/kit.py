"""The sections in order; what needs the runtime is added by the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .chip import Chip
from .facts import check_facts
from .lifetimes import check_device
from .operators import check_ops
from .outcome import Outcome, guarded
from .refusals import check_errors
from .steps import check_steps

Section = Callable[[Chip, bool, Sequence[str]], Iterator[Outcome]]
"""(chip, quick, names of ops or ()) -> outcomes."""

SECTIONS: dict[str, Section] = {
    "facts": lambda chip, quick, ops: check_facts(chip),
    "ops": check_ops,
    "steps": lambda chip, quick, ops: check_steps(chip, quick),
    "device": lambda chip, quick, ops: check_device(chip),
    "errors": lambda chip, quick, ops: check_errors(chip),
}


def run_section(
    section: str, chip: Chip, quick: bool = False, ops: Sequence[str] = ()
) -> Iterator[Outcome]:
    """Outcomes as they come; a section that crashes ends with a line that says so."""
    return guarded(section, SECTIONS[section](chip, quick, ops))
