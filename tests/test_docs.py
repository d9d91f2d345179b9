"""Documents tell the truth: knobs are listed, links lead somewhere, examples run."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import importlib.util
import pathlib
import re
import subprocess
from collections.abc import Callable

import pytest
from sglk import knobs
from sglk.cli import main

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ("ir", "passes", "frontend", "targets", "runtime", "cli")
PACKAGED = (*ROOMS, "errors.py", "knobs.py", "driver.py", "__init__.py")
README = (ROOT / "README.md").read_text()


def listed(*patterns: str) -> list[pathlib.Path]:
    """Files that git tracks; outside a checkout, all that fit."""
    run = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if run.returncode:
        return [f for pattern in patterns for f in ROOT.rglob(pattern) if f.is_file()]
    return [f for name in run.stdout.splitlines() if (f := ROOT / name).is_file()]


def modules_with_examples() -> list[str]:
    names = []
    for file in listed("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        packaged = f"{parts[0]}.py" in PACKAGED or parts[0] in ROOMS
        if packaged and ">>> " in file.read_text():
            names.append(".".join(("sglk", *(p for p in parts if p != "__init__"))))
    return names


def test_readme_lists_every_knob() -> None:
    for field in dataclasses.fields(knobs.Knobs):
        assert f"`SGLK_{field.name.upper()}`" in README


def test_readme_lists_no_knob_that_is_gone() -> None:
    known = {f"SGLK_{field.name.upper()}" for field in dataclasses.fields(knobs.Knobs)}
    assert set(re.findall(r"\bSGLK_[A-Z_]+\b", README)) <= known


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_it_is_for(room: str) -> None:
    text = (ROOT / room / "README.md").read_text()
    assert f"({room}/README.md)" in README
    for question in (r"\bimports?\b", r"open\b.*first", r"\b(add|one more)\b"):
        found = re.search(question, text, re.IGNORECASE)
        assert found, f"{room}/README.md: expected a line with {question!r}"


@pytest.mark.parametrize("file", listed("*.md"), ids=lambda f: str(f.relative_to(ROOT)))
def test_links_lead_somewhere(file: pathlib.Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", file.read_text()):
        assert (file.parent / target).exists(), f"{file.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert not outcome.failed


@pytest.fixture(scope="module")
def block_forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What README shows: examples/block.py compiled, and each form as text."""
    folder = tmp_path_factory.mktemp("block")
    spec = importlib.util.spec_from_file_location("_block", ROOT / "examples" / "block.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with knobs.override(dump=str(folder / "dump")):
        example.main(str(folder / "block.sglk"))
    return {"folder": str(folder), "captured": (folder / "dump" / "00-given.txt").read_text()}


def test_readme_shows_the_captured_graph(block_forms: dict[str, str]) -> None:
    assert f"```\n{block_forms['captured']}```" in README


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("--graph", lambda text: text),
        ("--program", lambda text: text[: text.index("  bucket")]),
    ],
)
def test_readme_shows_the_form(
    block_forms: dict[str, str],
    form: str,
    shown: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", f"{block_forms['folder']}/block.sglk", form]) == 0
    assert f"```\n{shown(capsys.readouterr().out)}" in README


def test_readme_shows_the_artifact_but_for_what_the_machine_decides(
    block_forms: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", f"{block_forms['folder']}/block.sglk"]) == 0
    name, *facts = capsys.readouterr().out.splitlines()
    assert f"```\n{name.rsplit('/', 1)[-1]}\n" in README
    for fact in facts:
        decided_here = fact.split()[0] in ("program", "kernels")
        assert decided_here or f"{fact}\n" in README


def test_no_file_names_a_path_of_one_machine() -> None:
    private = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w")
    for file in listed("*.py", "*.md", "*.cfg", "*.toml", "*.h", "*.cpp", "Makefile", "*.txt"):
        match = private.search(file.read_text(errors="replace"))
        assert file == pathlib.Path(__file__) or match is None, f"{file}: {match}"
