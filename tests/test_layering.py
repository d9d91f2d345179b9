"""A room imports only from rooms below it; the run-time face of targets/ imports no compiler."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
import sglk

ROOT = pathlib.Path(sglk.__file__).parent
MAY_IMPORT = {
    "ir": {"ir"},
    "passes": {"passes", "ir"},
    "frontend": {"frontend", "ir"},
    "targets": {"targets", "passes", "ir"},
    "runtime": {"runtime", "targets"},
}
FLOOR = {"errors", "knobs", "__version__"}
RUNTIME_FACE = {"artifact", "device", "dim_code", "machine", "registry"}
"""Parts of targets/ that serving may load. ``device`` may be a package: any path part counts."""
ON_DEMAND = {"targets/artifact/host_ops.py": {"ir"}}
"""Loaded only for an artifact that asks for it: ops on the host are NumPy references of `ir`."""
NEVER = {
    "ir": {"torch", "onnx", "transformers", "triton"},
    "passes": {"torch", "onnx", "transformers", "triton"},
    "runtime": {"torch", "onnx", "transformers", "triton", "sympy", "gguf", "safetensors"},
}
"""Packages that a room does not import at all, not even inside a function."""


def relative_imports(path: pathlib.Path) -> Iterator[tuple[str, ...]]:
    here = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            up = here[: len(here) - node.level + 1]
            base = (*up, *filter(None, (node.module or "").split(".")))
            for alias in node.names:
                yield (*base, alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sglk":
            raise AssertionError(f"{path}:{node.lineno}: inside the package, import relatively")


def outside_imports(path: pathlib.Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


def is_face(room: str, path: pathlib.Path) -> bool:
    """An ``__init__`` is part of the face when something of the face lies under it."""
    parts = path.relative_to(ROOT / room).with_suffix("").parts
    if parts[-1] == "__init__":
        below = {p.relative_to(path.parent).with_suffix("") for p in path.parent.rglob("*.py")}
        parts = (*parts, *(name for p in below for name in p.parts))
    return room == "targets" and bool(RUNTIME_FACE & set(parts))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_room_imports_only_downwards(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        face = is_face(room, path)
        allowed = (MAY_IMPORT[room] | FLOOR) - ({"ir", "passes"} if face else set())
        allowed |= ON_DEMAND.get(path.relative_to(ROOT).as_posix(), set())
        for target in relative_imports(path):
            what = f"{path.relative_to(ROOT)} imports {'.'.join(target)}"
            assert target[0] in allowed, what
            if (room == "runtime" or face) and target[0] == "targets":
                assert RUNTIME_FACE & set(target[1:]), what


@pytest.mark.parametrize("room", NEVER)
def test_room_leaves_these_packages_alone(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        found = NEVER[room] & set(outside_imports(path))
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_one_target_never_imports_another() -> None:
    targets = {"cpu", "cuda", "kunlun"}
    for name in targets:
        for path in (ROOT / "targets" / name).rglob("*.py"):
            for target in relative_imports(path):
                others = (targets - {name}) & set(target[1:2])
                assert not others, f"{path.relative_to(ROOT)} imports {'.'.join(target)}"


def test_the_run_time_face_imports_numpy_and_the_standard_library_only() -> None:
    allowed = {"numpy", "_typeshed", *sys.stdlib_module_names}
    for path in (ROOT / "targets").rglob("*.py"):
        if is_face("targets", path):
            found = set(outside_imports(path)) - allowed
            assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_serving_loads_no_compiler() -> None:
    code = "import sys, sglk.runtime; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    compiler = {"sglk.ir", "sglk.passes", "sglk.frontend", "sympy", "torch", "triton", "onnx"}
    assert not loaded & (compiler | {"transformers", "gguf", "safetensors"})
