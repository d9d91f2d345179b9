"""Guards for the root-is-the-package layout and for the size of files."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import pathlib
import subprocess
import sys

import pytest
import sglk

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOT_SHIPPED = {"tests", "docs", "bench", "examples", "build", "dist"}
ROOT_MODULES = {
    "__init__.py",
    "__main__.py",
    "compiled.py",
    "driver.py",
    "errors.py",
    "knobs.py",
    "onnx_backend.py",
    "tokenizer_members.py",
}
MAX_LINES = 400
MAX_FUNCTION_LINES = 60
VAGUE = {"utils", "util", "helpers", "common", "misc"}


def tracked(pattern: str) -> list[pathlib.Path]:
    """Files of the checkout that git knows, or would add; outside a checkout, those on disk."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        return [f for f in ROOT.rglob(pattern) if f.is_file()]
    return [f for name in run.stdout.split() if (f := ROOT / name).is_file()]


SOURCES = [f for suffix in ("*.py", "*.h", "*.cpp") for f in tracked(suffix)]
PACKAGED = [
    f
    for f in tracked("*.py")
    if f.parent != ROOT
    and f.relative_to(ROOT).parts[0] not in NOT_SHIPPED
    and not f.relative_to(ROOT).parts[0].startswith(".")
]


def settings() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def test_every_package_folder_is_listed_in_setup_cfg() -> None:
    listed = set(settings()["options"]["packages"].split())
    found = {"sglk"}
    for init in ROOT.rglob("__init__.py"):
        parts = init.relative_to(ROOT).parts[:-1]
        if parts and parts[0] not in NOT_SHIPPED and not parts[0].startswith("."):
            found.add(".".join(("sglk", *parts)))
    assert listed == found


def test_every_folder_with_modules_is_a_package() -> None:
    missing = {f.parent for f in PACKAGED if not (f.parent / "__init__.py").is_file()}
    assert not missing, "their modules would be missing from the wheel"


def test_every_source_that_is_no_module_is_package_data() -> None:
    data = settings()["options.package_data"]
    for suffix in ("*.h", "*.cpp", "*.cu", "*.cuh"):
        for file in tracked(suffix):
            parts = file.relative_to(ROOT).parts
            if parts[0] in NOT_SHIPPED:
                continue
            owners = [
                (".".join(("sglk", *parts[:i])), "/".join(parts[i:])) for i in range(1, len(parts))
            ]
            shipped = any(
                fnmatch.fnmatch(rest, pattern)
                for package, rest in owners
                for pattern in data.get(package, "").replace(",", " ").split()
            )
            assert shipped, f"{file.relative_to(ROOT)} is in no package_data line of setup.cfg"


def test_root_holds_no_stray_module() -> None:
    assert {p.name for p in ROOT.glob("*.py")} <= ROOT_MODULES


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), "test files need names of their own"


def test_no_module_is_loaded_under_two_names() -> None:
    base = pathlib.Path(sglk.__file__).parent
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.startswith(("sglk", "tests", "test_", "conftest")):
            continue
        path = pathlib.Path(file)
        inside = path.is_relative_to(base) and not path.is_relative_to(base / "tests")
        if inside and not path.relative_to(base).parts[0].startswith("."):
            assert path == base / "__init__.py", f"{path} is loaded a second time as {name!r}"


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(ROOT)))
def test_files_are_short(file: pathlib.Path) -> None:
    assert len(file.read_text().splitlines()) <= MAX_LINES, "split it: one idea per file"


@pytest.mark.parametrize("file", PACKAGED, ids=lambda f: str(f.relative_to(ROOT)))
def test_functions_are_short_and_files_are_named_for_what_they_hold(file: pathlib.Path) -> None:
    assert file.stem not in VAGUE
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"
