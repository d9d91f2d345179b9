"""Our artifacts against other runtimes on the same work: alternating, a process per measurement.

    python bench/cpu_vs_peers.py smollm2.sglk --model llama.cpp:q4_0=SmolLM2.Q4_0.gguf \\
        --model openvino-genai:int4=ov/smollm2-int4 --prompt 16,512 --concurrency 1,16 --threads 2
    python bench/cpu_vs_peers.py --lineup lineup.json --preset full --rounds 5 --json results.json
    python bench/cpu_vs_peers.py smollm2.sglk --soak 60

A contender is PEER or PEER:LABEL with the model that it is given; a peer may have several.
README.md beside this file says how to bring each peer to a machine and what a line-up file holds.
Ratios are of medians: above 1 ours is faster, but for memory, where they say how much more ours
takes. A noisy neighbour spoils a round for all alike, which is why rounds alternate.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglk.bench import peers
from sglk.bench.contest import OURS, Contender, Residents, Result, Scenario, compare, make_contender
from sglk.bench.first_token import first_token_lines, measure_first_tokens
from sglk.bench.machine_limits import get_limits
from sglk.bench.machine_limits import table_lines as limit_lines
from sglk.bench.mixed_load import soak, soak_lines
from sglk.bench.presets import DEMANDS, FIRST_TOKEN_S, MEMORY_ABOVE_LLAMA, SCENARIOS, SOAK_LOSS
from sglk.bench.shares import model_size, shares
from sglk.bench.standings import ratios, table_lines, verdict, verdict_lines
from sglk.cli.limits import Limits


@dataclass(frozen=True)
class Field:
    """Everyone who runs one model; ``slack`` is what its demands may lose against the first's."""

    model: str
    contenders: list[Contender]
    slack: float = 0.0


def pairs_of(texts: list[str], option: str) -> dict[str, str]:
    """``PEER[:LABEL]=VALUE`` options; an unknown peer ends the run."""
    pairs = dict(text.partition("=")[::2] for text in texts)
    unknown = sorted({name.partition(":")[0] for name in pairs} - set(peers.PEERS))
    if unknown:
        raise SystemExit(f"{option}: expected one of {', '.join(peers.PEERS)}, got {unknown[0]}")
    return pairs


def find_contenders(models: dict[str, str], pythons: dict[str, str]) -> list[Contender]:
    """Who has a model and is installed."""
    found = []
    for name, model in models.items():
        peer = name.partition(":")[0]
        python = pythons.get(name, pythons.get(peer, sys.executable))
        probe = [python, peers.__file__, peer, model, "0", "0", "0", "0", "0", "--probe"]
        if subprocess.run(probe, capture_output=True).returncode:
            print(f"{name}: not installed for {python}, left out", file=sys.stderr)
        elif not Path(model).exists():
            raise SystemExit(f"--model: expected a file or folder for {name}, got {model}")
        else:
            found.append(make_contender(name, model, python))
    return found


def find_fields(options: argparse.Namespace) -> list[Field]:
    """From the line-up file, with what the command line adds to a model of its own."""
    pythons = pairs_of(options.python, "--python")
    models = {OURS: options.artifact} if options.artifact else {}
    models |= pairs_of(options.model, "--model")
    fields = [Field("", find_contenders(models, pythons))] if models else []
    if options.lineup:
        lineup = json.loads(Path(options.lineup).read_text())
        pythons = pairs_of([f"{k}={v}" for k, v in lineup.get("pythons", {}).items()], "pythons")
        for model, entry in lineup["models"].items():
            given = pairs_of([f"{k}={v}" for k, v in entry["contenders"].items()], model)
            slack = float(entry.get("slack", 0.0))
            fields.append(Field(model, find_contenders(given, pythons), slack))
    if not fields:
        raise SystemExit("cpu_vs_peers: expected an artifact, --model or --lineup")
    return fields


def find_scenarios(options: argparse.Namespace) -> list[Scenario]:
    if options.preset:
        chosen = SCENARIOS[options.preset]
        return [dataclasses.replace(s, new=options.new or s.new) for s in chosen]
    scenarios = []
    for prompt in map(int, options.prompt.split(",")):
        for count in map(int, options.concurrency.split(",")):
            shared = min(options.shared, prompt)
            scenarios.append(Scenario(prompt, options.new or 128, count, shared))
    return scenarios


def run_field(
    field: Field, options: argparse.Namespace, limits: Limits | None, residents: Residents
) -> Result:
    """Every scenario, the first tokens, and what was asked for."""
    artifacts = [c.model for c in field.contenders if c.is_ours]
    size = model_size(artifacts[0]) if artifacts else None
    comparisons, verdicts = [], []
    for scenario in find_scenarios(options):
        measure = residents.measure
        comparison = compare(field.contenders, scenario, options.threads, options.rounds, measure)
        comparison["ratios"] = ratios(comparison["medians"], field.contenders)
        if size and limits:
            comparison["shares"] = shares(comparison, field.contenders, size, limits)
        comparisons.append(comparison)
        print("\n".join(table_lines(comparison, field.contenders)), flush=True)
        for demand in DEMANDS:
            asked = dataclasses.replace(
                demand,
                factor=demand.factor * (1 - field.slack),
                scenario=dataclasses.replace(demand.scenario, new=scenario.new),
            )
            verdicts.append(verdict(asked, comparison, field.contenders))
    firsts = measure_first_tokens(field.contenders, options.threads, options.rounds)
    held = [each for each in verdicts if each]
    print("\n".join(first_token_lines(firsts) + verdict_lines(held)))
    bits = {contender.name: contender.bits for contender in field.contenders}
    print("\n".join(start_verdicts(firsts, bits)), flush=True)
    return {
        "model": field.model,
        "comparisons": comparisons,
        "first_tokens": firsts,
        "verdicts": held,
    }


def start_verdicts(firsts: dict[str, Result], bits: Mapping[str, int | None]) -> list[str]:
    """First token and memory of each of ours against the fixed bounds; ``bits`` of weights by name.

    The memory is compared with llama.cpp's for weights of as many bits.
    """
    llama = [n for n, row in firsts.items() if n.startswith("llama") and "seconds" in row]
    lines = []
    for name, row in firsts.items():
        if name.partition(":")[0] != OURS or "seconds" not in row:
            continue
        word = "holds" if row["seconds"] < FIRST_TOKEN_S else "MISSED"
        lines.append(f"  {word:<7}{name}: first token after {row['seconds']:.3f} s, wanted 0.4 s")
        theirs = [firsts[n]["peak_rss_bytes"] for n in llama if bits[n] == bits[name]]
        if theirs:
            above = row["peak_rss_bytes"] - min(theirs)
            word = "holds" if above <= MEMORY_ABOVE_LLAMA else "MISSED"
            lines.append(f"  {word:<7}{name}: {above / 1e6:+.0f} MB to llama.cpp, wanted +60 MB")
    return lines


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("artifact", nargs="?", help="our .sglk file")
    parser.add_argument("--model", action="append", default=[], metavar="PEER[:LABEL]=PATH")
    parser.add_argument("--python", action="append", default=[], metavar="PEER[:LABEL]=PATH")
    parser.add_argument("--lineup", metavar="FILE", help="JSON: who runs which models")
    parser.add_argument("--preset", choices=SCENARIOS, help="a named set of scenarios")
    parser.add_argument("--prompt", default="16,512", help="prompt tokens, comma-separated")
    parser.add_argument("--new", type=int, help="new tokens per request (default: 128)")
    parser.add_argument("--concurrency", default="1", help="requests at once, comma-separated")
    parser.add_argument("--shared", type=int, default=0, help="leading prompt tokens all share")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-limits", action="store_true", help="do not measure the machine")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="only mixed load on ours")
    parser.add_argument("--json", metavar="FILE", help="write every figure of every run")
    return parser


def main() -> int:
    options = make_parser().parse_args()
    fields = find_fields(options)
    record: dict[str, Any] = {"threads": options.threads, "rounds": options.rounds}
    if options.soak:
        ours = next((c for field in fields for c in field.contenders if c.is_ours), None)
        if ours is None:
            raise SystemExit("--soak: expected an artifact of ours")
        record["soak"] = soak(ours.model, options.soak, options.threads)
        print("\n".join(soak_lines(record["soak"], SOAK_LOSS)))
    else:
        limits = None if options.no_limits else get_limits(options.threads)
        record["limits"] = limits and asdict(limits)
        print("\n".join(limit_lines(limits) if limits else []))
        record["models"] = []
        for field in fields:
            print(f"\n== {field.model}" if field.model else "", flush=True)
            with Residents() as residents:
                record["models"].append(run_field(field, options, limits, residents))
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
