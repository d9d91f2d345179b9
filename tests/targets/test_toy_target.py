"""The example of docs/new-target.md, installed as a package of its own; then broken on purpose."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
from sglk.cli import main
from sglk.errors import LoweringError
from sglk.targets.backend import known_backends, open_backend
from sglk.targets.registry import known_targets, open_device

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "toy-target"
MODULES = ("toy_sglk", "toy_sglk.kernels", "toy_sglk.device", "toy_sglk.backend")
PROMPTS = [[5, 17, 200], [9] * 40, list(range(60)), [255], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip put the package. A copy is built, for building leaves folders behind."""
    source = tmp_path_factory.mktemp("source") / "toy-target"
    shutil.copytree(EXAMPLE, source)
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        str(folder),
        str(source),
    ]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def toy(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package on the path: its modules by name, fresh for each test."""
    monkeypatch.syspath_prepend(site)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


def test_entry_points_make_it_a_target(toy: Any) -> None:
    assert "toy" in known_backends() and "toy" in known_targets()
    assert open_backend("toy").name == open_device("toy").name == "toy"


def test_without_the_package_nobody_knows_it() -> None:
    with pytest.raises(LoweringError, match=r"expected one of cpu.*, got 'toy'"):
        open_backend("toy")


def test_it_generates_what_the_cpu_generates(
    toy: Any, tiny_llama_folder: Path, tiny_artifact: Path, tmp_path: Path
) -> None:
    path = tmp_path / "toy.sglk"
    compiled = sglk.compile(tiny_llama_folder, target="toy", output=path)
    assert "5 passed" in compiled.report["selftest"][0]
    answers = []
    for artifact in (tiny_artifact, path):
        with sglk.load(artifact) as llm:
            made = llm.generate(PROMPTS, max_tokens=24, ignore_eos=True)
            answers.append([each.token_ids for each in made])
    assert answers[0] == answers[1]


def test_it_conforms(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "toy", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out and "toy: conforms" in out


def test_running_loads_no_compiler(site: Path) -> None:
    code = (
        "import sys; from sglk.targets.registry import open_device; open_device('toy');"
        "print(*sys.modules)"
    )
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert not {"sglk.ir", "sglk.passes", "sympy", "torch", "triton"} & set(run.stdout.split())


# Broken on purpose ----------------------------------------------------------------------------


def wrong_silu(load: Any) -> None:
    kernels = load("toy_sglk.kernels")

    def silu(x: Any, y: Any) -> None:
        y[:] = 1.01 * x / (1 + np.exp(-np.maximum(x, -80)))

    kernels.KERNELS["silu"] = silu


def forgets_the_last_slot_of_a_page(load: Any) -> None:
    kernels = load("toy_sglk.kernels")
    right = kernels.write_kv

    def write_kv(k: Any, v: Any, slots: Any, cache: Any, **constants: int) -> None:
        right(k, v, np.where(slots % 16 == 15, 0, slots), cache, **constants)

    kernels.KERNELS["write_kv"] = write_kv


def ignores_cached_prefixes(load: Any) -> None:
    """Attention sees this step's keys alone."""
    kernels = load("toy_sglk.kernels")
    right = kernels.paged_attention

    def attention(
        q: Any, cache: Any, start: Any, lens: Any, table: Any, y: Any, *more: Any, **constants: Any
    ) -> None:
        window = constants["WINDOW"] or 1 << 20
        constants["WINDOW"] = min(window, max(1, int(np.diff(start).max())))
        right(q, cache, start, lens, table, y, *more, **constants)

    kernels.KERNELS["paged_attention"] = attention


def checks_nothing(load: Any) -> None:
    load("toy_sglk.device").ToyExecutable._check = lambda self, batch: None


def stays_open(load: Any) -> None:
    load("toy_sglk.device").ToyExecutable.close = lambda self: None


def promises_equal_bits(load: Any) -> None:
    from dataclasses import replace

    backend = load("toy_sglk.backend")
    backend.TOY = replace(backend.TOY, batch_invariant=True)
    kernels = load("toy_sglk.kernels")

    def linear(x: Any, w: Any, y: Any, *, K: int) -> None:
        rows = x.reshape(-1, K).astype(np.float64 if len(x) == K else np.float32)
        y[:] = (rows @ w.reshape(-1, K).T).reshape(-1)

    kernels.KERNELS["linear"] = linear


def shares_its_pages(load: Any) -> None:
    device = load("toy_sglk.device")
    right = device.ToyExecutable.__init__
    pages: dict[str, Any] = {}

    def make(self: Any, *arguments: Any) -> None:
        right(self, *arguments)
        self._states = pages.setdefault("states", self._states)

    device.ToyExecutable.__init__ = make


def gives_fewer_pages(load: Any) -> None:
    device = load("toy_sglk.device")
    right = device.ToyExecutable.__init__

    def make(self: Any, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **options)
        self.num_pages = min(self.num_pages, 60)

    device.ToyExecutable.__init__ = make


def runs_ahead(load: Any) -> None:
    """Steps in a queue, done at once; rightly."""
    _queue(load, lambda token, chosen: chosen[-1 - token] if token < 0 else token)


def forgets_the_tokens_of_a_queue(load: Any) -> None:
    _queue(load, lambda token, chosen: max(0, token))


def _queue(load: Any, token_of: Callable[[int, list[int]], int]) -> None:
    executable = load("toy_sglk.device").ToyExecutable

    def submit(self: Any, batch: Any, rows: Any) -> None:
        chosen = getattr(self, "_chosen", [])
        batch.token_ids[:] = [token_of(int(t), chosen) for t in batch.token_ids]
        self._chosen = [int(t) for t in self.step(batch).argmax(-1)]
        self._queue = [*getattr(self, "_queue", []), self._chosen]

    executable.can_run_ahead, executable.submit = True, submit
    executable.collect = lambda self: np.array(self._queue.pop(0), np.int32)


def test_a_chip_that_runs_ahead_conforms(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runs_ahead(toy)
    assert main(["conformance", "toy", "--section", "device"]) == 0, capsys.readouterr().out


def has_no_row_for_products(load: Any) -> None:
    backend = load("toy_sglk.backend")
    backend.TABLE = backend.ToyBackend.table = tuple(r for r in backend.TABLE if r.op != "linear")


@pytest.mark.parametrize(
    ("broken", "section", "name", "reason"),
    [
        (wrong_silu, "ops", "silu(f32[n, 3, 5]) by numpy-silu", "off by"),
        (
            forgets_the_last_slot_of_a_page,
            "steps",
            "every length around a page",
            "16 tokens at once: expected a relative error of at most 0.0001",
        ),
        (
            ignores_cached_prefixes,
            "engine",
            "greedy ids of the reference",
            "expected token",
        ),
        (
            ignores_cached_prefixes,
            "engine",
            "resume from the prefix cache",
            "with a prefix cache: expected token",
        ),
        (
            gives_fewer_pages,
            "device",
            "an executable says its sizes",
            "expected the pages and tokens that were asked for",
        ),
        (
            checks_nothing,
            "errors",
            "wrong batches",
            "expected a result or an SglkError, got IndexError",
        ),
        (stays_open, "device", "close twice, then refuse", "for a step after close, got a result"),
        (
            promises_equal_bits,
            "steps",
            "chunks",
            "expected the same bits in chunks of 3 and at once",
        ),
        (
            shares_its_pages,
            "device",
            "two executables share no pages",
            "expected a relative error",
        ),
        (
            forgets_the_tokens_of_a_queue,
            "device",
            "steps in a queue",
            "of a queue: expected",
        ),
        (
            has_no_row_for_products,
            "facts",
            "rows that decoders need",
            "got none for ['linear']",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_chip_fails_with_a_reason(
    toy: Any,
    capsys: pytest.CaptureFixture[str],
    broken: Callable[[Any], None],
    section: str,
    name: str,
    reason: str,
) -> None:
    broken(toy)
    quick = ["--quick", "--json", "--section", section]
    assert main(["conformance", "toy", *quick]) == 1
    record = json.loads(capsys.readouterr().out)
    failed = {o["name"]: o["reason"] for o in record["outcomes"] if o["status"] == "failed"}
    found = [text for each, text in failed.items() if each.endswith(name)]
    assert found and all(reason in text for text in found), failed
    assert not record["passed"]


def test_the_table_of_a_broken_chip_is_readable(
    toy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong_silu(toy)
    assert main(["conformance", "toy", "--section", "ops", "--op", "silu"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "ops: 0 ok, 2 failed"
    assert out[1] == "  FAIL silu(f32[n]) by numpy-silu"
    assert out[2].startswith("       n = 2: f32[n]: expected -0.268941 at (1,), got -0.271631: off")
    assert out[-1] == "toy: does not conform: 2 of 2 checks failed"
