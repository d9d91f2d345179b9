"""``sglk bench model.sglk``: times to and between tokens, tokens/s, memory, load time.

Every scenario runs ``concurrency`` requests of random token ids side by side, cache cold unless a
prefix is shared; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import resource
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArtifactError, SglkError
from ..runtime import load
from ..runtime.capacity import slots_for
from ..runtime.selftest import target_name
from ..runtime.steps import StepWriter
from ..targets.artifact import Artifact
from ..targets.registry import open_device
from .limits import known_limits, read_limits
from .sizes import parse_number

LARGEST_STEP = 2048
"""Prompt tokens of a step that is profiled, at most."""


@dataclass(frozen=True)
class Scenario:
    """Tokens per request; ``shared`` of the prompt's tokens are the same in all requests."""

    prompt: int
    new: int
    concurrency: int
    shared: int = 0


@dataclass(frozen=True)
class Measured:
    """Medians over rounds; tokens/s over all requests together."""

    prompt: int
    new: int
    concurrency: int
    shared: int
    ttft_s: float
    itl_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    total_s: float


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure an artifact on this machine.",
        epilog="TTFT: time to the first token; ITL: time between tokens; medians over the rounds.",
    )
    parser.add_argument("artifact", help="an .sglk file or folder")
    for name, default, text in (
        ("prompt", "16,512", "prompt tokens, comma-separated"),
        ("new", "128", "new tokens per request"),
        ("concurrency", "1", "requests side by side, comma-separated"),
        ("shared", "0", "leading prompt tokens that all requests share"),
        ("rounds", "3", "repetitions"),
    ):
        is_list = "," in text
        parser.add_argument(
            f"--{name}", metavar="N,..." if is_list else "N", default=default,
            help=f"{text} (default: {default})",
        )  # fmt: skip
    parser.add_argument(
        "--threads", metavar="N", type=int, help="worker threads (default: all allowed cores)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="device to run on (default: the artifact's target)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--record-steps", metavar="FILE", help="write what each step did and took, for `sglk sim`"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="time every kernel of a prefill and a decode step instead",
    )
    parser.add_argument(
        "--limits", metavar="FILE", help="with --profile: limits of this machine, measured"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    rounds = parse_number("--rounds", options.rounds)
    scenarios = _scenarios(options)
    if options.profile:
        return _profile(options, scenarios)
    started = time.perf_counter()
    settings = load_options(options.artifact, scenarios, options.device, options.threads)
    llm = load(options.artifact, **settings)
    load_s = time.perf_counter() - started
    with llm, contextlib.ExitStack() as closing:
        if options.record_steps:
            llm.engine.on_step = closing.enter_context(StepWriter.open(options.record_steps))
        results = [measure(llm, s, rounds) for s in scenarios]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    stored = _stored_bytes(options.artifact)
    if options.json:
        record = {
            "artifact": options.artifact,
            "load_s": load_s,
            "stored_weight_bytes": stored,
            "peak_rss_bytes": peak,
            "scenarios": [asdict(r) for r in results],
        }
        print(json.dumps(record))
    else:
        print("\n".join(table_lines(results, load_s, peak, stored)))
    return 0


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    """Every prompt length with every concurrency."""
    new, shared = parse_number("--new", options.new), parse_number("--shared", options.shared, 0)
    prompts = [parse_number("--prompt", text) for text in options.prompt.split(",")]
    if shared and shared >= min(prompts):
        raise SglkError(
            f"--shared: expected fewer tokens than the prompt of {min(prompts)}, got {shared}"
        )
    concurrencies = [parse_number("--concurrency", text) for text in options.concurrency.split(",")]
    return [Scenario(p, new, c, shared) for p in prompts for c in concurrencies]


def _profile(options: argparse.Namespace, scenarios: list[Scenario]) -> int:
    """Kernel times of each scenario's prefill and decode steps."""
    from .roofline import Roofline, limit_notes
    from .step_profile import pages_needed, profile_lines, profile_steps

    profiles = []
    with _open_decoder(options.artifact) as artifact:
        report = json.loads(artifact.read("report.json"))
        name = options.device or target_name(artifact)
        limits = read_limits(Path(options.limits)) if options.limits else known_limits(name, report)
        roofline = Roofline(report.get("costs", {}), limits)
        device = open_device(name)
        page_size = int(artifact.manifest["target"]["page_size"])  # type: ignore[index]
        for each in scenarios:
            shape = (each.prompt, each.concurrency, min(each.new, 16))
            pages = pages_needed(page_size, *shape)
            tokens = max(512, each.concurrency, min(each.prompt, LARGEST_STEP))
            with contextlib.closing(
                device.load(
                    artifact,
                    num_pages=pages,
                    max_tokens=tokens,
                    num_threads=options.threads,
                    **slots_for(artifact, each.concurrency),
                )
            ) as executable:
                profiles += profile_steps(executable, *shape, roofline)
    if options.json:
        print(json.dumps([asdict(profile) for profile in profiles]))
    else:
        print("\n\n".join("\n".join(profile_lines(profile)) for profile in profiles))
        print("\n".join(limit_notes(limits) if limits else []), end="\n" if limits else "")
    return 0


def _open_decoder(path: str) -> Artifact:
    artifact = Artifact.open(path)
    if "step" not in artifact.entries:
        artifact.close()
        entries = ", ".join(artifact.entries)
        raise ArtifactError(f"{path}: expected a decoder to measure, got the entries {entries}")
    return artifact


def _stored_bytes(path: str) -> int:
    """Bytes of weights that the file holds: what a load has to read."""
    with Artifact.open(path) as artifact:
        blobs = {str(w["blob"]): n for n, w in artifact.weights.items() if "blob" in w}
        return sum(artifact.blob_bytes(name) for name in blobs.values())


def load_options(
    path: str, scenarios: list[Scenario], device_name: str | None, threads: int | None
) -> dict[str, Any]:
    """What `load` needs so that no scenario is preempted."""
    tokens = max(s.concurrency * (s.prompt + s.new + 64) for s in scenarios)
    running = max(s.concurrency for s in scenarios)
    with _open_decoder(path) as artifact:
        target: Any = artifact.manifest["target"]
        device = open_device(device_name or str(target["name"]))
        page = device.kv_bytes_per_page(artifact)
        pages = 2 + -(-tokens // int(target["page_size"])) + running
    return {
        "device": device_name,
        "num_threads": threads,
        "kv_memory": page * pages,
        "max_running": running,
        "max_step_tokens": max(512, running),
    }


def measure(llm: Any, scenario: Scenario, rounds: int) -> Measured:
    """One warm-up round, then medians over ``rounds``; each round has prompts of its own."""
    rng = np.random.default_rng(scenario.prompt)
    vocabulary = int(llm.engine.vocab_size)
    results = [_round(llm, scenario, rng, vocabulary) for _ in range(rounds + 1)][1:]
    columns = [statistics.median(column) for column in zip(*results, strict=True)]
    return Measured(**asdict(scenario), **dict(zip(_COLUMNS, columns, strict=True)))


_COLUMNS = ("ttft_s", "itl_s", "prefill_tokens_per_s", "decode_tokens_per_s", "total_s")


def _round(llm: Any, s: Scenario, rng: np.random.Generator, vocabulary: int) -> tuple[float, ...]:
    """(ttft, itl, prefill tokens/s, decode tokens/s, seconds) of one round."""
    common = rng.integers(0, vocabulary, s.shared)
    prompts = [
        [int(t) for t in (*common, *rng.integers(0, vocabulary, s.prompt - s.shared))]
        for _ in range(s.concurrency)
    ]
    started = time.perf_counter()
    answers = llm.generate(prompts, max_tokens=s.new, ignore_eos=True)
    total = time.perf_counter() - started
    times = token_times(answers)
    first, last = max(t[0] for t in times), max(t[-1] for t in times)
    gaps = [gap for a in answers for gap in a.itl]
    # Tokens that some requests got while others still waited for their first are no decode speed.
    decoded = sum(moment > first for t in times for moment in t)
    prefilled = sum(a.num_prompt_tokens - a.num_cached_tokens for a in answers)
    decode = decoded / (last - first) if decoded else 0.0
    itl = statistics.median(gaps) if gaps else 0.0
    return statistics.median(a.ttft for a in answers), itl, prefilled / first, decode, total


def token_times(answers: list[Any]) -> list[list[float]]:
    """When each token of each answer came, in seconds from the request."""
    return [list(itertools.accumulate(a.itl, initial=a.ttft)) for a in answers]


def table_lines(results: list[Measured], load_s: float, peak: int, stored: int) -> list[str]:
    """A table for people."""
    lines = ["prompt   new  conc  shared   TTFT s    ITL ms  prefill tok/s  decode tok/s"]
    lines += [
        f"{r.prompt:6d} {r.new:5d} {r.concurrency:5d} {r.shared:7d} {r.ttft_s:8.3f} "
        f"{r.itl_s * 1e3:9.2f} {r.prefill_tokens_per_s:14.0f} {r.decode_tokens_per_s:13.0f}"
        for r in results
    ]
    rate = f" ({stored / 1e9:.2f} GB of weights, {stored / 1e9 / load_s:.2f} GB/s)" * bool(stored)
    return [*lines, f"loaded in {load_s:.2f} s{rate}, peak memory {peak / 1e6:.0f} MB"]
