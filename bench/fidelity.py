"""Do compiled artifacts compute what transformers computes? The proof, prompt by prompt.

    python bench/fidelity.py MODEL.gguf [--prompts N] [--new 64] [--only NAME,..] [--json]
    python bench/fidelity.py MODEL.gguf --only keep,keep-bf16,keep-int8   # by --activations
    python bench/fidelity.py MODEL.gguf --prompts 4 --new 16 --save FILE   # the data of a test
    python bench/fidelity.py MODEL.gguf --reference FILE      # the reference, for another machine
    python bench/fidelity.py ARTIFACT.sglk --reference FILE [--device cuda:0]   # and there

The reference is transformers in fp32 on the dequantized weights; it is kept in the cache folder.
Artifacts are compiled and compared over the same prompts and the reference's greedy tokens:

  fp32  greedy ids equal, last-token logits within 1e-3 (L2 over the vocabulary, relative)
  bf16  teacher forcing: where the reference's best token leads by more than twice the stated
        error, the artifact must choose it too. The stated error is the largest difference of a
        logit in the last-token rows; positions that lead by less are excluded (share printed)
  keep  the stored block types: last-token logits within 1e-2
  keep-bf16, keep-int8  the same with --activations bf16 and int8: teacher forcing, as bf16, and
        last-token logits within the tolerance of that mode's self-test
  keep-bf16-rounded, keep-int8-rounded  the same with --round-weights
  an artifact with --reference  teacher forcing and the tolerance of its own self-test, with no
        compiler and no transformers

Each line of the verdict passes or fails; the exit status is 1 when one fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sglk
from sglk.bench.fidelity_file import read_reference, sampled_error, write_reference
from sglk.bench.fidelity_forced import Forced
from sglk.bench.fidelity_prompts import Prompt, make_prompts
from sglk.bench.fidelity_reference import Reference
from sglk.bench.fidelity_rows import Rows, columns_of
from sglk.ir.few_bits import TOLERANCE
from sglk.runtime.selftest import relative_error, stated_tolerance
from sglk.targets.artifact import Artifact

ARTIFACTS: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": "fp32", "quant": "none"},
    "bf16": {"dtype": "bf16", "quant": "none"},
    "keep": {"dtype": "bf16", "quant": "keep"},
    "keep-bf16": {"dtype": "bf16", "quant": "keep", "activations": "bf16"},
    "keep-int8": {"dtype": "bf16", "quant": "keep", "activations": "int8"},
    "keep-bf16-rounded": {
        "dtype": "bf16", "quant": "keep", "activations": "bf16", "round_weights": True
    },
    "keep-int8-rounded": {
        "dtype": "bf16", "quant": "keep", "activations": "int8", "round_weights": True
    },
}  # fmt: skip
STORED = "stored"
"""What an artifact is called that was not compiled here."""
FORCED = ("bf16", *(name for name in ARTIFACTS if name.startswith("keep-")), STORED)
"""Judged by teacher forcing."""
LIMITS = {
    "fp32": 1e-3,
    "keep": 1e-2,
    "keep-bf16": TOLERANCE["bf16"],
    "keep-int8": TOLERANCE["int8"],
    "keep-bf16-rounded": TOLERANCE["bf16"],
    "keep-int8-rounded": TOLERANCE["int8"],
}
"""Largest relative L2 error of last-token logits; a stored artifact states its own."""


@dataclass(frozen=True)
class Line:
    """One prompt on one artifact."""

    artifact: str
    prompt: str
    tokens: int
    same: int
    """Greedy tokens equal to the reference's before the first difference."""
    new: int
    error: float
    """Relative L2 error of the last prompt token's logits."""
    largest: float
    """Largest absolute difference of a logit in that row."""
    positions: int
    agree: int
    """Positions where both choose the same token under teacher forcing."""
    excluded: int
    """Positions where the reference leads by no more than twice the stated error."""
    broken: int
    """Positions that are not excluded and do not agree."""
    gap: float
    """The reference's lead at the first different greedy token; 0 if all are equal."""


@dataclass(frozen=True)
class Verdict:
    """A promise and whether it is kept."""

    text: str
    passed: bool


def main() -> int:
    options = parse_options()
    model = Path(options.model)
    if model.suffix == ".sglk":
        return judge_artifact(model, options)
    wanted = options.only.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: compiled(model, name, folder) for name in wanted}
        prompts = evenly(load_prompts(paths[wanted[0]]), options.prompts)
        reference = Reference(model)
        rows = []
        for prompt in prompts:
            say(f"reference: {prompt.name}")
            rows.append(reference.run(prompt.ids, options.new))
        if options.save or options.reference:
            write = save if options.save else write_reference
            write(Path(options.save or options.reference), prompts, rows)
            return 0
        lines, verdicts = [], []
        for name in wanted:
            found = compare(name, paths[name], prompts, rows, options.new, options.threads)
            lines += found
            verdicts.append(judge(name, found))
    report(lines, verdicts, options.json)
    return 0 if all(v.passed for v in verdicts) else 1


def judge_artifact(path: Path, options: argparse.Namespace) -> int:
    """An artifact that is here against a reference that was made elsewhere."""
    prompts, rows = read_reference(Path(options.reference))
    new = len(rows[0].top) - len(prompts[0].ids) + 1
    lines = compare(STORED, path, prompts, rows, new, options.threads, options.device)
    with Artifact.open(path) as artifact:
        verdict = judge(STORED, lines, stated_tolerance(artifact))
    report(lines, [verdict], options.json)
    return 0 if verdict.passed else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .gguf file, or with --reference an artifact")
    parser.add_argument("--prompts", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--new", type=int, default=64, help="greedy tokens (default: 64)")
    parser.add_argument("--only", default=",".join(ARTIFACTS), help="artifacts, comma-separated")
    parser.add_argument("--keep", help="folder of the artifacts: kept, and used again if there")
    parser.add_argument("--threads", type=int, help="worker threads (default: all allowed cores)")
    parser.add_argument("--save", help="write the reference to this file, for a test, and stop")
    parser.add_argument("--reference", help="file to write the reference to, or of an artifact's")
    parser.add_argument("--device", help="device of an artifact (default: its target's first)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(ARTIFACTS)
    if unknown or options.prompts < 1 or options.new < 1:
        parser.error(f"expected artifacts among {', '.join(ARTIFACTS)} and counts of at least 1")
    if options.model.endswith(".sglk") and not options.reference:
        parser.error("expected --reference FILE beside an artifact")
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compiled(model: Path, name: str, folder: Path) -> Path:
    """The artifact of one set of options, from the folder if it is there."""
    path = folder / f"{name}.sglk"
    if not path.exists():
        say(f"compile: {name}")
        sglk.compile(model, output=path, selftest=False, **ARTIFACTS[name])
    return path


def load_prompts(path: Path) -> list[Prompt]:
    """The prompts in the model's tokens."""
    with sglk.load(path) as llm:
        context = llm.engine.limits.max_context
        tokenizer = llm.tokenizer
        render = llm.chat_ids if llm.chat_template else None
        return make_prompts(lambda text: tokenizer.encode(text, context=context), render)


def evenly(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """``count`` of the prompts, of every kind."""
    chosen = np.linspace(0, len(prompts) - 1, min(count, len(prompts))).astype(int)
    return [prompts[i] for i in chosen]


def save(path: Path, prompts: Sequence[Prompt], reference: Sequence[Rows]) -> None:
    """Greedy ids and every eighth kept logit of the last prompt token, as a test reads them."""
    records = [
        {
            "prompt": prompt.name,
            "ids": prompt.ids,
            "greedy": greedy(prompt, rows),
            "smallest_gap": round(float(rows.gap[len(prompt.ids) - 1 :].min()), 4),
            "columns": columns_of(len(rows.last))[::8].tolist(),
            "logits": [round(float(x), 5) for x in rows.sample[len(prompt.ids) - 1, ::8]],
        }
        for prompt, rows in zip(prompts, reference, strict=True)
    ]
    path.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n", encoding="utf-8")


def compare(
    name: str,
    path: Path,
    prompts: Sequence[Prompt],
    reference: Sequence[Rows],
    new: int,
    threads: int | None,
    device: str | None = None,
) -> list[Line]:
    """Greedy ids of all prompts in one batch, then every sequence under teacher forcing."""
    say(f"run: {name}")
    with sglk.load(path, device=device, num_threads=threads) as llm:
        answers = llm.generate([list(p.ids) for p in prompts], max_tokens=new, ignore_eos=True)
    longest = max(len(p.ids) for p in prompts) + new
    with Forced(path, longest, threads, device) as forced:
        ours = [
            forced.rows([*p.ids, *greedy(p, rows)[:-1]], len(p.ids) - 1)
            for p, rows in zip(prompts, reference, strict=True)
        ]
    stated = max(largest(a, b) for a, b in zip(ours, reference, strict=True))
    everywhere = max(sampled_error(a, b) for a, b in zip(ours, reference, strict=True))
    say(f"{name}: largest error of a sampled logit at any position {everywhere:.3g}")
    return [
        make_line(name, prompt, greedy(prompt, wanted), answer.token_ids, got, wanted, stated)
        for prompt, wanted, answer, got in zip(prompts, reference, answers, ours, strict=True)
    ]


def greedy(prompt: Prompt, rows: Rows) -> list[int]:
    """What the reference generates."""
    return [int(token) for token in rows.top[len(prompt.ids) - 1 :]]


def largest(got: Rows, wanted: Rows) -> float:
    return float(np.abs(got.last - wanted.last).max())


def make_line(
    name: str,
    prompt: Prompt,
    expected: list[int],
    answer: list[int],
    got: Rows,
    wanted: Rows,
    stated: float,
) -> Line:
    pairs = zip(expected, answer, strict=True)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(expected))
    agrees = got.top == wanted.top
    leads = wanted.gap > 2 * stated
    first = len(prompt.ids) - 1 + same
    return Line(
        artifact=name,
        prompt=prompt.name,
        tokens=len(prompt.ids),
        same=same,
        new=len(expected),
        error=relative_error(got.last[None], wanted.last[None]),
        largest=largest(got, wanted),
        positions=len(agrees),
        agree=int(agrees.sum()),
        excluded=int((~leads).sum()),
        broken=int((leads & ~agrees).sum()),
        gap=float(wanted.gap[first]) if same < len(expected) else 0.0,
    )


def judge(name: str, lines: Sequence[Line], limit: float | None = None) -> Verdict:
    """The promise of one artifact, with the figures that decide it; `limit`: if not as `LIMITS`."""
    limit = LIMITS.get(name, np.inf) if limit is None else limit
    worst = max(line.error for line in lines)
    total = sum(line.positions for line in lines)
    agree = sum(line.agree for line in lines)
    share = f"{agree} of {total} positions agree"
    if name in FORCED:
        stated = max(line.largest for line in lines)
        broken, out = sum(line.broken for line in lines), sum(line.excluded for line in lines)
        bound = f", at most {limit:g}" if np.isfinite(limit) else ""
        text = (
            f"error {stated:.3g} (relative {worst:.2e}{bound}), {out / total:.1%} of "
            f"positions lead by less than twice that and are excluded, {broken} of the others "
            f"differ; {share}"
        )
        return Verdict(f"{name}: {text}", broken == 0 and worst <= limit)
    text = f"logits within {worst:.1e} (at most {limit:g}); {share}"
    passed = worst <= limit
    if name == "fp32":
        equal = sum(line.same == line.new for line in lines)
        text = f"greedy ids equal for {equal} of {len(lines)} prompts, {text}"
        passed = passed and equal == len(lines)
    return Verdict(f"{name}: {text}", passed)


def report(lines: Sequence[Line], verdicts: Sequence[Verdict], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"lines": [*map(asdict, lines)], "verdicts": [*map(asdict, verdicts)]}))
        return
    print("artifact   prompt            tokens  greedy  L2 error  largest   agree  excluded  gap")
    for line in lines:
        print(
            f"{line.artifact:9}  {line.prompt:16}  {line.tokens:6}  {line.same:3}/{line.new:<3}"
            f" {line.error:8.1e}  {line.largest:7.1e}  {line.agree / line.positions:6.2%}"
            f"  {line.excluded / line.positions:7.1%}" + (f"  {line.gap:.1e}" if line.gap else "")
        )
    for verdict in verdicts:
        print(f"{'pass' if verdict.passed else 'FAIL'}  {verdict.text}")


if __name__ == "__main__":
    sys.exit(main())
