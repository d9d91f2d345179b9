"""Section ``facts``: the target's data and its operator table agree with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ...ir.dtype import F32, I32
from ...ir.op import OPS
from .cases import ONLY_CAPTURED, ONLY_IN_DECODERS, all_cases
from .chip import Chip
from .operators import unreached_rows
from .outcome import Outcome, judged

SECTION = "facts"


def check_facts(chip: Chip) -> Iterator[Outcome]:
    for name, rule in RULES.items():
        yield judged(SECTION, name, lambda rule=rule: rule(chip))  # type: ignore[misc]
    for line in unreached_rows(chip):
        reason = "no case of the kit gets to it (add one to targets/conformance/cases.py)"
        yield Outcome(SECTION, f"row {line}", "absent", reason)


def every_op_has_cases(chip: Chip) -> str:
    """The kit's own duty: a new op is covered, or named here."""
    bare = [name for name, cases in all_cases().items() if not cases]
    return f"expected cases for every op, got none for {', '.join(bare)}" if bare else ""


def names(chip: Chip) -> str:
    """An emulator has a name of its own; one of several devices has a number after a colon."""
    emulators = {getattr(chip.backend, "emulator", chip.backend.name)}
    if chip.target.name != chip.backend.name:
        return f"expected facts of {chip.backend.name}, got facts of {chip.target.name}"
    if chip.device.name.partition(":")[0] not in emulators | {chip.backend.name}:
        return f"expected a device named {chip.backend.name}, got {chip.device.name}"
    return ""


def sizes(chip: Chip) -> str:
    target = chip.target
    for what, size in (
        ("page_size", target.page_size), ("programs", target.programs), ("lanes", target.lanes),
        ("gated_rows", target.gated_rows),
    ):  # fmt: skip
        if size < 1:
            return f"expected {what} of at least 1, got {size}"
    if list(target.token_buckets) != sorted({*target.token_buckets}):
        return f"expected token_buckets that grow, got {target.token_buckets}"
    return "" if min(target.token_buckets, default=1) > 0 else "expected token_buckets above 0"


def memory(chip: Chip) -> str:
    levels = chip.target.memory
    if not levels:
        return "expected at least one memory level, got none"
    bad = [m.name for m in levels if m.bytes < 0 or m.bytes_per_second < 0]
    if bad:
        return f"expected sizes and rates of 0 (unknown) or more, got less for {bad}"
    last = levels[-1]
    return "" if last.bytes_per_second else f"expected a rate of {last.name}, the main memory"


def types(chip: Chip) -> str:
    missing = [str(d) for d in (F32, I32) if not chip.target.supports(d)]
    return (
        f"expected f32 and i32 among dtypes, got no {' and no '.join(missing)}" if missing else ""
    )


def fused(chip: Chip) -> str:
    """Fusion passes make these ops, so there must be somebody to run them."""
    wanted = {name.partition(".")[0] for name in chip.target.fused_ops}
    unknown = sorted(wanted - set(OPS))
    if unknown:
        return f"fused_ops: expected names of ops, got {unknown}"
    missing = sorted(wanted - {row.op for row in chip.table}) if chip.table else []
    return f"fused_ops: expected a row for each, got none for {missing}" if missing else ""


def rows(chip: Chip) -> str:
    unknown = sorted({row.op for row in chip.table} - set(OPS))
    if unknown:
        return f"operator table: expected names of ops, got {unknown}"
    captured = sorted({row.op for row in chip.table} & ONLY_CAPTURED)
    if captured:
        return f"operator table: {captured} never reach a chip (see passes/flat_tokens.py)"
    counts = Counter((row.op, row.name) for row in chip.table)
    twice = [key for key, count in counts.items() if count > 1]
    return f"operator table: expected names of their own, got {twice} twice" if twice else ""


def states(chip: Chip) -> str:
    """Without these no decoder runs."""
    have = {row.op for row in chip.table}
    need = {"write_kv", "paged_attention", "embedding", "linear"}
    missing = sorted(need - have) if chip.table else []
    if missing == ["write_kv"] and "rope_write_kv" in have:
        return ""
    assert need & ONLY_IN_DECODERS
    return f"operator table: expected rows that a decoder needs, got none for {missing}" * bool(
        missing
    )


RULES: dict[str, Callable[[Chip], str]] = {
    "every op has cases": every_op_has_cases,
    "one name": names,
    "sizes": sizes,
    "memory levels": memory,
    "types": types,
    "fused ops have rows": fused,
    "rows": rows,
    "rows that decoders need": states,
}
