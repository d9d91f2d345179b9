"""``sglk plan model.sglk --memory 32GiB``: how many requests of which length cannot run out."""

from __future__ import annotations

import argparse
import json

from ..errors import SglkError
from ..runtime.capacity import Capacity, plan_capacity
from ..targets.artifact import Artifact
from .report import size_text
from .sizes import parse_size


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Print what an artifact can serve within a memory budget.",
        epilog="`sglk serve` with the same values enforces the same numbers: requests beyond them "
        "wait, and one that can never fit is refused at once.",
    )
    parser.add_argument("artifact", help="an .sglk file or folder")
    parser.add_argument(
        "--memory", metavar="SIZE", required=True,
        help="bytes that the process may use, such as 32GiB or 512MiB",
    )  # fmt: skip
    for name, default, text in (
        ("max-running", 32, "requests computed side by side"),
        ("max-step-tokens", 512, "token budget of a step"),
        ("max-context", None, "longest sequence; default: the model's"),
    ):
        parser.add_argument(
            f"--{name}", metavar="N", type=int, default=default,
            help=text if default is None else f"{text} (default: {default})",
        )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def run(options: argparse.Namespace) -> int:
    with Artifact.open(options.artifact) as artifact:
        plan = plan_capacity(
            artifact,
            memory=parse_size("--memory", options.memory),
            max_running=_count("--max-running", options.max_running),
            max_step_tokens=_count("--max-step-tokens", options.max_step_tokens),
            max_context=None
            if options.max_context is None
            else _count("--max-context", options.max_context),
        )
    print(json.dumps(plan.as_record()) if options.json else "\n".join(table_lines(plan)))
    return 0


def _count(option: str, value: int) -> int:
    if value < 1:
        raise SglkError(f"{option}: expected a whole number >= 1, got {value}")
    return value


def table_lines(plan: Capacity) -> list[str]:
    """For people."""
    parts = [
        ("weights", plan.weights),
        ("intermediate", plan.intermediate),
        ("logits", plan.outputs),
        ("host", plan.host),
        ("pages", plan.num_pages * plan.page_bytes),
    ]
    if plan.states:
        parts.insert(3, ("states", plan.states))
    lines = [f"{name:14}{size_text(size):>10}" for name, size in parts]
    lines[-1] += f"   {plan.num_pages - 1} of {plan.page_size} tokens = {plan.num_tokens} tokens"
    lines += ["", "side by side   tokens each (prompt and answer)"]
    lines += [f"{count:12d}   {length}" for count, length in plan.by_concurrency()]
    lines += ["", "tokens each    side by side"]
    lines += [f"{length:11d}    {count}" for length, count in plan.by_length()]
    return lines
