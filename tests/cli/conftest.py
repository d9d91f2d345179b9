"""Running the command line in this process, and artifacts that somebody damaged."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sglk.frontend
from sglk.cli import main
from sglk.cli.compile import main as compile_main
from sglk.targets.artifact import Artifact, ArtifactWriter

Refusal = Callable[..., str]


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``run_cli("show", path)``: exit status, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as stop:  # argparse
            status = int(stop.code or 0)
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def refusal(run_cli: Callable[..., tuple[int, str, str]]) -> Refusal:
    """``refusal("show", path)``: the one sentence on standard error, everything else checked."""

    def refuse(*arguments: object) -> str:
        status, out, err = run_cli(*arguments)
        assert status == 1, err
        assert out == ""
        lines = [line for line in err.splitlines() if line.startswith("sglk")]
        assert len(lines) == 1 and "Traceback" not in err, err
        return lines[0]

    return refuse


@pytest.fixture(scope="session")
def tiny_capture(tiny_llama_folder: Path) -> Any:
    """`tiny_llama_folder` captured once: capture is most of a small compile."""
    return sglk.frontend.load_model(tiny_llama_folder)


@pytest.fixture
def compile_tiny(
    tiny_capture: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """``compile_tiny("-o", path)``: the captured model compiled; exit status, output, errors."""
    monkeypatch.setattr(sglk.frontend, "load_model", lambda *args, **kwargs: tiny_capture)

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        return (compile_main(["tiny", *map(str, arguments)]), *capsys.readouterr())

    return run


@pytest.fixture
def edited_byte(tiny_artifact: Path, tmp_path: Path) -> Callable[[str], Path]:
    """``edited_byte("report.json")``: a copy with one byte in the middle of that member changed."""

    def edit(member: str) -> Path:
        data = bytearray(tiny_artifact.read_bytes())
        with zipfile.ZipFile(tiny_artifact) as archive:
            names = [n for n in archive.namelist() if n.startswith(member)]
            size = archive.getinfo(names[0]).file_size
        with Artifact.open(tiny_artifact) as artifact:
            content = artifact.read(names[0])
        at = data.index(content) + size // 2
        data[at] ^= 1
        path = tmp_path / "edited.sglk"
        path.write_bytes(data)
        return path

    return edit


@pytest.fixture
def rewritten(tiny_artifact: Path, tmp_path: Path) -> Callable[..., Path]:
    """``rewritten(format=[2, 0])``: a sound artifact with other values in its manifest.

    ``members`` maps names to other contents.
    """

    def rewrite(members: Mapping[str, bytes] | None = None, **changes: object) -> Path:
        path = tmp_path / "rewritten.sglk"
        with Artifact.open(tiny_artifact) as old, ArtifactWriter(path) as writer:
            for name in old.names:
                if name.startswith("weights/"):
                    writer.add_blob([old.view(name)])
                elif name in old.manifest["members"]:  # type: ignore[operator]
                    writer.add_bytes(name, (members or {}).get(name, old.read(name)))
            writer.finish({**old.manifest, **changes})
        return path

    return rewrite
