"""``sglk sim trace.jsonl --artifact model.sglk --steps steps.jsonl``: a replay without a device."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import SglkError
from ..runtime.admission import POLICIES, Limits
from ..runtime.capacity import kv_pages, plan_capacity, slots_for
from ..runtime.simulate import SimResult, Simulation
from ..runtime.step_model import MIN_STEPS, StepModel
from ..runtime.steps import StepRecord, read_steps
from ..runtime.trace import TraceRequest, read_trace
from ..targets.artifact import Artifact
from .sizes import parse_size

KINDS = ("decode", "prefill")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Replay a trace of requests through the scheduler, with modelled step times.",
        epilog="The trace has a JSON object a line: arrival_s, prompt_tokens, output_tokens and "
        "hash_ids (one per 512 tokens of the prompt), or Mooncake's timestamp, input_length, "
        "output_length, hash_ids.",
    )
    parser.add_argument("trace", help="a file of JSON lines")
    parser.add_argument("--artifact", required=True, help="an .sglk file or folder")
    parser.add_argument(
        "--steps", metavar="FILE", required=True,
        help="steps that were timed, as `sglk bench --record-steps FILE` writes them",
    )  # fmt: skip
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--memory", metavar="SIZE", help="bytes for everything, as in `sglk plan`")
    budget.add_argument("--kv-memory", metavar="SIZE", help="bytes for keys and values")
    for name, kind, text in (
        ("max-running", int, "requests computed side by side"),
        ("max-step-tokens", int, "token budget of a step"),
        ("aging-steps", int, "steps after which arrival alone decides who is next"),
        ("prefill-share", float, "share of a step that prefill may take while others decode"),
        ("itl-target-ms", float, "time a step may take while others decode"),
        ("batch-wait-ms", float, "time that arrivals may be held back to start together"),
    ):
        parser.add_argument(f"--{name}", metavar="N", type=kind, help=text)
    parser.add_argument("--policy", choices=POLICIES, default="fcfs")
    parser.add_argument("--no-prefix-cache", action="store_true", help="share no prefixes")
    parser.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="let requests come X times as fast"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def run(options: argparse.Namespace) -> int:
    trace = _faster(read_trace(_lines(options.trace), options.trace), options.speed)
    records = read_steps(_lines(options.steps), options.steps)
    model = StepModel.fit(records)
    if model.mixed is None:
        raise SglkError(
            f"{options.steps}: expected at least {MIN_STEPS} timed steps with prefill, "
            f"got {sum(record.load.prefill_tokens > 0 for record in records)} "
            "(record more rounds and lengths)"
        )
    with Artifact.open(options.artifact) as artifact:
        limits = _limits(artifact, options)
    result = Simulation(trace, limits, model).run()
    errors = fit_errors(model, records)
    if options.json:
        print(json.dumps({**result.as_record(), "fit": errors}))
    else:
        print("\n".join(table_lines(result, errors)))
    return 0


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()


def _faster(trace: list[TraceRequest], speed: float) -> list[TraceRequest]:
    if not 0 < speed < float("inf"):
        raise SglkError(f"--speed: expected a number > 0, got {speed}")
    return [dataclasses.replace(each, arrival_s=each.arrival_s / speed) for each in trace]


def _limits(artifact: Artifact, options: argparse.Namespace) -> Limits:
    """What a server with the same options works within."""
    sizes = {
        name: getattr(options, name)
        for name in ("max_running", "max_step_tokens", "aging_steps", "prefill_share")
        if getattr(options, name) is not None
    }
    step_tokens = sizes.setdefault("max_step_tokens", 512)
    sizes["max_running"] = min(sizes.get("max_running", 32), step_tokens)
    for name, milliseconds in (
        ("itl_target_s", options.itl_target_ms),
        ("batch_wait_s", options.batch_wait_ms),
    ):
        if milliseconds is not None:
            sizes[name] = milliseconds / 1e3
    if options.memory is not None:
        num_pages = plan_capacity(
            artifact,
            memory=parse_size("--memory", options.memory),
            max_running=sizes["max_running"],
            max_step_tokens=step_tokens,
        ).num_pages
    else:
        kv_memory = options.kv_memory
        num_pages = kv_pages(
            artifact, None if kv_memory is None else parse_size("--kv-memory", kv_memory)
        )
    model: Any = artifact.manifest["model"]
    target: Any = artifact.manifest["target"]
    slots = slots_for(artifact, sizes["max_running"])
    return Limits(
        page_size=int(target["page_size"]),
        num_pages=num_pages,
        max_context=int(model.get("context_length") or 2**31 - 1),
        prefix_cache=not options.no_prefix_cache and not slots,
        state_slots=slots.get("num_slots", 0),
        policy=options.policy,
        **sizes,
    )


def fit_errors(model: StepModel, records: Sequence[StepRecord]) -> dict[str, float]:
    """Median relative error of the model on the steps it was fitted to, by kind."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for record in records:
        seconds = model.seconds(record.load)
        if seconds is not None and record.seconds > 0:
            kind = KINDS[record.load.prefill_tokens > 0]
            found[kind].append(abs(seconds / record.seconds - 1))
    return {kind: statistics.median(values) for kind, values in found.items() if values}


def table_lines(result: SimResult, errors: dict[str, float]) -> list[str]:
    """For people."""
    record = result.as_record()
    lines = [f"{'':22}{'p50':>10}{'p90':>10}{'p99':>10}"]
    for name, text in (
        ("ttft_s", "first token, s"),
        ("itl_s", "between tokens, ms"),
        ("total_s", "whole answer, s"),
    ):
        factor = 1e3 if text.endswith("ms") else 1
        values = "".join(f"{value * factor:10.3f}" for value in record[name].values())
        lines.append(f"{text:22}{values}")
    busy = record["busy_s"] / record["seconds"] if record["seconds"] else 0.0
    lines += [
        f"requests      {record['requests']} ended, {record['refused']} refused at the door",
        f"speed         {record['output_tokens_per_s']:.1f} tokens/s out, "
        f"{record['prompt_tokens_per_s']:.1f} in, busy {busy:.0%} of {record['seconds']:.1f} s",
        f"prefix cache  {record['cache_hit_rate']:.1%} of prompt tokens reused, "
        f"{record['cache_match_rate']:.1%} known",
        f"preemptions   {record['preemptions']}",
        f"starvation    {record['starved']} requests; at most "
        f"{record['longest_steps_without_token']} steps without a token, "
        f"of {record['its_bound']} that are guaranteed",
        "fit           "
        + ", ".join(f"{kind} steps within {error:.1%}" for kind, error in errors.items())
        + " (median)",
    ]
    if result.refused:
        lines.append(f"refused       {result.refused[0]}")
    return lines
