"""What the Kunlun target must show on its emulator, on a real model, with figures.

    python bench/kunlun_acceptance.py MODEL.gguf --folder WORK [--new 32] [--json FILE]

Compiles the model for the CPU and for Kunlun (fp32, fp16, bf16) and checks: the CPU target's greedy
ids in fp32; agreement under teacher forcing in fp16 and bf16; counts that the plan predicts; a
changed kernel that is refused or changes the answer; all of it without the CPU target's folder;
tokens per second and CPU seconds per token. Exit status 1: a check failed. Emulated: a P800's
speed is not among these figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import sglk
from sglk.bench.fidelity_forced import Forced
from sglk.targets.artifact import Artifact
from sglk.targets.artifact.kernel_pack import PackedKernel, read_pack
from sglk.targets.device import STEP_FIELDS, StepBatch, arrays_of
from sglk.targets.kunlun.capabilities import chip
from sglk.targets.kunlun.device.device import EmulatorDevice
from sglk.targets.kunlun.emulator import build_emulated, emulated_model, predict_step

PROMPTS = (
    "The harbour was quiet in the early morning,",
    "Question: What is the capital of France? Answer:",
    "def fibonacci(n):\n",
    "Once upon a time there was a small robot who",
    "The three laws of thermodynamics are",
)
DTYPES = ("fp32", "fp16", "bf16")
AGREEMENT = {"fp16": 0.98, "bf16": 0.95}
"""Least share of positions whose likeliest token is the CPU target's, under teacher forcing."""
SPEED = 3.0
"""Tokens a second for one sequence, on two idle cores."""
NOT_COPIED = ("tests", "docs", "bench", ".*", "*.egg-info", "__pycache__", "build", "dist")
Ids = list[int]


def compile_for_kunlun(model: Path, folder: Path, dtype: str, selftest: bool = False) -> Path:
    """fp32 keeps a GGUF's exact values; for fp16 and bf16 the weights have that type as well. An
    artifact that is in the folder is taken as it is."""
    path = folder / f"kunlun-{dtype}.sglk"
    if path.exists():
        return path
    quant = "keep" if dtype == "fp32" else "none"
    options = {"dtype": dtype, "quant": quant, "selftest": selftest}
    sglk.compile(model, target="kunlun", output=path, **options)
    return path


# Answers --------------------------------------------------------------------------------------


def greedy(path: Path, device: str, prompts: Sequence[Ids], new: int) -> list[Ids]:
    """Greedy continuations, all prompts in one batch."""
    with sglk.load(path, device=device) as llm:
        found = llm.generate(list(prompts), max_tokens=new, ignore_eos=True)
        return [answer.token_ids for answer in found]


@dataclass(frozen=True)
class Agreement:
    """Two artifacts at every position of the same tokens."""

    positions: int
    equal: int
    error: float
    """Largest relative L2 error among the kept columns of a position's logits."""

    @property
    def share(self) -> float:
        return self.equal / self.positions


def agreement(path: Path, device: str, reference: Path, texts: Sequence[Ids]) -> Agreement:
    """An artifact against the CPU target's, under teacher forcing."""
    longest = max(map(len, texts))
    positions = equal = 0
    error = 0.0
    with Forced(path, longest, device=device) as ours, Forced(reference, longest) as theirs:
        for ids in texts:
            a, b = ours.rows(ids, len(ids) - 1), theirs.rows(ids, len(ids) - 1)
            positions += len(a.top)
            equal += int((a.top == b.top).sum())
            far = np.linalg.norm(a.sample - b.sample, axis=1) / np.linalg.norm(b.sample, axis=1)
            error = max(error, float(far.max()))
    return Agreement(positions, equal, error)


# Counts ---------------------------------------------------------------------------------------


def mixed_batches(page: int) -> Iterator[StepBatch]:
    """A prompt over a page's end beside a short one; decoding beside a prompt; decoding alone."""
    long, short, late = [1, 2], [3], [4]
    yield batch(page, (0, page + 22, long), (0, 3, short))
    yield batch(page, (page + 22, 1, long), (3, 1, short), (0, 20, late))
    yield batch(page, (page + 23, 1, long))


def batch(page: int, *chunks: tuple[int, int, list[int]]) -> StepBatch:
    """(first position, tokens, pages) of sequences side by side; ids without a meaning."""
    spans = [np.arange(start, start + count, dtype=np.int32) for start, count, _ in chunks]
    slots = [
        np.array(p)[s // page] * page + s % page for s, (*_, p) in zip(spans, chunks, strict=True)
    ]
    starts = np.cumsum([0, *map(len, spans)]).astype(np.int32)
    table = np.zeros((len(chunks), max(len(pages) for *_, pages in chunks)), np.int32)
    for row, (*_, pages) in zip(table, chunks, strict=True):
        row[: len(pages)] = pages
    return StepBatch(
        token_ids=np.arange(5, 5 + starts[-1], dtype=np.int32),
        positions=np.concatenate(spans),
        slots=np.concatenate(slots).astype(np.int32),
        query_start=starts,
        seq_lens=np.array([span[-1] + 1 for span in spans], np.int32),
        page_table=table,
        logit_rows=starts[1:] - 1,
    )


def ttir_of(artifact: Artifact) -> dict[str, str]:
    record = json.loads(artifact.read("kernels/xpu3.source.json"))
    return {symbol: kernel["ttir"] for symbol, kernel in record["kernels"].items()}


def pack_of(artifact: Artifact) -> dict[str, PackedKernel]:
    target = cast("dict[str, Any]", artifact.manifest["target"])
    return read_pack(artifact.view(target["variants"][0]["library"]))


def differing_counts(path: Path) -> tuple[int, list[str]]:
    """How many counts of kernels were predicted, and those that the emulator disagrees with."""
    totals: dict[str, dict[str, int]] = {}
    with Artifact.open(path) as artifact:
        pack, texts, program = pack_of(artifact), ttir_of(artifact), artifact.program("step")
        executable = EmulatorDevice().load(artifact, num_pages=5, max_tokens=256)
        for each in mixed_batches(executable.page_size):
            executable.step(each)
            arrays = dict(zip(STEP_FIELDS, arrays_of(each), strict=True))
            seqs, pages = each.page_table.shape
            sizes = {"tokens": len(each.token_ids), "seqs": seqs, "pages": pages}
            sizes |= {"rows": len(each.logit_rows), "num_pages": executable.num_pages}
            for name, counts in predict_step(program, pack, sizes, texts, arrays).items():
                if counts is None:
                    return 0, [f"{name}: not predicted"]
                own = totals.setdefault(name, {})
                own |= {key: own.get(key, 0) + value for key, value in counts.items()}
        counted = {name: executable.counters(name) for name in totals}
        launches = executable.counters()["launches"]
        executable.close()
    wrong = [
        f"{name} {key}: predicted {value}, counted {counted[name][key]:.0f}"
        for name, counts in totals.items()
        for key, value in counts.items()
        if counted[name][key] != value
    ]
    if launches != sum(counts["launches"] for counts in totals.values()):
        wrong.append(f"{launches:.0f} launches in all")
    return sum(map(len, totals.values())), wrong


def broken_limits(path: Path) -> list[str]:
    """Kernels built with a limit broken, or with a known error of the vendor's compiler."""
    with Artifact.open(path) as artifact:
        metas = {name: kernel.meta for name, kernel in pack_of(artifact).items()}
    return [name for name, meta in metas.items() if meta["broken"] or meta["hazards"]]


# Changed kernels ------------------------------------------------------------------------------


class Changed(EmulatorDevice):
    """The emulator with other kernels than the artifact's."""

    def __init__(self, changes: Mapping[str, PackedKernel]) -> None:
        self.changes = changes

    def choose_kernels(self, artifact: Artifact) -> dict[str, PackedKernel]:
        return {**super().choose_kernels(artifact), **self.changes}


def swapped(path: Path) -> dict[str, PackedKernel]:
    """Decode attention, built again with another operation in one place."""
    with Artifact.open(path) as artifact:
        texts = {name: text for name, text in ttir_of(artifact).items() if name.startswith("few_")}
    changed = {name: text.replace("arith.divf", "arith.mulf") for name, text in texts.items()}
    return build_emulated(changed, emulated_model(chip("xpu3")))


def one_byte_off(path: Path) -> dict[str, PackedKernel]:
    """The artifact's kernels with a byte in the middle of their code changed."""
    with Artifact.open(path) as artifact:
        found = {}
        for name, kernel in pack_of(artifact).items():
            data = bytearray(kernel.data)
            data[len(data) // 2] ^= 0x40
            found[name] = PackedKernel(kernel.meta, bytes(data))
    return found


def first_logits(path: Path, changes: Mapping[str, PackedKernel]) -> np.ndarray:
    """Logits of a short prompt."""
    with Artifact.open(path) as artifact:
        executable = Changed(changes).load(artifact, num_pages=3, max_tokens=16)
        try:
            return executable.step(batch(executable.page_size, (0, 6, [1]))).copy()
        finally:
            executable.close()


# Without the CPU target -----------------------------------------------------------------------

_ALONE = """
import json, sys
from pathlib import Path
import sglk
root = Path(sglk.__file__).parent
assert root == Path(sys.argv[1]) and not (root / "targets" / "cpu").exists(), root
model, path, prompts, new = sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), int(sys.argv[5])
if model:
    sglk.compile(model, target="kunlun", output=path, dtype="fp32")
with sglk.load(path, device="emulator") as llm:
    found = llm.generate(prompts, max_tokens=new, ignore_eos=True)
print(json.dumps([answer.token_ids for answer in found]))
"""


def tree_without_cpu(folder: Path) -> Path:
    """A copy of the package whose only chips are the others."""
    root = Path(sglk.__file__).parent
    copy = folder / "sglk"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
    shutil.rmtree(copy / "targets" / "cpu")
    return copy


def alone(tree: Path, path: Path, prompts: Sequence[Ids], new: int, model: str = "") -> list[Ids]:
    """Answers of a process that has no CPU target; it compiles ``model`` first, if one is named."""
    text = json.dumps(list(prompts))
    places = [str(tree.resolve()), model, str(path), text, str(new)]
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve().parent)}
    run = subprocess.run(
        [sys.executable, "-c", _ALONE, *places],
        env=environment, cwd=tree.resolve().parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError(f"without the CPU target: {run.stderr[-2000:]}")
    return cast("list[Ids]", json.loads(run.stdout.splitlines()[-1]))


# Speed ----------------------------------------------------------------------------------------


def speed(path: Path, prompt: Ids, new: int) -> dict[str, float]:
    """Decoding one sequence: tokens a second by the clock and by CPU time, after a warm-up."""
    with sglk.load(path, device="emulator", prefix_cache=False) as llm:
        llm.generate(prompt, max_tokens=2, ignore_eos=True)
        took = []
        for count in (1, 1 + new):
            wall, cpu = time.perf_counter(), time.process_time()
            llm.generate(prompt, max_tokens=count, ignore_eos=True)
            took.append((time.perf_counter() - wall, time.process_time() - cpu))
    (wall_1, cpu_1), (wall_n, cpu_n) = took
    return {"tokens_per_second": new / (wall_n - wall_1), "cpu_seconds": (cpu_n - cpu_1) / new}


# Everything -----------------------------------------------------------------------------------


@contextmanager
def _timed(name: str, record: dict[str, Any]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    record.setdefault("seconds", {})[name] = time.perf_counter() - start


def check(model: Path, folder: Path, new: int) -> dict[str, Any]:
    """Every line with its figures; ``failed`` names those that do not hold."""
    record: dict[str, Any] = {"model": model.name, "new": new, "failed": []}

    def note(name: str, holds: bool, figures: Any) -> None:
        record[name] = figures
        record["failed"] += [] if holds else [name]
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {figures}", flush=True)

    cpu = folder / "cpu.sglk"
    with _timed("compile", record):
        if not cpu.exists():
            sglk.compile(model, target="cpu", output=cpu, selftest=False)
        paths = {d: compile_for_kunlun(model, folder, d, selftest=d == "fp32") for d in DTYPES}
    with sglk.load(cpu) as llm:
        encode = cast("Any", llm.tokenizer).encode
        prompts = [encode(text, context=8192) for text in PROMPTS]
    wanted = greedy(cpu, "cpu", prompts, new)
    with _timed("greedy", record):
        found = greedy(paths["fp32"], "emulator", prompts, new)
    same = sum(a == b for a, b in zip(found, wanted, strict=True))
    note("greedy ids", same == len(wanted), f"{same} of {len(wanted)} prompts x {new} tokens")
    texts = [a + b for a, b in zip(prompts, wanted, strict=True)]
    for dtype, least in AGREEMENT.items():
        agreed = agreement(paths[dtype], "emulator", cpu, texts)
        note(f"forced {dtype}", agreed.share >= least, {**vars(agreed), "share": agreed.share})
    for dtype, path in paths.items():
        broken = broken_limits(path)
        note(f"limits {dtype}", not broken, broken or "none broken, none reported in any run")
        counts, wrong = differing_counts(path)
        note(f"counts {dtype}", not wrong, wrong or f"all {counts} as predicted")
    _check_changes(paths["fp32"], note)
    shutil.rmtree(folder / "sglk", ignore_errors=True)
    tree = tree_without_cpu(folder)
    ids = alone(tree, folder / "alone.sglk", prompts, new, str(model))
    note("without targets/cpu", ids == wanted, f"{len(ids)} prompts x {new} tokens")
    for dtype, path in paths.items():
        figures = speed(path, prompts[0], new)
        note(f"speed {dtype}", figures["tokens_per_second"] >= SPEED, figures)
    return record


def _check_changes(path: Path, note: Any) -> None:
    plain, other = (first_logits(path, changes) for changes in ({}, swapped(path)))
    far = float(np.linalg.norm(plain - other) / np.linalg.norm(plain))
    note("swapped kernel", far > 0.1, f"logits move by {far:.2f} of their length")
    try:
        first_logits(path, one_byte_off(path))
    except sglk.SglkError as error:
        note("byte of a kernel", True, f"refused: {error}")
    else:
        note("byte of a kernel", False, "not refused")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--folder", type=Path, required=True, help="for artifacts, 2 GB")
    parser.add_argument("--new", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    record = check(options.model, options.folder, options.new)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))
    return 1 if record["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
